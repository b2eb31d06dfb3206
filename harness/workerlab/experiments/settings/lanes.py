"""Makes the launches of a plan, two at a time: most of each is waiting for what a server does or
does not do. Each is kept as it ends; what was seen stands in its directory, `seen.json`."""

import contextlib
import errno
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from workerlab import codec, run_store
from workerlab.experiments import trial
from workerlab.experiments.settings.effects import SETTINGS
from workerlab.experiments.settings.launches import LAUNCHES
from workerlab.experiments.settings.launches.launch import Launch
from workerlab.experiments.settings.site import Site
from workerlab.experiments.settings.stillness import TRIES, StoodStill
from workerlab.model import EnvironmentProblem, Fault, Plan, Record, Trial
from workerlab.plan import trials
from workerlab.server.running import Faulty
from workerlab.terminal.progress import Progress

LANES = 2
SEEN = "seen.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
FEW = 3  # settings that a line of progress names


def seen_of(directory: Path, key: str) -> dict[str, Any] | None:
    """What a launch saw; None where it did not end well."""
    with contextlib.suppress(OSError, ValueError):
        return codec.decode((directory / "raw" / key / SEEN).read_bytes(), dict[str, Any])
    return None


def launch_name(one: Trial) -> str:
    """Which of LAUNCHES: a cell is named after its server and that."""
    return one.cell.name.rpartition("-")[2]


def todo(directory: Path, plan: Plan) -> list[Trial]:
    """Those that have not ended well."""
    records = run_store.load(directory).records
    return [
        one for one in trials(plan)
        if one.cell.server.variant not in plan.unavailable
        and (one.key not in records or records[one.key].fault is not None)
    ]  # fmt: skip


def perform(directory: Path, plan: Plan) -> None:
    """Raises Stopped on a signal, EnvironmentProblem when nothing can be written any more."""
    left = todo(directory, plan)
    lanes = Lanes(directory, plan)
    with (
        run_store.appending(directory) as writer,
        Progress(left, _predicted_s, name=described) as screen,
        ThreadPoolExecutor(LANES) as pool,
    ):
        futures = {pool.submit(lanes.make, trial, screen.begin): trial for trial in left}
        try:
            for future in as_completed(futures):
                record = future.result()
                writer.ended(record)
                screen.end(futures[future], record)
                if record.fault and record.fault.kind == "storage":
                    raise EnvironmentProblem(record.fault.reason)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            lanes.end()
            pool.shutdown()
            for record in _ended_well(futures, run_store.load(directory).records):
                writer.ended(record)
            raise


def _ended_well(futures: Iterable[Future[Record]], kept: Collection[str]) -> Iterator[Record]:
    """Launches that ended well and are not yet among `kept`, the keys on file."""
    for future in futures:
        if future.cancelled() or future.exception() is not None:
            continue
        record = future.result()
        if record.fault is None and record.key not in kept:
            yield record


def _predicted_s(one: Trial) -> float:
    return LAUNCHES[launch_name(one)].about_s / LANES


def described(one: Trial) -> str:
    """For the user: what is examined, of which server."""
    name = launch_name(one)
    settings = [setting.name for setting in SETTINGS.values() if name in setting.launches]
    more = f" and {len(settings) - FEW} more" if len(settings) > FEW else ""
    return f"{one.cell.server.variant}: {', '.join(settings[:FEW])}{more}"


class Lanes:
    """Makes launches in threads of their own, and ends them all from outside."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory, self._plan = directory, plan
        self._ended = threading.Event()
        self._up: set[Site] = set()

    def end(self) -> None:
        """What is under way fails at once: its server is gone."""
        self._ended.set()
        for site in tuple(self._up):
            site.process.abandon()

    def make(self, one: Trial, begin: Callable[[Trial], None]) -> Record:
        """The launch of a trial, whatever comes of it. Made again where the machine stood
        still while something was timed that a server does but once."""
        begin(one)
        for _ in range(TRIES):
            site = self._site(one)
            fault, stood_still = self._made(site, LAUNCHES[launch_name(one)])
            if not stood_still:
                break
        return Record(one.key, fault, start_s=site.start_s or None)

    def _made(self, site: Site, launch: Launch) -> tuple[Fault | None, bool]:
        """What went wrong, and whether that was the machine, which stood still."""
        fault: Fault | None = None
        try:
            self._look(site, launch)
        except Faulty as found:
            return found.fault, isinstance(found, StoodStill)
        except EnvironmentProblem as error:
            fault = Fault("unavailable", str(error))
        except Exception as error:  # a server that dies is seen in as many ways as there are
            fault = self._failed(error)
        return fault, False

    def _failed(self, error: Exception) -> Fault:
        if self._ended.is_set():
            return Fault("interrupted", "stopped before it was finished")
        if isinstance(error, OSError) and error.errno in FULL:
            return Fault("storage", f"the launch could not be written down: {error}")
        return Fault("server", f"the experiment failed: {type(error).__name__}: {error}")

    def _site(self, one: Trial) -> Site:
        launch, server = LAUNCHES[launch_name(one)], one.cell.server
        place = self._directory / "raw" / one.key
        trial.forget(place)
        return Site(
            server,
            server.python or self._plan.python,
            server.gunicorn or self._plan.gunicorn,
            self._directory / "code",
            place,
            launch.settings,
            self._ended,
        )

    def _look(self, site: Site, launch: Launch) -> None:
        with site.up():
            self._up.add(site)
            try:
                site.wait(0.0)  # what came up as all ended is in no set that was ended
                seen = launch.look(site)
                site.wait(0.0)  # what is seen of a server that was ended is nothing it does itself
            finally:
                self._up.discard(site)
        run_store.write_synced(site.directory / SEEN, seen)
