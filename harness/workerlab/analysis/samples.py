"""What spans and samples say by themselves. What was not seen is None, never 0."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from workerlab.finding import Finding
from workerlab.model import Observations, ProcessSample, Record, Span, Usage

NS = 1e9


def most_open(spans: Sequence[Span]) -> int:
    """Most spans open at the same time. A span that ends in the nanosecond in which another starts
    has made room for it. One that never ended stays open. One without duration was open at its
    instant."""
    # Numbers that sort by time and, within one nanosecond, ends before starts before the ends of
    # what started just now: 0, 1, 2 beside four times the nanoseconds.
    instants = [4 * span.start_ns + 1 for span in spans]
    instants += [
        4 * span.end_ns + 2 * (span.end_ns <= span.start_ns)
        for span in spans
        if span.end_ns is not None
    ]
    instants.sort()
    return max(accumulate(1 if instant & 1 else -1 for instant in instants), default=0)


def durations_s(spans: Iterable[Span]) -> list[float]:
    """Service times of the spans that ended."""
    return [(span.end_ns - span.start_ns) / NS for span in spans if span.end_ns is not None]


def per_second(sums: Iterable[tuple[int, float | None]], least_s: float = 0.0) -> float | None:
    """How fast a sum grew between its first and its last known value, by time in nanoseconds; None
    where these are less than `least_s` apart."""
    known = [(at_ns, value) for at_ns, value in sums if value is not None]
    lasted_ns = known[-1][0] - known[0][0] if known else 0
    if lasted_ns <= 0 or lasted_ns < least_s * NS:
        return None
    # A process that ended takes its CPU time out of the sum of those that are left
    return max(0.0, (known[-1][1] - known[0][1]) * NS / lasted_ns)


def waited_for_core_s(seen: Observations, workers: int) -> float:
    """How long the load tool and, on average, one of so many workers were ready to run and had no
    core; what the kernel does not tell is not in it."""
    servers_s = seen.processes[-1].server_wait_s if seen.processes else None
    return (servers_s or 0.0) / workers + tool_waited_s(seen)


def tool_waited_s(seen: Observations) -> float:
    """The load tool alone."""
    return (seen.processes[-1].tool_wait_s or 0.0) if seen.processes else 0.0


def usage(seen: Observations, record: Record, load_s: float) -> Usage:
    """The tool's CPU is exact where its guard reaped it, else from the samples."""
    samples = seen.processes
    generator = per_second((one.at_ns, one.tool_cpu_s) for one in samples)
    if record.tool_cpu_s is not None and load_s > 0:
        generator = record.tool_cpu_s / load_s
    host = per_second((one.at_ns, without_others(one)) for one in samples)
    return Usage(
        server_cores=per_second((one.at_ns, one.server_cpu_s) for one in samples),
        generator_cores=generator,
        # The host's clock ticks, so that a busy moment may seem longer than it was
        host_busy=min(1.0, host / seen.cores) if host is not None and seen.cores else None,
        server_rss_bytes=_most(one.server_rss_bytes for one in samples),
        generator_rss_bytes=_most(one.tool_rss_bytes for one in samples),
        host_memory_bytes=_most(one.host_memory_bytes for one in samples),
    )


def without_others(one: ProcessSample) -> float | None:
    """CPU seconds of all cores, less what other trials of the lab used."""
    if one.host_busy_s is None:
        return None
    return max(0.0, one.host_busy_s - (one.beside_cpu_s or 0.0))


def lab_cores(samples: Sequence[ProcessSample]) -> float:
    """Cores that the whole lab used: this trial's processes, those of others, and the lab itself;
    what is not known is not in it."""
    names = ("server_cpu_s", "tool_cpu_s", "lab_cpu_s", "beside_cpu_s")
    rates = (per_second((one.at_ns, getattr(one, name)) for one in samples) for name in names)
    return sum(rate or 0.0 for rate in rates)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


SAMPLERS = {
    "queue": "accept queue",
    "processes": "CPU and memory",
    "connections": "TCP connections",
    "counters": "kernel counters",
    "services": "CPU of storage and cache",
    "app_metrics": "app metrics",
    "workers": "CPU of each worker",
    "memory": "memory of the workers",
    "pauses": "pauses of the machine",
}


class SamplesMissing(Finding):
    """{samplers:, } missing: {why}"""

    samplers: tuple[str, ...]
    why: str


def missing_notes(seen: Observations) -> tuple[Finding, ...]:
    """One per reason, with the samplers that are missing for it."""
    about: dict[str, list[str]] = {}
    for sampler, why in seen.missing.items():
        about.setdefault(why, []).append(SAMPLERS[sampler])
    return tuple(SamplesMissing(tuple(samplers), why) for why, samplers in about.items())
