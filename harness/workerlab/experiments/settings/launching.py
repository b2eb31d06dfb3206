"""Runs the launches of a plan, two at a time, since they mostly wait for the server. Each is
recorded when it ends, with its observations in `seen.json`."""

import contextlib
import errno
import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from workerlab import codec, run_store
from workerlab.experiments.settings.effects import SETTINGS
from workerlab.experiments.settings.launches import LAUNCHES
from workerlab.experiments.settings.launches.common import SettingLaunch
from workerlab.experiments.settings.site import MAX_ATTEMPTS, MachineStalled, Site
from workerlab.experiments.trial import discard_attempt
from workerlab.model import EnvironmentProblem, Fault, Plan, Record, Trial
from workerlab.plan import trials
from workerlab.server.running import TrialFailed
from workerlab.terminal.progress import Several

PARALLEL_LAUNCHES = 2
SEEN = "seen.json"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
SETTINGS_NAMED = 3  # at most, in a progress line


def seen_of(directory: Path, key: str) -> dict[str, Any] | None:
    """The observations of a launch; None if it failed."""
    with contextlib.suppress(OSError, ValueError):
        return codec.decode((directory / "raw" / key / SEEN).read_bytes(), dict[str, Any])
    return None


def launch_name(trial: Trial) -> str:
    """The name in LAUNCHES: the last part of the cell's name."""
    return trial.cell.name.rpartition("-")[2]


def todo(directory: Path, plan: Plan) -> list[Trial]:
    """Trials to run: those without a record, or whose record has a fault."""
    records = run_store.load(directory).records
    return [
        trial for trial in trials(plan)
        if trial.cell.server.variant not in plan.unavailable
        and (trial.key not in records or records[trial.key].fault is not None)
    ]  # fmt: skip


def perform(directory: Path, plan: Plan) -> None:
    """Raises Stopped on a signal, EnvironmentProblem if the disk cannot be written."""
    remaining = todo(directory, plan)
    parallel = ParallelLaunches(directory, plan)
    with (
        run_store.appending(directory) as writer,
        Several(remaining, _predicted_s, _no_more_s, left_s, described) as screen,
        ThreadPoolExecutor(PARALLEL_LAUNCHES) as pool,
    ):
        futures = {pool.submit(parallel.make, trial, screen.begin): trial for trial in remaining}
        try:
            for future in as_completed(futures):
                record = future.result()
                writer.ended(record)
                screen.end(futures[future], record)
                if record.fault and record.fault.kind == "storage":
                    raise EnvironmentProblem(record.fault.reason)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            parallel.end()
            pool.shutdown()
            for record in _ended_well(futures, run_store.load(directory).records):
                writer.ended(record)
            raise


def _ended_well(futures: Iterable[Future[Record]], kept: Collection[str]) -> Iterator[Record]:
    """Successful launches that are not yet among `kept`, the stored keys."""
    for future in futures:
        if future.cancelled() or future.exception() is not None:
            continue
        record = future.result()
        if record.fault is None and record.key not in kept:
            yield record


def _predicted_s(trial: Trial) -> float:
    return LAUNCHES[launch_name(trial)].about_s


def _no_more_s(_trial: Trial) -> float:
    return 0.0


def left_s(
    predict: Callable[[Trial], float | None],
    remaining: Sequence[Trial],
    so_far_s: Mapping[str, float],
) -> float:
    """Predicted seconds until all launches are done, in their order, PARALLEL_LAUNCHES at a time.
    `so_far_s`: how long each running one has run."""
    threads_s = [0.0] * PARALLEL_LAUNCHES  # until each thread is free
    for trial in sorted(remaining, key=lambda trial: trial.key not in so_far_s):
        left_s = max(0.0, (predict(trial) or 0.0) - so_far_s.get(trial.key, 0.0))
        heapq.heapreplace(threads_s, threads_s[0] + left_s)
    return max(threads_s)


def described(trial: Trial) -> str:
    """The progress line of a trial: the server, and the settings examined."""
    name = launch_name(trial)
    settings = [setting.name for setting in SETTINGS.values() if name in setting.launches]
    others = f" and {len(settings) - SETTINGS_NAMED} more" if len(settings) > SETTINGS_NAMED else ""
    return f"{trial.cell.server.variant}: {', '.join(settings[:SETTINGS_NAMED])}{others}"


class ParallelLaunches:
    """Runs launches in threads, and can stop all of them."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory, self._plan = directory, plan
        self._ended = threading.Event()
        self._up: set[Site] = set()

    def end(self) -> None:
        """Stop the servers; running launches then fail at once."""
        self._ended.set()
        for site in tuple(self._up):
            site.process.abandon()

    def make(self, trial: Trial, begin: Callable[[Trial], None]) -> Record:
        """Run the launch of a trial; the record has the fault, if any. If it fails because the
        machine stalled, it is repeated with a new server, up to MAX_ATTEMPTS attempts in all."""
        begin(trial)
        for _ in range(MAX_ATTEMPTS):
            site = self._site(trial)
            fault, stalled = self._made(site, LAUNCHES[launch_name(trial)])
            if not stalled:
                break
        return Record(trial.key, fault, start_s=site.start_s or None)

    def _made(self, site: Site, launch: SettingLaunch) -> tuple[Fault | None, bool]:
        """The fault, if any, and whether its cause is a machine that stalled."""
        fault: Fault | None = None
        try:
            self._look(site, launch)
        except TrialFailed as faulty:
            return faulty.fault, isinstance(faulty, MachineStalled)
        except EnvironmentProblem as error:
            fault = Fault("unavailable", str(error))
        except Exception as error:  # a dying server can cause any error
            fault = self._failed(error)
        return fault, False

    def _failed(self, error: Exception) -> Fault:
        if self._ended.is_set():
            return Fault("interrupted", "stopped before it was finished")
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            return Fault("storage", f"the launch's files could not be written: {error}")
        return Fault("server", f"the experiment failed: {type(error).__name__}: {error}")

    def _site(self, trial: Trial) -> Site:
        launch, server = LAUNCHES[launch_name(trial)], trial.cell.server
        directory = self._directory / "raw" / trial.key
        discard_attempt(directory)
        return Site(
            server,
            python=server.python or self._plan.python,
            gunicorn=server.gunicorn or self._plan.gunicorn,
            code=self._directory / "code",
            directory=directory,
            settings=launch.settings,
            cancelled=self._ended,
        )

    def _look(self, site: Site, launch: SettingLaunch) -> None:
        with site.up():
            self._up.add(site)
            try:
                site.wait(0.0)  # raises if `end` was called before this server was up
                observed = launch.look(site)
                site.wait(0.0)  # discards observations of a server that `end` stopped
            finally:
                self._up.discard(site)
        run_store.write_synced(site.directory / SEEN, observed)
