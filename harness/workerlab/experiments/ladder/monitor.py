"""One launch of a step over time: answers, cores, memory and network bytes. Pure.

The kernel counts network bytes by interface, not by process: what crosses loopback is the traffic
of load tool, storage and cache together. A rate is the growth of a sum between two samples.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS
from workerlab.experiments.ladder.steps import Step
from workerlab.model import Chart, Finding, Series

PARTS = 20  # of the answers, between which their rate is shown
TWICE = {"lo in", "lo0 in"}  # what loopback receives, it has sent
AXES = {"answers": "ladder.chart.rps", "cores": "chart.cores"}
AXES |= {"memory": "chart.megabytes", "network": "ladder.chart.network"}

Samples = Sequence[tuple[int, float | None]]  # CLOCK_MONOTONIC ns


def monitor(step: Step, facts: Facts) -> Iterable[Chart]:
    """`facts`: of a launch of the step."""
    ends = sorted(span.end_ns for span in facts.finished if span.end_ns is not None)
    samples, step_size = facts.data.observations.processes, max(1, len(ends) // PARTS)
    interfaces = sorted({name for sample in samples for name in sample.network_bytes} - TWICE)
    charts: dict[str, dict[str, Samples]] = {
        "answers": {"app": [(end_ns, n) for n, end_ns in enumerate(ends)][::step_size]},
        "cores": _used(step, facts, "cpu_s"),
        "memory": _used(step, facts, "rss_bytes"),
        "network": {
            name: [(sample.at_ns, sample.network_bytes.get(name)) for sample in samples]
            for name in interfaces
        },
    }
    for kind, curves in charts.items():
        drawn = [(name, _points(curve, facts, kind)) for name, curve in curves.items()]
        series = tuple(Series(name, line) for name, line in drawn if any(y for _, y in line))
        about = {"what": kind, "removed": step.removed, "load": step.load.text}
        titles = Finding("ladder.chart.over_time", about), Finding("ladder.chart.seconds")
        axis, note = Finding(AXES[kind]), Finding("ladder.chart.over_time.note")
        if series:
            yield Chart(*titles, axis, series, note=note)


def _used(step: Step, facts: Facts, what: str) -> dict[str, Samples]:
    """By the name of who used it."""
    observations, setup = facts.data.observations, step.configuration
    fields = {"app": f"server_{what}", step.load.tool: f"tool_{what}"}
    roles = {setup.service(setup.storage): "storage", setup.service(setup.cache): "cache"}
    return {
        name: [(sample.at_ns, getattr(sample, field)) for sample in observations.processes]
        for name, field in fields.items()
    } | {
        name: [(sample.at_ns, getattr(sample, what).get(role)) for sample in observations.services]
        for name, role in roles.items()
    }


def _points(samples: Samples, facts: Facts, kind: str) -> tuple[tuple[float, float], ...]:
    """Seconds since the load began, and values or rates in the unit of the axis."""
    begin_ns, unit = facts.started_ns, 1e6 if kind in ("memory", "network") else 1.0
    inside = [
        ((at_ns - begin_ns) / NS, value / unit)
        for at_ns, value in samples
        if value is not None and begin_ns <= at_ns <= facts.ended_ns
    ]
    if kind == "memory":
        return tuple(inside)
    return tuple(  # a process that ended takes its CPU time out of a sum: that is no rate
        (at_s, (value - before) / (at_s - before_s))
        for (before_s, before), (at_s, value) in pairwise(inside)
        if at_s > before_s and value >= before
    )
