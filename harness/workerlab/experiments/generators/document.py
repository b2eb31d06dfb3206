"""What `workerlab generators` shows: each load generator at full speed and at a low rate."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workerlab.analysis.facts import TrialData, unusable
from workerlab.experiments.document import Field, cores_of, table
from workerlab.experiments.generators.findings import findings
from workerlab.experiments.generators.usage import Usage, disturbed, pooled, usage_of
from workerlab.experiments.reading import notes_of, trial_data
from workerlab.model import Chart, Document, Finding, Series, Table
from workerlab.run_store import Run

GAP_S = 0.5  # CPU and memory are to be seen at least that often

WHO: tuple[Field, ...] = (
    ("generator", "text", lambda usage: usage.name),
    ("processes", "count", lambda usage: usage.sending_processes),
    ("connections", "count", lambda usage: usage.connections),
)
DELAYED: Field = ("delay_rps", "number", lambda usage: usage.delay_rps)
COST: tuple[Field, ...] = (
    ("trials", "count", lambda usage: len(usage.rates) or None),
    ("throughput_rps", "number", lambda usage: usage.rps),
    ("cpu_per_request_s", "seconds", lambda usage: usage.cpu_per_request_s),
    ("cores", "number", lambda usage: usage.cores),
    ("memory_bytes", "bytes", lambda usage: usage.memory_bytes),
    ("failed", "count", lambda usage: usage.measured.failed),
    ("errors", "counts", lambda usage: usage.measured.errors or None),
    ("server_cores", "number", lambda usage: usage.server_cores),
    ("host_busy", "percent", lambda usage: usage.host_busy),
    ("cpu_s", "seconds", lambda usage: usage.cpu_s),
    ("host_memory_bytes", "bytes", lambda usage: usage.host_memory_bytes),
)
TIMES: tuple[Field, ...] = (
    ("response_p50_s", "seconds", lambda usage: usage.measured.response.p50),
    ("service_p50_s", "seconds", lambda usage: usage.server_side.p50),
    ("own_p50_s", "seconds", lambda usage: usage.overhead_s("p50")),
    ("response_p99_s", "seconds", lambda usage: usage.measured.response.p99),
    ("service_p99_s", "seconds", lambda usage: usage.server_side.p99),
    ("own_p99_s", "seconds", lambda usage: usage.overhead_s("p99")),
    ("achieved_concurrency", "number", lambda usage: usage.measured.achieved_concurrency),
)


def document(run: Run) -> Document:
    return study(run, trial_data(run))


def study(run: Run, trials: Sequence[TrialData]) -> Document:
    """`trials`: all that its plan has, whose `details` are `server_core` and `keepalive`."""
    seen = [(data, usage_of(data)) for data in trials]
    usages = [usage for _, usage in seen if usage is not None]
    together = pooled(usages)
    full = _in_order([usage for usage in together if not usage.low])
    low = _in_order([usage for usage in together if usage.low])
    delayed = any(run.plan.details.get("delay_s", ()))
    return Document(
        run=run.name,
        kind="generators",
        title=_title(run.plan.details),
        environment=run.environment,
        findings=findings(full, low, cores_of(run.environment)),
        tables=(
            _table("full", (*WHO, *COST, *([DELAYED] if delayed else ())), full),
            _table("full_times", (*WHO, *TIMES), full),
            _table("low", (*WHO[:2], *COST), low),
            _table("low_times", (*WHO[:2], *TIMES), low),
        ),
        charts=_charts(full),
        notes=(
            *notes_of(run),
            *(_not_measured(data) for data, usage in seen if data.record and usage is None),
            *_notes(usages),
        ),
        valid=len(usages) == len(trials) > 0 and not any(usage.doubt for usage in usages),
    )


def _title(details: Mapping[str, Any]) -> Finding:
    core, kept = details["server_core"], details["keepalive"]
    own = Finding("generators.core.own", {"core": core})
    least_s, most_s = details.get("delay_s", (0.0, 0.0))
    delay = {"least_s": least_s if least_s < most_s else None, "most_s": most_s}
    values = {
        "delay": Finding("generators.delay", delay) if most_s else None,
        "core": own if core is not None else Finding("generators.core.shared"),
        "connections": Finding(f"generators.connections.{'kept' if kept else 'anew'}"),
    }
    return Finding("generators.title", values)


def _in_order(usages: Sequence[Usage]) -> list[Usage]:
    """By generator, the fastest first, then by connections."""
    best = {one.name: one.rps for one in sorted(usages, key=lambda usage: usage.rps)}
    return sorted(usages, key=lambda usage: (-best[usage.name], usage.name, usage.connections))


def _table(title: str, fields: Sequence[Field], usages: Sequence[Usage]) -> Table:
    connections = usages[0].connections if usages else None
    name = Finding(f"generators.table.{title}", {"connections": connections})
    return table(name, fields, usages)


def _charts(full: Sequence[Usage]) -> tuple[Chart, ...]:
    def chart(
        name: str, unit: str, value: Callable[[Usage], float | None], times: float = 1
    ) -> Chart:
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for usage in full:
            if (known := value(usage)) is not None:
                lines[usage.name].append((usage.connections, known * times))
        return Chart(
            title=Finding(f"generators.chart.{name}"),
            x_title=Finding("generators.axis.connections"),
            y_title=Finding(f"generators.axis.{unit}"),
            series=tuple(Series(name, tuple(points)) for name, points in lines.items()),
            log=(True, True),
            note=Finding(f"generators.chart.{name}.note"),
        )

    return (
        chart("throughput", "rps", lambda usage: usage.rps),
        chart("cpu", "microseconds", lambda usage: usage.cpu_per_request_s, 1e6),
        chart("memory", "megabytes", lambda usage: usage.memory_bytes, 2**-20),
        chart("overhead", "microseconds", lambda usage: usage.overhead_s("p50"), 1e6),
    )


def _not_measured(data: TrialData) -> Finding:
    load = {"name": data.cell.tool, "connections": data.cell.concurrency}
    why = unusable(data) or Finding("generators.no_time")
    what = Finding("generators.load", load)
    return Finding("note.not_measured", {"what": what, "why": why})


def _notes(usages: Sequence[Usage]) -> Iterable[Finding]:
    for usage in usages:
        if usage.doubt is not None:
            load = {"name": usage.name, "connections": usage.connections}
            yield Finding("generators.doubt", {**load, "doubt": usage.doubt})
    gaps = [usage.widest_gap_s for usage in usages if usage.widest_gap_s is not None]
    if gaps:
        wide = sum(gap > GAP_S for gap in gaps)
        values = {"gap_s": max(gaps), "limit_s": GAP_S, "wide": wide or None, "loads": len(gaps)}
        yield Finding("generators.note.gaps", values)
    if (noise := disturbed(usages)) is not None:
        times = sum(disturbed([usage]) is not None for usage in usages)
        counts = {"times": times, "loads": len(usages)}
        yield Finding("generators.note.others", {**counts, "noise": noise})
    if times := sum(usage.stood_still for usage in usages):
        yield Finding("generators.note.stood_still", {"times": times, "loads": len(usages)})
    if any(usage.tool == "wrk" for usage in usages):
        yield Finding("generators.note.wrk")
