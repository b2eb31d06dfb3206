"""One launch of a step over time: answers, cores, memory and network bytes. Pure.

The kernel counts network bytes by interface, not by process: what crosses loopback is the traffic
of load tool, storage and cache together. A rate is the growth of a sum between two samples.
"""

from collections.abc import Iterator, Sequence
from itertools import count, pairwise

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS
from workerlab.experiments.ladder.steps import ConfigurationStep
from workerlab.model import Chart, ChartSeries

RATE_POINTS = 20  # of the answers, between which their rate is shown
COUNTED_TWICE = {"lo in", "lo0 in"}  # what loopback receives, it has sent
AXES = {"answers": "requests/s", "cores": "cores", "memory": "MB", "network": "MB/s"}
NOTE = (
    "One launch. Memory: pages that processes share count in each. Network: by interface, as the"
    " kernel does not count by process; loopback carries the traffic of load tool, storage and"
    " cache, and of whatever else uses it."
)

Samples = Sequence[tuple[int, float | None]]  # CLOCK_MONOTONIC ns


def monitor(step: ConfigurationStep, facts: Facts) -> Iterator[Chart]:
    """`facts`: of a launch of the step."""
    ends_ns = sorted(span.end_ns for span in facts.finished if span.end_ns is not None)
    samples = facts.data.observations.processes
    interfaces = sorted({name for sample in samples for name in sample.network_bytes})
    curves: dict[str, dict[str, Samples]] = {
        "answers": {"app": list(zip(ends_ns, count()))[:: max(1, len(ends_ns) // RATE_POINTS)]},
        "cores": used(step, facts, "cpu_s"),
        "memory": used(step, facts, "rss_bytes"),
        "network": {
            name: [(sample.at_ns, sample.network_bytes.get(name)) for sample in samples]
            for name in interfaces
            if name not in COUNTED_TWICE
        },
    }
    for kind, samples_by_name in curves.items():
        lines = {name: points_of(curve, facts, kind) for name, curve in samples_by_name.items()}
        series = [
            ChartSeries(name, line) for name, line in lines.items() if any(y for _, y in line)
        ]
        if series:
            yield Chart(
                title=f"Over time: {kind}; {step.removed} removed, {step.load.text}",
                x_title="seconds",
                y_title=AXES[kind],
                series=tuple(series),
                note=NOTE,
            )


def used(step: ConfigurationStep, facts: Facts, what: str) -> dict[str, Samples]:
    """By the name of who used it."""
    observations, configuration = facts.data.observations, step.configuration
    fields = {"app": f"server_{what}", step.load.tool: f"tool_{what}"}
    roles = {
        configuration.service(configuration.storage): "storage",
        configuration.service(configuration.cache): "cache",
    }
    return {
        name: [(sample.at_ns, getattr(sample, field)) for sample in observations.processes]
        for name, field in fields.items()
    } | {
        name: [(sample.at_ns, getattr(sample, what).get(role)) for sample in observations.services]
        for name, role in roles.items()
    }


def points_of(samples: Samples, facts: Facts, kind: str) -> tuple[tuple[float, float], ...]:
    """Seconds since the load began, and values or rates in the unit of the axis."""
    started_ns, unit = facts.started_ns, 1e6 if kind in ("memory", "network") else 1.0
    inside = [
        ((at_ns - started_ns) / NS, value / unit)
        for at_ns, value in samples
        if value is not None and started_ns <= at_ns <= facts.ended_ns
    ]
    if kind == "memory":
        return tuple(inside)
    return tuple(  # a process that ended takes its CPU time out of a sum: that is no rate
        (at_s, (value - before) / (at_s - before_s))
        for (before_s, before), (at_s, value) in pairwise(inside)
        if at_s > before_s and value >= before
    )
