"""`workerlab advise`: from an app and a target to a gunicorn.conf.py, with its proof.

    needs      a short closed load per worker class: what requests need of it
    stacks     another one, where something held up its event loop: which line
    forecast   every candidate, simulated: at the rate asked for, and up to which rate it will do
    search     launches of those near the best, one by one, at arrivals that all share

The plan grows by a cell at a time (`search`), until nothing more is to be found out or the budget
is used up.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from harness import codec, run_store, slo
from harness.analysis.load_tool import ceilings
from harness.experiments.advise.candidates import BACKLOG, CONNECTIONS, Limits, candidates
from harness.experiments.advise.forecast import Question, forecast
from harness.experiments.advise.search import Next, search_of
from harness.experiments.advise.study import Asked, Study, study_of
from harness.experiments.execution import Predict, progress
from harness.experiments.planning import apps_of, gunicorn_plan
from harness.experiments.runner import Setup
from harness.mix import asked as asked_mix
from harness.model import App, Cell, EnvironmentProblem, Plan, Rate, Server, Trial, UsageError
from harness.server import preflight
from harness.server.worker_classes import CLASSES, class_named
from harness.terminal.console import tell
from harness.terminal.progress import Progress, Within

RESUMES_WITH = ("budget",)
TOOL = "fast"  # the one that times every request, at arrivals of a schedule
BUDGET_S = 300.0
NEEDS_S, NEEDS_WORKERS, NEEDS_MORE = 5.0, 2, 2  # seconds, workers, connections beyond slots
CONNECTIONS_LEAST = 64  # of an open load; more where its rate needs them
# Seconds of a launch: until enough requests lie beyond the quantile that is promised
SHORTEST_S, LONGEST_S, BEYOND = 10.0, 60.0, 20
QUANTILES = {"p50": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}  # metric: the part beyond it
AROUND_S = 2.0  # lone requests, stop, reading
FORECAST_SEED = 0  # of arrivals that no launch has: theirs begin with 1


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    interpreter = None
    if plan is None:
        plan, interpreter = plan_of(options)
    budget_s = options.budget or Asked.of(plan).budget_s
    growth = Growth(budget_s, resumed=interpreter is None)
    yield Setup(plan, interpreter, label="advise", display=growth.display, grow=growth.grow)


def finish(directory: Path) -> None:
    """The gunicorn.conf.py, where one is recommended; the document says whether it is there."""
    from harness.experiments.advise.document import write_file

    try:
        write_file(run_store.load(directory))
    except OSError as error:
        tell(f"gunicorn.conf.py cannot be written: {error}")


def plan_of(options: argparse.Namespace) -> tuple[Plan, preflight.Interpreter]:
    """The needs of each class, which the search starts from. Raises UsageError or
    EnvironmentProblem; starts nothing but looks."""
    if options.rate is None or options.slo is None:
        raise UsageError(
            "advise needs --rate and --slo, such as: workerlab advise --app shop.wsgi:app"
            " --rate 50 --slo 'p95<300ms,errors<0.1%'"
        )
    try:
        target = slo.canonical(options.slo)
    except slo.Mistake as mistake:
        raise UsageError(f"--slo: {mistake}") from None
    check_write(options.write)
    python, chdir = options.python or sys.executable, Path(options.chdir or ".")
    names = options.classes or CLASSES
    found = preflight.interpreter(python, chdir, options.config, names)
    lacking = {name: why for name in names if (why := found.lacks(name))}
    able = [name for name in names if name not in lacking]
    if not able:
        raise EnvironmentProblem("; ".join(f"{name}: {why}" for name, why in lacking.items()))
    mix, notes = asked_mix(options)
    wsgi, asgi = apps_of(options, found, mix)
    apps = [(name, asgi if found.serves_asgi(name) else wsgi) for name in able]
    asked = Asked(
        slo=target,
        rate_rps=options.rate,
        budget_s=options.budget or BUDGET_S,
        limits=limits_of(options),
        left_out=lacking,
        config_text=Path(options.config).read_text() if options.config else "",
        config_sets=tuple(found.settings),
        write=options.write or "",
    )
    more = {} if options.seed is None else {"seed": options.seed}
    plan = gunicorn_plan(
        "advise",
        (needs_cell(name, app) for name, app in apps),
        found,
        config=options.config,
        notes=notes,
        arrivals=options.arrivals or "poisson",
        details=codec.plain(asked),
        **more,
    )
    return plan, found


def check_write(path: str | None) -> None:
    """Raises UsageError for a file that is there: nobody's settings are overwritten."""
    if path is None:
        return
    place = Path(path).expanduser()
    if place.exists():
        raise UsageError(f"--write: {path} exists: name another file, or move it away")
    if not place.absolute().parent.is_dir():
        raise UsageError(f"--write: there is no directory {place.absolute().parent}")


def limits_of(options: argparse.Namespace) -> Limits:
    return Limits(
        cores=options.cores or float(preflight.cores() or 1),
        memory_bytes=options.memory,
        max_workers=options.max_workers,
        max_in_flight=options.max_in_flight,
        thread_safe=not options.not_thread_safe,
    )


def needs_cell(name: str, app: App) -> Cell:
    """A few connections more than slots: then somebody always waits for a slot (`analysis/needs`).
    Two workers show what they share of memory."""
    server = Server(name, NEEDS_WORKERS, 1, BACKLOG, CONNECTIONS, app=app)
    connections = NEEDS_WORKERS + NEEDS_MORE
    return Cell(server, TOOL, connections, inside="needs", duration_s=NEEDS_S)


def stacks_cells(needs: Sequence[Cell], study: Study) -> Iterator[Cell]:
    """The same load once more, to see which line holds up the event loop: of each app under one of
    the classes that gave an alarm, for its lines are the same under the others."""
    alarmed = {*study.blocked, *study.alarmed}
    apps = {
        one.server.app: one
        for one in sorted(needs, key=lambda one: one.server.worker_class in study.blocked)
        if one.server.worker_class in alarmed
    }
    for cell in apps.values():
        yield replace(cell, inside="stacks")


def launch_s(rps: float, target: str) -> float:
    """How long requests arrive in a launch."""
    parts = [QUANTILES[term.metric] for term in slo.parse(target) if term.metric in QUANTILES]
    requests = BEYOND / min(parts, default=0.05)
    return float(min(max(SHORTEST_S, round(requests / rps)), LONGEST_S))


class Growth:
    """Plans what comes next, by what is on file, as long as the budget lasts."""

    def __init__(self, budget_s: float, *, resumed: bool) -> None:
        self._budget_s = budget_s
        self._began_s = time.monotonic()
        self._before_s: float | None = None if resumed else 0.0  # used before this process began

    def display(
        self, directory: Path, plan: Plan, todo: Sequence[Trial], predict: Predict
    ) -> Progress:
        if "expected" not in plan.details:
            return progress(directory, plan, todo, predict)
        return Within(todo, predict, self._left_s)

    def grow(self, directory: Path, plan: Plan) -> Plan | None:
        run = run_store.load(directory)
        study = study_of(run)
        if self._before_s is None:
            self._before_s = max(0.0, study.used_s - (time.monotonic() - self._began_s))
        if not study.needs:
            return None
        foreseen = plan
        if "expected" not in plan.details:
            foreseen = with_forecast(plan, study, run.environment)
            looks = tuple(stacks_cells(plan.cells, study))
            if looks:
                return replace(foreseen, cells=(*foreseen.cells, *looks))
        following = search_of(study, foreseen).next()
        if following is not None:
            cell = launch_cell(following, study.asked.slo)
            if self._needs_s(study, cell) <= self._left_s():
                return replace(foreseen, cells=(*foreseen.cells, cell))
        return None if foreseen is plan else foreseen

    def _left_s(self) -> float:
        return self._budget_s - (self._before_s or 0.0) - (time.monotonic() - self._began_s)

    def _needs_s(self, study: Study, cell: Cell) -> float:
        """What a launch takes: its load, the boot of the slowest class, and what is beside it."""
        boots = [needs.start_s or 0.0 for needs in study.needs.values()]
        return (cell.duration_s or 0.0) + max(boots, default=1.0) + AROUND_S


def with_forecast(plan: Plan, study: Study, environment: Mapping[str, object]) -> Plan:
    """What is expected of every candidate, kept with the plan."""
    asked = study.asked
    apps = {cell.server.worker_class: cell.server.app for cell in plan.cells}
    servers = candidates(((name, apps[name]) for name in study.needs), asked.limits)
    tell(f"simulating {len(servers)} candidates")
    question = Question(
        terms=slo.parse(asked.slo),
        rate_rps=asked.rate_rps,
        arrivals=plan.arrivals,
        seed=FORECAST_SEED,
        cores=asked.limits.cores,
        max_in_flight=asked.limits.max_in_flight,
        tool_s=tool_s(environment),
    )
    found = forecast(servers, study.needs, question)
    details = {"expected": codec.plain(found), "servers": codec.plain(servers)}
    return replace(plan, details={**plan.details, **details})


def tool_s(environment: Mapping[str, object]) -> float:
    """CPU seconds that the load tool takes per request: at its ceiling it has a core for itself."""
    known = [one.rps for one in ceilings(environment) if one.tool == TOOL and one.rps > 0]
    return 1 / max(known) if known else 0.0


def launch_cell(following: Next, target: str) -> Cell:
    server, rps = following.server, following.rps
    slots = class_named(server.worker_class).slots_of(server) or CONNECTIONS_LEAST
    connections = max(CONNECTIONS_LEAST, min(slots, 2 * CONNECTIONS_LEAST))
    return Cell(
        *(server, TOOL, connections),
        rate=Rate(rps=rps),
        schedule=following.schedule,
        duration_s=launch_s(rps, target),
    )
