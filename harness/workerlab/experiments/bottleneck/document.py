"""The document of `workerlab bottleneck`: the conclusions, a table per factor, a chart, and the
phases of a load whose connections the server closes, each with its TCP states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mode

from msgspec.structs import replace

from workerlab.analysis.facts import Facts, TrialData, why_unusable
from workerlab.analysis.phases import PhaseOfLoad, phase_finding, phases_of
from workerlab.analysis.samples import NS
from workerlab.analysis.trials import (
    Trials,
    by_cell,
    has_throughput,
    mean_of,
    valid_results,
)
from workerlab.experiments.bottleneck.findings import Comparison, Comparisons, Factor, conclusions
from workerlab.experiments.reading import notes_of, report_of, trial_data
from workerlab.finding import Answer, Finding
from workerlab.model.plan import Cell
from workerlab.model.result import Chart, Column, Document, Invalid, Report, Table, TrialResult
from workerlab.notes import NotMeasured
from workerlab.numbers.units import counted
from workerlab.report.values import cores_of, curves, mean_column, table
from workerlab.run_store import Run

MID_LOAD_SHARE = 0.9  # of a load: later, connections close because the load ends


class PhasesAnswer(Answer):
    """The phases of the load whose connections the server closes."""

    question = "Which phases does a load go through if the server closes connections?"

    phases: tuple[PhaseOfLoad, ...]


class ClosedInMidLoad(PhasesAnswer):
    """{phases: } The server closes a connection after {requests} requests, which happens during the
    load from {at_s:duration} on[[: {users:# user} opened {opened:# connection}]]."""

    requests: int | None
    at_s: float
    users: int
    opened: int | None  # None if not counted


class NotClosedInMidLoad(PhasesAnswer):
    """Inconclusive: no connections were seen to close during the load.[[ {phases: }]]"""


def phases_answers(loads: Iterable[Facts]) -> list[PhasesAnswer]:
    """The phases of the first load during which connections closed, else of the first load; []
    without loads."""
    answers = [_answer(facts) for facts in loads]
    return sorted(answers, key=lambda answer: isinstance(answer, NotClosedInMidLoad))[:1]


def _answer(facts: Facts) -> PhasesAnswer:
    phases, measurement, counts = phases_of(facts), facts.measurement, facts.data.null
    begins_s = ((measurement.origin_ns or facts.started_ns) - facts.started_ns) / NS
    ends_s = begins_s + MID_LOAD_SHARE * measurement.duration_s
    churn = [phase for phase in phases if phase.name == "churn" and phase.start_s < ends_s]
    phase_findings = tuple(map(phase_finding, phases))
    if not churn:
        return NotClosedInMidLoad(phase_findings)
    null = facts.cell.server.null
    return ClosedInMidLoad(
        phases=phase_findings,
        requests=null.requests_per_connection if null else None,
        at_s=churn[0].start_s,
        users=facts.cell.concurrency,
        opened=counts.connections if counts else None,
    )


QUESTION = "Is it the server or the load generator? One factor at a time"
REPORTED = "response time as the generator reports it, mean of the trials"
IN_WORKERS = "as recorded by the workers, mean of the trials"
IN_CALLS = "per request, in socket calls; timed only with Locust"

FACTOR_ORDER = (Factor.TOOL, Factor.PROCESSES, Factor.USERS, Factor.THREADS, Factor.SERVERS)
NAMED_FACTORS = (Factor.PROCESSES, Factor.SERVERS, Factor.THREADS)  # in the chart
HEADINGS = {Factor.TOOL: "generator", Factor.PROCESSES: "proc."}


def throughput_of(trials: Trials) -> float | None:
    """The geometric mean over the trials; 0 if none had successful requests in its steady part."""
    return trials.throughput_rps or trials.mean("throughput_rps")


def mean_bytes(path: str) -> Callable[[Trials], int | None]:
    """The value of a column: the mean over the trials, rounded to whole bytes."""
    return lambda trials: None if (size := trials.mean(path)) is None else round(size)


RESPONSE_MEAN = Column(
    "response_mean_s", "seconds", heading="mean", meaning=REPORTED, value=mean_of("response.mean")
)
SERVICE_MEAN = Column(
    "service_mean_s",
    "seconds",
    heading="in the app",
    meaning=IN_WORKERS,
    value=mean_of("service.mean"),
)
RESULT_COLUMNS = (
    Column("trials", "count", value=lambda trials: sum(map(has_throughput, trials.valid)) or None),
    Column(
        "throughput_rps",
        heading="req/s",
        meaning="geometric mean of the trials",
        value=throughput_of,
    ),
    RESPONSE_MEAN,
    Column(
        "response_p95_s", "seconds", heading="p95", meaning=REPORTED, value=mean_of("response.p95")
    ),
    SERVICE_MEAN,
    Column("failed", "count", value=lambda trials: trials.total("failed")),
    Column("errors", "counts", heading="causes"),
    mean_column("achieved_concurrency", heading="in flight"),
    mean_column("usage.generator_cores"),
    mean_column("usage.server_cores"),
    mean_column("usage.host_busy", "percent"),
    Column("generator_bound", "text", heading="generator-bound"),
    Column("verdict", "text"),
)
COST_COLUMNS = (
    RESPONSE_MEAN,
    mean_column("usage.connect_calls_s", "seconds", heading="in connect", meaning=IN_CALLS),
    mean_column("usage.send_calls_s", "seconds", heading="in send", meaning=IN_CALLS),
    mean_column(
        "usage.receive_calls_s",
        "seconds",
        heading="in receive",
        meaning=f"{IN_CALLS}; includes waiting for the server and for the user's turn in Locust",
    ),
    SERVICE_MEAN,
    mean_column(
        "usage.received_bytes_per_s",
        "bytes",
        heading="received per s",
        meaning="headers and bodies, if the generator counts them",
    ),
    Column(
        "generator_rss_bytes",
        "bytes",
        heading="generator memory",
        value=mean_bytes("usage.generator_rss_bytes"),
    ),
    Column(
        "server_rss_bytes",
        "bytes",
        heading="server memory",
        value=mean_bytes("usage.server_rss_bytes"),
    ),
    Column(
        "host_memory_bytes",
        "bytes",
        heading="host memory",
        value=mean_bytes("usage.host_memory_bytes"),
    ),
)


class InvalidTrial(Finding):
    """{tool}[[ x{processes}]] at {users:# user}, {threads:# thread}[[, {servers:# server}]], trial
    {trial}: {reason}"""

    tool: str
    processes: int | None  # None for one
    users: int
    threads: int
    servers: int | None  # None for one
    trial: int
    reason: Finding

    prominence = "notes"


def document(run: Run) -> Document:
    trials = trial_data(run)
    null_trials = [data for data in trials if data.cell.server.null and data.record]
    return study(report_of(run, trials), notes_of(run), null_trials)


def study(
    report: Report, notes: Sequence[Finding] = (), null_trials: Sequence[TrialData] = ()
) -> Document:
    """The document of a run. `notes`: of its plan; `null_trials`: its trials on a server that
    closes connections."""
    cells = by_cell(report.cells)
    generator = mode([cell.tool for cell in cells] or [""])  # most cells use the tested one
    comparisons = {factor: Comparison.of(factor, cells.values(), generator) for factor in Factor}
    valid = {factor: comparison.valid for factor, comparison in comparisons.items()}
    phases = phases_answers(facts for data in null_trials if isinstance(facts := data.facts, Facts))
    invalid = [*invalid_trials(report.cells), *not_measured(null_trials)]
    return Document(
        run=report.run,
        kind="bottleneck",
        title=title(cells, generator),
        environment=report.environment,
        findings=(
            *conclusions(valid, generator, cores_of(report.environment)),
            *phases,
        ),
        tables=tuple(tables(comparisons, list(cells.values()))),
        charts=charts(cells, generator),
        notes=(*notes, *invalid),
        valid=bool(cells) and not invalid,
    )


def title(cells: Iterable[Cell], generator: str) -> str:
    first = next(iter(cells), None)
    if first is None:
        return f"{QUESTION}: no cell has finished."
    server = f"{first.server.worker_class} with {counted(first.server.workers, 'worker')}"
    return f"{QUESTION}. Generator: {generator}; server: {server}."


def invalid_trials(results: Iterable[TrialResult]) -> Iterator[InvalidTrial]:
    for result in results:
        if isinstance(result, Invalid):
            cell = result.trial.cell
            yield InvalidTrial(
                tool=cell.tool,
                processes=cell.processes if cell.processes > 1 else None,
                users=cell.concurrency,
                threads=cell.server.threads,
                servers=cell.server.instances if cell.server.instances > 1 else None,
                trial=result.trial.number,
                reason=result.reason,
            )


def not_measured(null_trials: Iterable[TrialData]) -> Iterator[Finding]:
    for data in null_trials:
        if (why := why_unusable(data)) is not None:
            yield NotMeasured("the load whose connections the server closes", why=why)


def tables(comparisons: Comparisons, cells: Sequence[Trials]) -> Iterator[Table]:
    """A table per varied factor, and a table of each load's cost on both sides."""
    for factor, comparison in comparisons.items():
        if comparison.groups:
            columns = [*factor_columns(comparison.cells, factor, Factor.USERS), *RESULT_COLUMNS]
            yield table(factor.title, columns, map(with_failed_trials, comparison.cells))
    if settings := factor_columns(cells):
        yield table(
            "Both sides of each load", [*settings, *COST_COLUMNS], map(with_failed_trials, cells)
        )


def factor_columns(cells: Sequence[Trials], *mandatory: Factor) -> list[Column]:
    """Columns for the factors in `mandatory` and for those that differ between the cells."""
    return [
        factor_column(factor)
        for factor in FACTOR_ORDER
        if factor in mandatory or len({factor.level(trials.cell) for trials in cells}) > 1
    ]


def factor_column(factor: Factor) -> Column:
    return Column(
        str(factor),
        "count" if factor.noun else "text",
        heading=HEADINGS.get(factor, ""),
        value=lambda trials: factor.level(trials.cell),
    )


def with_failed_trials(trials: Trials) -> Trials:
    """The trials; if none had a successful request, the valid ones, to show their errors."""
    return replace(trials, valid=trials.valid or tuple(valid_results(trials.left_out)))


def charts(cells: Mapping[Cell, Trials], generator: str) -> tuple[Chart, ...]:
    """Throughput against users: a line for the generator, points for every other load."""
    default = next(iter(cells), None)
    rates = {cell: throughput_of(with_failed_trials(trials)) for cell, trials in cells.items()}
    series = curves(
        (load_name(cell, default or cell), float(cell.concurrency), rps)
        for cell, rps in rates.items()
    )
    if not series:
        return ()
    chart = Chart(
        title="Throughput by users",
        x_title="users",
        y_title="requests/s",
        series=series,
        log=(True, False),
        note=f"Names give the differences from {generator} on the default server; all loads request"
        " the same page.",
    )
    return (chart,)


def load_name(cell: Cell, default: Cell) -> str:
    """'locust, 200 threads': the generator, and the differences from the default cell other than
    the users."""
    levels = ((factor, factor.level(cell)) for factor in NAMED_FACTORS)
    texts = (factor.level_text(level) for factor, level in levels if level != factor.level(default))
    return ", ".join([cell.tool, *texts])
