"""What `workerlab ladder` shows: what each thing is worth that makes a web app fast.

The cells are ordinary ones, of any sweep, on a server that is named like its configuration. Columns
that say least stand on the right: a narrow terminal hides them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from workerlab.analysis.core_wait import worst
from workerlab.analysis.facts import Facts, TrialData, facts_of
from workerlab.experiments.document import Field, Getter, table
from workerlab.experiments.ladder.configurations import Configuration, from_details
from workerlab.experiments.ladder.findings import findings
from workerlab.experiments.ladder.limits import SPENT, levels, limit, other_code_s
from workerlab.experiments.ladder.monitor import monitor
from workerlab.experiments.ladder.steps import ONE_USER, USUAL_USERS, Ladder, Load, Step, ladder
from workerlab.experiments.reading import Known, notes_of, report_of
from workerlab.model import Chart, Document, Finding, Report, Series, Table
from workerlab.numbers.intervals import TRIALS
from workerlab.run_store import Run

SHORT_S = 0.001  # what is shorter is drawn in microseconds


def document(run: Run) -> Document:
    trials: Known = {}
    report, users = report_of(run, known=trials), run.plan.details.get(USUAL_USERS)
    return study(report, from_details(run.plan), notes_of(run), users, trials)


def study(
    report: Report,
    configurations: Sequence[Configuration],
    notes: Sequence[Finding] = (),
    usual_users: int | None = None,
    trials: Mapping[str, TrialData] = {},
) -> Document:
    """`report`: of the run's cells; `configurations`, `notes`, `usual_users`: of its plan;
    `trials`: its trials, which are shown over time."""
    steps = ladder(report.cells, configurations, report.environment, usual_users)
    loads = tuple(load.text for load in steps.steps if steps.usual(load.users))
    usual = [cell for cell in report.cells if steps.usual(cell.trial.cell.concurrency)]
    return Document(
        run=report.run,
        kind="ladder",
        title=Finding("ladder.title", {"loads": loads}) if loads else Finding("ladder.title.empty"),
        environment=report.environment,
        findings=findings(steps),
        tables=tuple(_tables(steps)),
        charts=(*_charts(steps), *_over_time(steps, trials)),
        notes=(*notes, *_notes(report, steps)),
        valid=bool(usual) and all(cell.verdict != "invalid" for cell in usual),
    )


def _notes(report: Report, ladder: Ladder) -> Iterable[Finding]:
    """What was left out, is invalid, has too few trials, or was disturbed."""
    for one in ladder.configurations:
        if one.why_not:
            yield Finding("ladder.left_out", {"configuration": one.text, "why": one.why_not})
    by_name = {one.name: one.text for one in ladder.configurations}
    for cell in report.cells:
        if cell.verdict == "invalid":
            asked = cell.trial.cell
            values = {
                "configuration": by_name[asked.server.name],
                "load": Load(asked.tool, asked.concurrency).text,
                "trial": cell.trial.number,
                "reason": cell.reason,
            }
            yield Finding("ladder.invalid", values, (cell.trial.key,))
    steps = [step for steps in ladder.steps.values() for step in steps]
    fewest = min((len(step.cells) for step in steps), default=0)
    if 0 < fewest < TRIALS:
        yield Finding("ladder.few_trials", {"needed": TRIALS, "fewest": fewest})
    if disturbed := [step for step in steps if step.disturbance is not None]:
        noise = worst(cell.core_wait for step in disturbed for cell in step.cells)
        values = {"times": len(disturbed), "steps": len(steps), "noise": noise}
        yield Finding("ladder.disturbed", values)


# --- tables -------------------------------------------------------------------------------------


def _mean(field: str) -> Getter:
    return lambda step: step.mean(field)


def _metric(field: str, name: str) -> Getter:
    return lambda step: step.metric(field, name)


def _ratio(end: str) -> Getter:
    return lambda step: getattr(step.ratio, end) if step.ratio else None


def _requests(step: Step) -> int | None:
    return sum(cell.app_metrics.requests for cell in step.cells if cell.app_metrics) or None


def _other_s(step: Step) -> float | None:
    """In the app and in nothing that it times: all of it, where it times nothing."""
    other_s = other_code_s(step)
    return step.mean("breakdown.service_s") if other_s is None else other_s


REMOVED: Field = ("removed", "text", lambda step: step.removed)
RATES: tuple[Field, ...] = (
    REMOVED,
    ("throughput_rps", "number", lambda step: step.rps),
    ("response_p50_s", "seconds", _mean("response.p50")),
    ("response_p95_s", "seconds", _mean("response.p95")),
    ("failed", "count", lambda step: sum(cell.failed or 0 for cell in step.cells)),
    ("factor", "number", _ratio("value")),
    ("factor_low", "number", _ratio("low")),
    ("factor_high", "number", _ratio("high")),
)
LAUNCHES: Field = ("launches", "count", lambda step: len(step.cells))
TRIPS: tuple[Field, ...] = (
    REMOVED,
    ("redis_trips", "number", _metric("per_request", "redis_trips")),
    ("storage_trips", "number", _metric("per_request", "storage_trips")),
    ("local_hit_ratio", "percent", _metric("hit_ratio", "local")),
    ("redis_hit_ratio", "percent", _metric("hit_ratio", "redis")),
    ("counted_requests", "count", _requests),
)
CORES: tuple[Field, ...] = (
    REMOVED,
    ("app_cores", "number", _mean("usage.server_cores")),
    ("storage_cores", "number", _metric("cores", "storage")),
    ("cache_cores", "number", _metric("cores", "cache")),
    ("tool_cores", "number", _mean("usage.generator_cores")),
    ("host_busy", "percent", _mean("usage.host_busy")),
    ("app_cpu_per_request_s", "seconds", lambda step: step.app_cpu_s),
)
# Where a request is, from the client's first step to its last
PARTS: tuple[tuple[str, Getter], ...] = (
    *((name, _mean(f"breakdown.{name}_s")) for name in ("connect", "accept_queue", "in_worker")),
    *((name, _metric("spent_s", name)) for name in SPENT),
    ("other", _other_s),
    *((name, _mean(f"breakdown.{name}_s")) for name in ("transfer", "unattributed")),
)


def _tables(ladder: Ladder) -> Iterable[Table]:
    """In the order of the questions: throughput, round trips, CPU, where the time goes."""
    many, one = list(ladder.many_users.values()), ladder.one_user
    limits: Field = ("limit", "text", lambda step: limit(step, ladder.cores)[0])

    def rates(steps: Sequence[Step]) -> Sequence[Field]:
        """A single user waits for nobody's limit."""
        return (*RATES, *([limits] if steps[0].load.users > ONE_USER else []), LAUNCHES)

    yield _settings(ladder)
    yield from _each("rates", [*many, one], rates)
    if more := [level.step for level in levels(ladder) if level.step]:
        users: Field = ("users", "count", lambda step: step.load.users)
        title = Finding("ladder.table.users", {"load": more[0].load.text})
        yield table(title, (users, *RATES[1:5], limits, LAUNCHES), more)
    yield from _each("trips", [ladder.conclusive or one], lambda _: TRIPS)
    yield from _each("cores", many, lambda _: CORES)
    yield from _each("times", [one, ladder.conclusive], _times)


def _each(
    name: str, loads: Sequence[Sequence[Step]], fields: Callable[[Sequence[Step]], Sequence[Field]]
) -> Iterable[Table]:
    """A table for each load. What is explained below the first holds for the others."""
    code = f"ladder.table.{name}"
    note: Finding | None = Finding(f"{code}.note")
    for steps in filter(None, loads):
        yield table(Finding(code, {"load": steps[0].load.text}), fields(steps), steps, note)
        note = None


def _settings(ladder: Ladder) -> Table:
    """Every configuration, with those that could not be run."""
    fields: list[Field] = [
        ("removed", "text", lambda one: ladder.removed.get(one.name, "")),
        ("settings", "text", lambda one: one.text),
    ]
    if any(one.why_not for one in ladder.configurations):
        fields.append(("why_not", "text", lambda one: one.why_not or None))
    note = Finding("ladder.table.steps.note")
    return table(Finding("ladder.table.steps"), fields, ladder.configurations, note)


def _times(steps: Sequence[Step]) -> Sequence[Field]:
    response: Field = ("response_s", "seconds", _mean("breakdown.response_s"))
    parts: list[Field] = [
        (f"{name}_s", "seconds", value) for name, value in PARTS if any(map(value, steps))
    ]
    return (REMOVED, response, *parts)


# --- charts -------------------------------------------------------------------------------------


def _charts(ladder: Ladder) -> Iterable[Chart]:
    """Throughput, a group of bars per step, a bar per tool; where the time goes; round trips."""
    places = {name: place for place, name in enumerate(ladder.removed)}
    rates = [
        Series(load.text, tuple((places[step.configuration.name], step.rps) for step in steps))
        for load, steps in (ladder.many_users or ladder.steps).items()
    ]
    yield Chart(
        Finding("ladder.chart.rates"), Finding("ladder.chart.removed"),
        Finding("ladder.chart.rps"), tuple(rates), form="bars",
        names=tuple(ladder.removed.values()), note=Finding("ladder.table.steps.note"),
    )  # fmt: skip
    for steps in filter(None, (ladder.one_user, ladder.conclusive)):
        longest_s = max(step.load.users / step.rps for step in steps)
        unit, per_s = ("ms", 1e3) if longest_s >= SHORT_S else ("us", 1e6)
        title = Finding("ladder.table.times", {"load": steps[0].load.text})
        axis = Finding("ladder.chart.time", {"unit": unit})
        # What is below 0 cannot be stacked
        parts = [(name, [one for one in _points(steps, value, per_s) if one[1] > 0])
                 for name, value in PARTS]  # fmt: skip
        parts = [(name, points) for name, points in parts if points]
        yield _stacked(title, axis, parts, steps, "ladder.chart.times.note")
    if steps := ladder.conclusive:
        kinds = ("redis", "storage")
        trips = [(kind, _points(steps, _metric("per_request", f"{kind}_trips"))) for kind in kinds]
        title, axis = Finding("ladder.chart.trips"), Finding("ladder.chart.trips.axis")
        yield _stacked(title, axis, trips, steps, "ladder.chart.trips.note")


def _over_time(ladder: Ladder, trials: Mapping[str, TrialData]) -> Iterable[Chart]:
    """The first launch of each step, and of the level that breaks."""
    broken = [level.step for level in levels(ladder) if level.why and level.step]
    for step in (*ladder.conclusive, *broken):
        data = trials.get(step.cells[0].trial.key)
        if data and isinstance(facts := facts_of(data), Facts):
            yield from monitor(step, facts)


Points = Sequence[tuple[float, float]]


def _stacked(
    title: Finding, axis: Finding, parts: Sequence[tuple[str, Points]],
    steps: Sequence[Step], note: str,
) -> Chart:  # fmt: skip
    return Chart(
        title, Finding("ladder.chart.removed"), axis,
        tuple(Series(Finding(f"part.{name}"), tuple(points)) for name, points in parts),
        form="stacked", names=tuple(step.removed for step in steps), note=Finding(note),
    )  # fmt: skip


def _points(steps: Sequence[Step], value: Getter, times: float = 1.0) -> Points:
    """Those that are known, by the step's place."""
    known = [(place, value(step)) for place, step in enumerate(steps)]
    return [(place, times * y) for place, y in known if isinstance(y, int | float)]
