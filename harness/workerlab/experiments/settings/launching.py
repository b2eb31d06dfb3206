"""The launches of a plan, two at a time, since they mostly wait for the server. What each of them
showed is in its `seen.json`."""

import contextlib
import errno
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from workerlab import codec, run_store
from workerlab.experiments.jobs import JobPlanner
from workerlab.experiments.scheduler import TrialSource
from workerlab.experiments.settings.effects import SETTINGS
from workerlab.experiments.settings.launches import LAUNCHES
from workerlab.experiments.settings.launches.common import SettingLaunch
from workerlab.experiments.settings.site import MAX_ATTEMPTS, MachineStalled, Site
from workerlab.experiments.trial import INTERRUPTED, discard_attempt
from workerlab.model import EnvironmentProblem, Fault, Plan, Record, Trial
from workerlab.plan import trials
from workerlab.server.running import Cancelled, StartupTurn, TrialFailed
from workerlab.terminal.progress import Progress

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


def described(trial: Trial) -> str:
    """The progress line of a trial: the server, and the settings examined."""
    name = launch_name(trial)
    settings = [setting.name for setting in SETTINGS.values() if name in setting.launches]
    others = f" and {len(settings) - SETTINGS_NAMED} more" if len(settings) > SETTINGS_NAMED else ""
    return f"{trial.cell.server.variant}: {', '.join(settings[:SETTINGS_NAMED])}{others}"


def display(source: TrialSource, todo: Sequence[Trial]) -> Progress:
    """The progress of the launches; none of them may take longer than predicted."""
    return Progress(todo, source.predict, source.jobs.left_s, name=described)


class LaunchJobs(JobPlanner):
    """Launches in the order of the plan, PARALLEL_LAUNCHES at a time: they leave the cores idle."""

    start_interval_s = 0.0  # they do not wait for each other

    def __init__(self, plan: Plan) -> None:
        plan = replace(plan, jobs=PARALLEL_LAUNCHES)
        super().__init__(plan, 1, lambda _: None, drops_known=True)

    def predict(self, trial: Trial) -> float:
        return LAUNCHES[launch_name(trial)].about_s

    def cores(self, trial: Trial) -> float:
        return 0.0

    def next_batch(self, remaining: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
        return list(remaining), []


class SettingLaunches(TrialSource):
    """Launches without a load tool: the experiment itself is the client."""

    def __init__(self, directory: Path, plan: Plan, *_: object) -> None:
        super().__init__(directory, plan, LaunchJobs(plan))

    def unfinished(self) -> list[Trial]:
        records = run_store.load(self.directory).records
        return [
            trial for trial in trials(self.plan)
            if trial.cell.server.variant not in self.plan.unavailable
            and (trial.key not in records or records[trial.key].fault is not None)
        ]  # fmt: skip

    def prepare(self, trial: Trial, turn: StartupTurn, *_: object) -> Callable[[], Record]:
        return partial(self.make, trial, turn)

    def make(self, trial: Trial, turn: StartupTurn) -> Record:
        """Run the launch of a trial; the record has the fault, if any. If it fails because the
        machine stalled, it is repeated with a new server, up to MAX_ATTEMPTS attempts in all."""
        for _ in range(MAX_ATTEMPTS):
            site = self._site(trial, turn)
            fault, stalled = self._made(site, LAUNCHES[launch_name(trial)])
            if not stalled:
                break
        return Record(trial.key, fault, start_s=site.start_s or None)

    def _made(self, site: Site, launch: SettingLaunch) -> tuple[Fault | None, bool]:
        """The fault, if any, and whether its cause is a machine that stalled."""
        try:
            self._look(site, launch)
        except TrialFailed as failure:
            return failure.fault, isinstance(failure, MachineStalled)
        except Cancelled:
            return INTERRUPTED, False
        except EnvironmentProblem as error:
            return Fault("unavailable", str(error)), False
        except Exception as error:  # a dying server can cause any error
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                why = f"the launch's files could not be written: {error}"
                return Fault("storage", why), False
            why = f"the experiment failed: {type(error).__name__}: {error}"
            return Fault("server", why), False
        return None, False

    def _site(self, trial: Trial, turn: StartupTurn) -> Site:
        launch, server = LAUNCHES[launch_name(trial)], trial.cell.server
        directory = self.directory / "raw" / trial.key
        discard_attempt(directory)
        return Site(
            server,
            python=server.python or self.plan.python,
            gunicorn=server.gunicorn or self.plan.gunicorn,
            code=self.directory / "code",
            directory=directory,
            settings=launch.settings,
            turn=turn,
        )

    def _look(self, site: Site, launch: SettingLaunch) -> None:
        with site.up():
            observed = launch.look(site)
            site.turn.raise_if_ended()  # what a server did that the lab has killed shows nothing
        run_store.write_synced(site.directory / SEEN, observed)
