"""What the samples of one trial say by themselves. What a sampler missed is None, never 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from harness.analysis.spans import NS
from harness.analysis.window import Window
from harness.model import Counters, Finding, Observations, ProcessSample, Record, Usage

WORKER_SAMPLES = 3  # of fewer, one at the window's edge (connections are closing) would be half


def counters(seen: Observations) -> Counters:
    if seen.counters is None or "counters" in seen.missing:
        return Counters()
    return seen.counters


def overflowed(seen: Observations) -> bool:
    """Whether some accept queue of the network namespace was full during the load."""
    return (counters(seen).listen_overflows or 0) > 0


def accept_queue(seen: Observations) -> tuple[int | None, int | None]:
    """The longest it was seen, and the limit it had last."""
    if not seen.queue or "queue" in seen.missing:
        return None, None
    return max(sample.length for sample in seen.queue), seen.queue[-1].limit


def usage(seen: Observations, record: Record, load_s: float) -> Usage:
    """The tool's CPU is exact where its guard reaped it, else from the samples."""
    samples = () if "processes" in seen.missing else seen.processes
    generator = _per_second(samples, lambda sample: sample.tool_cpu_s)
    if record.tool_cpu_s is not None and load_s > 0:
        generator = record.tool_cpu_s / load_s
    host = _per_second(samples, lambda sample: sample.host_busy_s)
    return Usage(
        server_cores=_per_second(samples, lambda sample: sample.server_cpu_s),
        generator_cores=generator,
        # The host's clock ticks, so that a busy moment may seem longer than it was
        host_busy=min(1.0, host / seen.cores) if host is not None and seen.cores else None,
        server_rss_bytes=_most(sample.server_rss_bytes for sample in samples),
        generator_rss_bytes=_most(sample.tool_rss_bytes for sample in samples),
    )


def _per_second(
    samples: Sequence[ProcessSample], used: Callable[[ProcessSample], float | None]
) -> float | None:
    """Of a sum that only grows, between the first and the last sample that has it."""
    known = [(sample.at_ns, value) for sample in samples if (value := used(sample)) is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    # A process that ended takes its CPU time out of the sum of those that are left.
    return max(0.0, (known[-1][1] - known[0][1]) * NS / (known[-1][0] - known[0][0]))


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def connections_per_worker(
    seen: Observations, pids: Sequence[int], window: Window
) -> Mapping[int, int] | None:
    """How many connections each worker held: its median in the window; None where it was not seen
    often enough."""
    if "connections" in seen.missing:
        return None
    inside = [sample for sample in seen.connections if window.contains(sample.at_ns)]
    if len(inside) < WORKER_SAMPLES:
        return None
    return {
        pid: round(median(sample.per_worker.get(pid, 0) for sample in inside))
        for pid in sorted(pids)
    }


def missing_notes(seen: Observations) -> tuple[Finding, ...]:
    """One per reason, with the samplers that are missing for it."""
    about: dict[str, list[Finding]] = {}
    for sampler, why in seen.missing.items():
        about.setdefault(why, []).append(Finding(f"sampler.{sampler}"))
    return tuple(
        Finding("note.missing", {"samplers": tuple(samplers), "why": why})
        for why, samplers in about.items()
    )
