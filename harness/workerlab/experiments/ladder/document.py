"""The document of `workerlab ladder`: what each cache, storage and setting contributes.

The cells are ordinary sweep cells; each server is named after its configuration. The least
important columns are on the right, where a narrow terminal hides them.

Further charts show one launch of each step over time: responses, cores, memory and network bytes.
The kernel counts network bytes by interface, not by process, so loopback traffic combines load
tool, storage and cache. A rate is the growth of a counter between two samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise

from workerlab.analysis.diagnosis.cpu import Disturbance, worst_disturbance
from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.samples import NS
from workerlab.analysis.trials import mean_of
from workerlab.experiments.ladder.findings import findings
from workerlab.experiments.ladder.limits import APP_PARTS, CORES, levels, limit, other_code_s
from workerlab.experiments.ladder.steps import (
    ONE_USER,
    USUAL_USERS,
    Configuration,
    ConfigurationStep,
    Ladder,
    Steps,
    UserLoad,
    from_details,
    ladder,
)
from workerlab.experiments.reading import notes_of, report_of, trial_data
from workerlab.finding import Finding, Note
from workerlab.model.evidence import ProcessSample, ServiceSample
from workerlab.model.result import Chart, ChartSeries, Column, Document, Invalid, Report, Table
from workerlab.numbers.intervals import TRIALS
from workerlab.numbers.units import value_at
from workerlab.report.values import PART_LOOKS, curves, mean_column, table
from workerlab.report.values import PARTS as PART_NAMES
from workerlab.run_store import Run

RATE_POINTS = 20  # samples of the response count from which the rate is computed
COUNTED_TWICE = {"lo in", "lo0 in"}  # loopback receives what it sends
AXES = {"responses": "requests/s", "cores": "cores", "memory": "MB", "network": "MB/s"}
OVER_TIME_NOTE = (
    "One launch. Memory: a page shared by processes counts in each. Network: by interface, because"
    " the kernel does not count by process; loopback carries the traffic of load tool, storage,"
    " cache and any other program that uses it."
)

Samples = Sequence[tuple[int, float | None]]  # CLOCK_MONOTONIC ns


def launch_charts(step: ConfigurationStep, facts: Facts) -> Iterator[Chart]:
    """Charts over time of one launch of the step. `facts`: those of that launch."""
    ends_ns = sorted(span.end_ns for span in facts.finished if span.end_ns is not None)
    samples = facts.data.observations.processes
    interfaces = sorted({name for sample in samples for name in sample.network_bytes})
    samples_by_kind: dict[str, dict[str, Samples]] = {
        "responses": {"app": list(zip(ends_ns, count()))[:: max(1, len(ends_ns) // RATE_POINTS)]},
        "cores": component_samples(step, facts, "cpu_s"),
        "memory": component_samples(step, facts, "rss_bytes"),
        "network": {
            name: [(sample.at_ns, sample.network_bytes.get(name)) for sample in samples]
            for name in interfaces
            if name not in COUNTED_TWICE
        },
    }
    for kind, samples_by_name in samples_by_kind.items():
        series = [
            ChartSeries(name, line)
            for name, curve in samples_by_name.items()
            for line in [points_over_time(curve, facts, kind)]
            if any(y for _, y in line)
        ]
        if series:
            yield Chart(
                title=f"Over time: {kind}; {step.removed} removed, {step.load.text}",
                x_title="seconds",
                y_title=AXES[kind],
                series=tuple(series),
                note=OVER_TIME_NOTE,
            )


def component_samples(step: ConfigurationStep, facts: Facts, field: str) -> dict[str, Samples]:
    """Samples by component. `field`: `cpu_s` or `rss_bytes`."""
    observations, configuration = facts.data.observations, step.configuration
    sources: Mapping[str, tuple[Sequence[ProcessSample | ServiceSample], str]] = {
        "app": (observations.processes, f"server_{field}"),
        step.load.tool: (observations.processes, f"tool_{field}"),
        configuration.service(configuration.storage): (observations.services, f"{field}.storage"),
        configuration.service(configuration.cache): (observations.services, f"{field}.cache"),
    }
    return {
        name: [(sample.at_ns, value_at(sample, path)) for sample in samples]
        for name, (samples, path) in sources.items()
    }


def points_over_time(samples: Samples, facts: Facts, kind: str) -> tuple[tuple[float, float], ...]:
    """(seconds since the load began, value or rate in the unit of the axis)."""
    started_ns, unit = facts.started_ns, 1e6 if kind in ("memory", "network") else 1.0
    points = [
        ((at_ns - started_ns) / NS, value / unit)
        for at_ns, value in samples
        if value is not None and started_ns <= at_ns <= facts.ended_ns
    ]
    if kind == "memory":
        return tuple(points)
    return tuple(  # no rate where a sum falls because a process ended
        (at_s, (value - before) / (at_s - before_s))
        for (before_s, before), (at_s, value) in pairwise(points)
        if at_s > before_s and value >= before
    )


QUESTION = "What makes a real web app fast?"
CUMULATIVE_NOTE = "Each step removes one more thing than the step before."
MIN_MS_AXIS_S = 0.001  # if all times are shorter, the axis is in microseconds

Getter = Callable[[ConfigurationStep], float | None]

# --- columns ------------------------------------------------------------------------------------

REMOVED = Column("removed", "text")
RATES = (
    Column(
        "throughput_rps",
        heading="req/s",
        meaning="geometric mean of the trials",
        value="rps",
    ),
    Column("response_p50_s", "seconds", heading="p50", value=mean_of("response.p50")),
    Column("response_p95_s", "seconds", heading="p95", value=mean_of("response.p95")),
    Column("failed", "count", value=lambda step: step.total("failed") or 0),
)
INTERVAL = "95 % confidence interval of the factor, across fresh launches of the server"
FACTORS = (
    Column(
        "factor",
        meaning="requests/s divided by those of the previous step",
        value="change.value",
    ),
    Column("factor_low", heading="from", meaning=INTERVAL, value="change.low"),
    Column("factor_high", heading="to", meaning=INTERVAL, value="change.high"),
)
LAUNCHES = Column("launches", "count", value=lambda step: len(step.valid))
TRIPS_BASIS = "round trips per request, counted in the app's workers during the steady part"
LOOKUPS_BASIS = "share of the lookups in the cache, counted the same way"
TRIPS = (
    REMOVED,
    mean_column("app_metrics.per_request.redis_trips", heading="Redis trips", meaning=TRIPS_BASIS),
    mean_column("app_metrics.per_request.storage_trips", meaning=TRIPS_BASIS),
    Column(
        "local_hit_ratio",
        "percent",
        heading="in-process hits",
        meaning=LOOKUPS_BASIS,
        value=mean_of("app_metrics.hit_ratio.local"),
    ),
    Column(
        "redis_hit_ratio",
        "percent",
        heading="Redis hits",
        meaning=LOOKUPS_BASIS,
        value=mean_of("app_metrics.hit_ratio.redis"),
    ),
    Column(
        "counted_requests",
        "count",
        heading="requests counted",
        value=lambda step: step.total("app_metrics.requests") or None,
    ),
)
CPU_SECONDS = "CPU seconds per second"
CORES_NOTE = "Missing: the lab did not start this component, or it is part of the app."
CORE_COLUMNS = (
    REMOVED,
    *(
        Column(
            f"{component.removeprefix('load ')}_cores",
            heading=component,
            meaning=CPU_SECONDS,
            value=mean_of(path),
        )
        for component, path in CORES.items()
    ),
    mean_column("usage.host_busy", "percent"),
    Column(
        "app_cpu_per_request_s",
        "seconds",
        heading="app CPU per request",
        value="app_cpu_s",
    ),
)


def time_in_other_code_s(step: ConfigurationStep) -> float | None:
    """Service time that the app does not time itself; all of it if the app times nothing."""
    other_s = other_code_s(step)
    return step.mean("breakdown.service_s") if other_s is None else other_s


# Parts of a response time, in the order in which a request passes through them
PARTS: Mapping[str, Getter] = {
    **{name: mean_of(f"breakdown.{name}_s") for name in ("connect", "accept_queue", "in_worker")},
    **{name: mean_of(f"app_metrics.spent_s.{name}") for name in APP_PARTS},
    "other": time_in_other_code_s,
    **{name: mean_of(f"breakdown.{name}_s") for name in ("transfer", "unattributed")},
}
# The headings that differ from the name of the part
HEADINGS = {"redis": "Redis", "other": "other code"}
COLOURS = {  # of parts that only the blog has
    "other": "service",
    "template": "class-3",
    "pool": "class-4",
    "redis": "class-5",
    "storage": "class-6",
    "serialise": "class-7",
}
TIMES = "Where the time goes"
BEFORE_APP = "before the app was called"
ROUND_TRIPS = "round trips to it"
MEANINGS = {
    "connect": BEFORE_APP,
    "accept_queue": BEFORE_APP,
    "in_worker": BEFORE_APP,
    "pool": "waiting for a free connection to the storage",
    "storage": ROUND_TRIPS,
    "redis": ROUND_TRIPS,
    "other": "in the app, outside the other parts",
    "unattributed": "covered by no source; on keep-alive connections mostly requests that a busy"
    " worker has read but not started, and responses that the load tool has not read",
}
TIMES_NOTE = (
    "Means over the steady part. In asynchronous code a part includes the time that the worker"
    " spent on other requests meanwhile. Below 0: the sources overlap."
)


def columns_of_times(steps: Steps) -> tuple[Column, ...]:
    """A column for each part that at least one step has."""
    parts = (
        Column(
            f"{name}_s",
            "seconds",
            heading=HEADINGS.get(name, ""),
            meaning=MEANINGS.get(name, ""),
            value=value,
        )
        for name, value in PARTS.items()
        if any(map(value, steps))
    )
    return (
        REMOVED,
        mean_column("breakdown.response_s", "seconds", heading="response"),
        *parts,
    )


# --- the document -------------------------------------------------------------------------------


def document(run: Run) -> Document:
    trials = {data.trial.key: data for data in trial_data(run)}
    report, users = report_of(run, trials.values()), run.plan.details.get(USUAL_USERS)
    return study(report, from_details(run.plan), notes_of(run), users, trials)


def study(
    report: Report,
    configurations: Sequence[Configuration],
    notes: Sequence[Finding] = (),
    usual_users: int | None = None,
    trials: Mapping[str, TrialData] = {},
) -> Document:
    """The document of a run. `configurations`, `notes`, `usual_users`: from its plan. `trials`: by
    key, for the charts over time."""
    steps = ladder(report.cells, configurations, report.environment, usual_users)
    usual_cells = [cell for cell in report.cells if steps.is_usual(cell.trial.cell.concurrency)]
    return Document(
        run=report.run,
        kind="ladder",
        title=title(steps),
        environment=report.environment,
        findings=findings(steps),
        tables=tuple(tables(steps)),
        charts=(*charts(steps), *charts_over_time(steps, trials)),
        notes=(*notes, *notes_of_ladder(steps)),
        valid=bool(usual_cells) and not any(isinstance(cell, Invalid) for cell in usual_cells),
    )


def title(ladder: Ladder) -> str:
    loads = ", ".join(load.text for load in ladder.steps if ladder.is_usual(load.users))
    text = f"{QUESTION} A blog from which each step removes one thing"
    return f"{text}; {loads}." if loads else f"{text}: no trial has been measured."


class InvalidStepTrial(Finding):
    """{configuration}, {load}, trial {trial}: {reason}"""

    configuration: str
    load: str
    trial: int
    reason: str | Finding

    prominence = "notes"


class StepsWithoutInterval(Finding):
    """The interval of a factor needs at least {needed:# trial} of each step (--trials {needed});
    one step has {fewest}."""

    needed: int
    fewest: int


class StepsDisturbed(Finding):
    """{disturbed} of {steps:# step} had to wait for cores used by other programs or machines: such
    steps are slower, and their trials vary more. The worst: {worst}"""

    disturbed: int
    steps: int
    worst: Disturbance | None


def notes_of_ladder(ladder: Ladder) -> Iterator[Finding]:
    """Notes on steps left out, invalid trials, missing intervals and disturbed steps."""
    for configuration in ladder.configurations:
        if configuration.why_not:
            yield Note(f"Left out: {configuration.text}: {configuration.why_not}")
    texts = {configuration.name: configuration.text for configuration in ladder.configurations}
    for result in ladder.cells:
        cell = result.trial.cell
        if isinstance(result, Invalid):
            yield InvalidStepTrial(
                configuration=texts[cell.server.name],
                load=UserLoad(cell.tool, cell.concurrency).text,
                trial=result.trial.number,
                reason=result.reason,
            )
    steps = [step for steps in ladder.steps.values() for step in steps]
    fewest = min((len(step.valid) for step in steps), default=0)
    if 0 < fewest < TRIALS:
        yield StepsWithoutInterval(needed=TRIALS, fewest=fewest)
    if disturbed := [step for step in steps if step.disturbance is not None]:
        waits = (result.core_wait for step in disturbed for result in step.valid)
        yield StepsDisturbed(len(disturbed), len(steps), worst_disturbance(waits))


# --- tables -------------------------------------------------------------------------------------


def tables(ladder: Ladder) -> Iterator[Table]:
    """The tables, in the order of the questions: throughput, round trips, cores, where the time
    goes."""
    many_users, one_user = list(ladder.many_users.values()), ladder.one_user
    limits = Column("limit", "text", value=lambda step: limit(step, ladder.cores).name)
    yield table_of_settings(ladder)
    for steps in filter(None, (*many_users, one_user)):
        # A single user is far below any limit
        limit_columns = [limits] if steps[0].load.users > ONE_USER else []
        columns = (REMOVED, *RATES, *FACTORS, *limit_columns, LAUNCHES)
        yield table(load_title("Throughput by step", steps), columns, steps)
    if level_steps := [level.step for level in levels(ladder) if level.step]:
        users = Column("users", "count", value="load.users")
        more_title = f"The first step with more users ({level_steps[0].load.tool})"
        yield table(more_title, (users, *RATES, limits, LAUNCHES), level_steps)
    if steps := ladder.conclusive or one_user:
        yield table(load_title("Round trips", steps), TRIPS, steps)
    # One note, below the first table, explains all of them
    for index, steps in enumerate(many_users):
        yield table(load_title("Cores", steps), CORE_COLUMNS, steps, "" if index else CORES_NOTE)
    for index, steps in enumerate(filter(None, (one_user, ladder.conclusive))):
        note = "" if index else TIMES_NOTE
        yield table(load_title(TIMES, steps), columns_of_times(steps), steps, note)


def load_title(subject: str, steps: Steps) -> str:
    return f"{subject}, {steps[0].load.text}"


def table_of_settings(ladder: Ladder) -> Table:
    """Every configuration, including those that could not run."""
    columns = [
        Column("removed", "text", value=lambda step: ladder.removed.get(step.name, "")),
        Column("settings", "text", value="text"),
    ]
    if any(configuration.why_not for configuration in ladder.configurations):
        why_not = Column(
            "why_not",
            "text",
            heading="reason left out",
            value=lambda configuration: configuration.why_not or None,
        )
        columns.append(why_not)
    return table("The steps", columns, ladder.configurations, CUMULATIVE_NOTE)


# --- charts -------------------------------------------------------------------------------------

Points = Sequence[tuple[float, float]]


def charts(ladder: Ladder) -> Iterator[Chart]:
    """Charts of throughput (a group of bars per step, a bar per tool), of where the time goes, and
    of round trips."""
    positions = {name: index for index, name in enumerate(ladder.removed)}
    yield Chart(
        title="Requests per second",
        x_title="removed",
        y_title="requests/s",
        series=curves(
            (load.text, positions[step.configuration.name], step.rps)
            for load, steps in (ladder.many_users or ladder.steps).items()
            for step in steps
        ),
        form="bars",
        names=tuple(ladder.removed.values()),
        note=CUMULATIVE_NOTE,
    )
    for steps in filter(None, (ladder.one_user, ladder.conclusive)):
        yield chart_of_times(steps)
    if steps := ladder.conclusive:
        trips = {
            kind: points_of(steps, mean_of(f"app_metrics.per_request.{kind}_trips"))
            for kind in ("redis", "storage")
        }
        yield stacked_chart(
            "Round trips per request",
            "round trips",
            trips,
            steps,
            note="Counted in the app's workers; a hit in their in-process cache costs none.",
        )


def chart_of_times(steps: Steps) -> Chart:
    longest_s = max(step.load.users / step.rps for step in steps)  # Little's law
    unit, per_s = ("ms", 1e3) if longest_s >= MIN_MS_AXIS_S else ("us", 1e6)
    # Negative values cannot be stacked
    parts = {
        name: [(index, y) for index, y in points_of(steps, value, per_s) if y > 0]
        for name, value in PARTS.items()
    }
    return stacked_chart(
        load_title(TIMES, steps),
        f"{unit} per request",
        {name: points for name, points in parts.items() if points},
        steps,
        note="Means over the steady part. Negative values are not drawn.",
    )


def stacked_chart(
    chart_title: str, axis: str, parts: Mapping[str, Points], steps: Steps, *, note: str
) -> Chart:
    return Chart(
        title=chart_title,
        x_title="removed",
        y_title=axis,
        series=tuple(
            ChartSeries(
                PART_NAMES.get(name) or HEADINGS.get(name, name),
                tuple(points),
                look=PART_LOOKS.get(name) or (COLOURS[name], "circle"),
            )
            for name, points in parts.items()
        ),
        form="stacked",
        names=tuple(step.removed for step in steps),
        note=note,
    )


def points_of(steps: Steps, value: Getter, scale: float = 1.0) -> Points:
    """(index of the step, scaled value), where the value is known."""
    values = [(index, value(step)) for index, step in enumerate(steps)]
    return [(index, scale * y) for index, y in values if y is not None]


def charts_over_time(ladder: Ladder, trials: Mapping[str, TrialData]) -> Iterable[Chart]:
    """Charts of the first launch of each step and of the level that fails."""
    failed = [level.step for level in levels(ladder) if level.failure and level.step]
    for step in (*ladder.conclusive, *failed):
        data = trials.get(step.valid[0].trial.key)
        if data and isinstance(facts := data.facts, Facts):
            yield from launch_charts(step, facts)
