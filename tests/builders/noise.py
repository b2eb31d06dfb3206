"""Trials on a machine where other programs use the cores too."""

from __future__ import annotations

from tests.builders.analysis import ns, with_observations, with_record
from workerlab.analysis import TrialData
from workerlab.model.evidence import ProcessSample

STEPS = 40
MIN_LONE_SHARE = 0.1  # of a lone response that remains


def noisy(
    trial: TrialData,
    *,
    server_cores: float = 0.1,
    tool_cores: float = 0.05,
    server_wait: float | None = 0.0,
    tool_wait: float | None = 0.0,
    others: float = 0.0,
    irq: float = 0.0,
    steal: float | None = 0.0,
    lab: float = 0.0,
    beside: float | None = None,
) -> TrialData:
    """The same trial with constant use of 2 cores and this many threads waiting for one. The lone
    requests ran without noise, so they are shorter by the wait of a request."""
    load_s = (trial.record.load_end_ns - ns(0)) / 1e9
    busy = server_cores + tool_cores + others + irq + (steal or 0.0) + lab + (beside or 0.0)
    samples = (
        ProcessSample(
            ns(at),
            at * server_cores,
            at * tool_cores,
            at * busy,
            50 << 20,
            10 << 20,
            host_irq_s=at * irq,
            server_wait_s=None if server_wait is None else at * server_wait,
            tool_wait_s=None if tool_wait is None else at * tool_wait,
            host_steal_s=None if steal is None else at * steal,
            lab_cpu_s=at * lab,
            beside_cpu_s=None if beside is None else at * beside,
        )
        for at in (load_s * step / STEPS for step in range(STEPS + 1))
    )
    waits_s = (server_wait or 0.0) * load_s / len(trial.spans.spans)
    lone_s = tuple(max(MIN_LONE_SHARE * lone, lone - waits_s) for lone in trial.record.lone_s)
    return with_record(with_observations(trial, processes=tuple(samples), cores=2), lone_s=lone_s)
