"""`workerlab settings`: what each worker class does with each of Gunicorn's settings.

    options ─► classes x versions x the launches that test the settings ─► two at a time ─► effects

A cell is a launch without a load tool. The experiment itself is the client and observes the server
from outside: in the kernel, in /proc, and on the wire. Observations are stored in `seen.json`.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec, run_store
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.environment import interpreters
from workerlab.experiments.jobs import JobPlanner
from workerlab.experiments.planning import common_version, notes_on_gunicorn, unavailable_variants
from workerlab.experiments.runner import Setup
from workerlab.experiments.scheduler import TrialSource
from workerlab.experiments.settings.common_launches import SettingLaunch
from workerlab.experiments.settings.effects import SETTING_NAMES, SETTINGS
from workerlab.experiments.settings.gunicorn_file import (
    FileLine,
    SourceFile,
    UnknownName,
    check_class,
    class_of,
    unknown_names,
)
from workerlab.experiments.settings.launches import LAUNCHES, TOUCHED
from workerlab.experiments.settings.options import SettingsOptions
from workerlab.experiments.settings.site import MAX_ATTEMPTS, MachineStalled, Site
from workerlab.experiments.trial import INTERRUPTED, discard_attempt
from workerlab.finding import stored
from workerlab.model.evidence import Fault, Record
from workerlab.model.plan import App, Cell, Plan, Server, Trial
from workerlab.notes import annotated_only
from workerlab.options import BadArgument, names_of
from workerlab.plan import trials
from workerlab.server import preflight
from workerlab.server.running import Cancelled, StartupTurn, TrialFailed
from workerlab.server.worker_classes import CLASSES, class_named
from workerlab.terminal.progress import Progress

# Settings of the app, the address, the class and the process, which no class can ignore
SERVER = ("bind", "worker_class", "wsgi_app", "proc_name", "pidfile", "daemon", "user", "group")


class SettingsRequest(Struct, frozen=True):
    """The user's request, stored as the Plan's details. `config`: the Gunicorn file, "" for none;
    `lines`: its assignments, `values`: their values, if plain; `unknown`: settings among them that
    no experiment covered; `strange`: names that are not settings, each with the likely setting;
    `absent`: missing paths and accounts that Gunicorn needs to start, by setting; `left_out`:
    settings that --quick cannot test."""

    settings: tuple[str, ...]
    config: str = ""
    lines: tuple[FileLine, ...] = ()
    left_out: tuple[str, ...] = ()
    values: Mapping[str, Any] = {}
    unknown: tuple[str, ...] = ()  # stored, since later experiments may cover them
    strange: Mapping[str, str] = {}
    absent: Mapping[str, str] = {}
    gunicorns: Mapping[str, str] = {}  # version by interpreter, if there are several

    @property
    def set_lines(self) -> dict[str, FileLine]:
        """The lines of the settings that the file sets rather than only annotates, by name."""
        return {line.name: line for line in self.lines if line.sets and line.is_setting}

    @classmethod
    def of(cls, plan: Plan) -> "SettingsRequest":
        request = codec.convert(plan.details, cls)
        if any(cell.name.endswith(f"-{TOUCHED.name}") for cell in plan.cells):
            return request
        # In runs that predate `reload` as a setting, it means SIGHUP
        names = ("sighup" if name == "reload" else name for name in request.settings)
        return replace(request, settings=tuple(names))

    def version_of(self, server: Server) -> str:
        """The version and interpreter of a server, if there are several."""
        version = server.gunicorn or self.gunicorns.get(server.python, "")
        return ", ".join(filter(None, (version, server.python)))


def setup(options: SettingsOptions, plan: Plan | None) -> Setup:
    plan, serving = first_plan(options) if plan is None else (plan, {})
    return Setup(plan, serving, display=display, trials=SettingLaunches)


def first_plan(options: SettingsOptions) -> tuple[Plan, preflight.Interpreters]:
    """The plan and the interpreters. Raises UsageError or EnvironmentProblem."""
    if not Path("/proc/self").exists():
        raise EnvironmentProblem("settings requires Linux: it observes servers in /proc")
    names, classes = _selected_settings(options.only), options.classes
    if options.config:
        file = SourceFile(Path(options.config))
        reader = next(iter(interpreters(options, bundled=False).values()))
        lines = file.lines(reader.assignments, reader.names)
        classes = classes or (_class_of_file(options.config, lines, reader),)
        request = _request_of_file(options.config, names, lines, reader)
    elif classes:
        request = SettingsRequest(names)
    else:
        raise UsageError(
            "settings needs CLASSES or --config FILE, such as: workerlab settings sync,gthread"
        )
    serving = interpreters(options, classes, bundled=not options.config)
    _check_classes(serving, classes)
    versions = {python: interpreter.gunicorn for (python, version), interpreter in serving.items()
           if not version}  # fmt: skip
    request = _testable(request, quick=options.quick)
    request = replace(request, gunicorns=versions if len(versions) > 1 else {})
    cells = tuple(_cells(serving, classes, request.settings))
    plan = Plan(
        kind="settings",
        cells=cells,
        trials=1,
        rounds=1,
        seed=0,
        python=next(iter(serving.values())).python,
        config=None,
        unavailable=unavailable_variants((cell.server for cell in cells), serving),
        notes=tuple(map(stored, notes_on_gunicorn(serving))),
        details=codec.plain(request),
        gunicorn=common_version(serving),
    )
    return plan, serving


def _class_of_file(config: str, lines: Iterable[FileLine], reader: preflight.Interpreter) -> str:
    """The worker class that the file selects. `reader`: the interpreter that has read the file.
    Raises UsageError if there is no such class."""
    name = class_of(reader.settings)
    numbers = [line.number for line in lines if line.name == "worker_class"]
    location = f"{config}, line {numbers[0]}" if numbers else config
    check_class(name, dict.fromkeys((*CLASSES, *reader.worker_classes)), location)
    return name


def _check_classes(serving: preflight.Interpreters, classes: Iterable[str]) -> None:
    """Raises EnvironmentProblem if no interpreter can run any of the classes."""
    reasons: dict[str, str] = {}
    for interpreter in serving.values():
        for name in classes:
            why = interpreter.why_unavailable(name)
            if not why:
                return
            reasons[name] = why
    raise EnvironmentProblem("; ".join(reasons.values()))


def _selected_settings(words: str | None) -> tuple[str, ...]:
    """The settings of --only, or all settings and events. Raises UsageError."""
    if words is None:
        return tuple(SETTINGS)
    try:
        return names_of("setting", SETTING_NAMES)(words)
    except BadArgument as error:
        raise UsageError(f"--only: {error}") from None


def _request_of_file(
    config: str,
    names: Iterable[str],
    lines: tuple[FileLine, ...],
    reader: preflight.Interpreter,
) -> SettingsRequest:
    """A request for those of `names` that the file sets. Raises UsageError if there are none."""
    request = SettingsRequest(
        (), config, lines, strange=unknown_names(lines, reader.names), absent=reader.absent
    )
    settings = tuple(name for name in names if name in request.set_lines and name in SETTING_NAMES)
    if not settings:
        raise UsageError(_why_nothing(request))
    values = {name: value for name, value in reader.settings.items() if name in request.set_lines}
    unknown = tuple(name for name in request.set_lines if name not in (*SETTING_NAMES, *SERVER))
    return replace(request, settings=settings, values=values, unknown=unknown)


def _testable(request: SettingsRequest, *, quick: bool | None) -> SettingsRequest:
    """The request without what --quick cannot examine. Raises UsageError if none is left."""
    usable = {launch.name for launch in LAUNCHES.values() if launch.quick or not quick}
    testable = [name for name in request.settings if usable.issuperset(SETTINGS[name].launches)]
    left_out = tuple(name for name in request.settings if name not in testable)
    if not testable:
        raise UsageError(f"--quick cannot examine {', '.join(left_out)}: leave it out")
    return replace(request, settings=tuple(testable), left_out=left_out)


def _why_nothing(request: SettingsRequest) -> str:
    """Why nothing that the file sets can be examined."""
    reasons = [
        str(UnknownName(line.number, line.name, request.strange[line.name]) if line.sets
            else annotated_only(line.number, line.name, line.text))
        for line in request.lines
        if line.name in request.strange or not line.sets
    ]  # fmt: skip
    why = "; ".join(reasons) or "workerlab settings CLASSES lists what can"
    return f"{request.config} sets nothing that can be examined: {why}"


def _cells(
    serving: preflight.Interpreters, classes: Iterable[str], settings: Iterable[str]
) -> Iterator[Cell]:
    """A cell for each interpreter, class and launch that the settings need."""
    launch_names = {name for setting in settings for name in SETTINGS[setting].launches}
    launches = [launch for launch in LAUNCHES.values() if launch.name in launch_names]
    pythons = list(dict.fromkeys(python for python, _ in serving))
    for (key, interpreter), name, launch in product(serving.items(), classes, launches):
        python, version = key
        app = App(target=f"inspected:{'asgi' if interpreter.serves_asgi(name) else 'wsgi'}")
        server = Server(
            worker_class=name,
            workers=1,
            threads=launch.threads if class_named(name).slots == "threads" else 1,
            backlog=0,
            worker_connections=0,
            app=app,
            gunicorn=version,
            python=python,
        )
        label = f"python{1 + pythons.index(python)}" if python else ""
        cell_name = "-".join(filter(None, (name, version, label, launch.name)))
        yield Cell(server, tool="", concurrency=1, name=cell_name)


# --- the launches ---------------------------------------------------------------------------------

PARALLEL_LAUNCHES = 2  # they mostly wait for the server
SEEN = "seen.json"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
MAX_NAMED_SETTINGS = 3  # at most, in a progress line


def observations_of(directory: Path, key: str) -> dict[str, Any] | None:
    """The observations of a launch; None if it failed."""
    with contextlib.suppress(OSError, ValueError):
        return codec.decode((directory / "raw" / key / SEEN).read_bytes(), dict[str, Any])
    return None


def launch_name(trial: Trial) -> str:
    """The name in LAUNCHES: the last part of the cell's name."""
    return trial.cell.name.rpartition("-")[2]


def progress_line(trial: Trial) -> str:
    """The progress line of a trial: the server, and the settings examined."""
    name = launch_name(trial)
    settings = [setting.name for setting in SETTINGS.values() if name in setting.launches]
    unnamed = len(settings) - MAX_NAMED_SETTINGS
    more = f" and {unnamed} more" if unnamed > 0 else ""
    return f"{trial.cell.server.variant}: {', '.join(settings[:MAX_NAMED_SETTINGS])}{more}"


def display(source: TrialSource, todo: Sequence[Trial]) -> Progress:
    """The progress of the launches; none may take longer than predicted."""
    return Progress(todo, source.predict, source.jobs.left_s, name=progress_line)


class LaunchJobs(JobPlanner):
    """Launches in the order of the plan, PARALLEL_LAUNCHES at a time: they hardly use the cores."""

    start_interval_s = 0.0  # they do not wait for each other

    def __init__(self, plan: Plan) -> None:
        plan = replace(plan, jobs=PARALLEL_LAUNCHES)
        super().__init__(plan, 1, lambda _: None, drops_known=True)

    def predict(self, trial: Trial) -> float:
        return LAUNCHES[launch_name(trial)].typical_s

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
        return partial(self.run_launch, trial, turn)

    def run_launch(self, trial: Trial, turn: StartupTurn) -> Record:
        """Run the launch of a trial; the record has the fault, if any. A launch that fails because
        the machine stalled is repeated with a new server, up to MAX_ATTEMPTS attempts in all."""
        for _ in range(MAX_ATTEMPTS):
            site = self._site(trial, turn)
            fault, stalled = self._attempt(site, LAUNCHES[launch_name(trial)])
            if not stalled:
                break
        return Record(trial.key, fault, start_s=site.start_s or None)

    def _attempt(self, site: Site, launch: SettingLaunch) -> tuple[Fault | None, bool]:
        """Run the launch once. Returns the fault, if any, and whether the machine stalled."""
        try:
            self._observe(site, launch)
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

    def _observe(self, site: Site, launch: SettingLaunch) -> None:
        with site.start():
            observations = launch.observe(site)
            site.turn.raise_if_ended()  # a server that the lab has killed shows nothing
        run_store.write_synced(site.directory / SEEN, observations)
