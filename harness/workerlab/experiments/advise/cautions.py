"""What the launches of a recommended candidate show that a target does not ask for: service times
that change while the load lasts, and memory that grows with the requests.

Memory is that of all its processes (resident) between a third of the load and its end: what the
first requests load and cache is no leak. It has to grow in each launch, or it may have been a
single allocation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from workerlab.analysis.diagnosis.service import drift, slow_first
from workerlab.experiments.advise.study import CandidateLaunch
from workerlab.finding import Answer, Finding

WARM_UP_SHARE = 1 / 3  # of the load
LEAST_BYTES, PER_REQUEST_BYTES = 1 << 20, 512  # in each launch; less is a heap that fills its pages
HOUR_S = 3600.0


class RepeatedChange(Finding):
    """In {launches:# launch/launches} of {of}: {change}"""

    launches: int
    of: int
    change: Finding


class MemoryGrowth(Finding):
    """Memory grew in each launch, by at least {per_request_bytes:bytes} per request: at this rate
    about {per_hour_bytes:bytes} an hour. max_requests restarts workers before that matters."""

    per_request_bytes: float
    per_hour_bytes: float


class Cautions(Answer):
    """{cautions: }"""

    question = "What else was seen?"

    cautions: tuple[Finding, ...]


def cautions(launches: Sequence[CandidateLaunch], rate_rps: float) -> Iterator[Cautions]:
    findings = (*_changes(launches), *_growth(launches, rate_rps))
    if findings:
        yield Cautions(findings)


def _changes(launches: Sequence[CandidateLaunch]) -> Iterator[RepeatedChange]:
    """In most launches: one may have had a bad moment."""
    facts = [launch.facts for launch in launches if launch.facts is not None]
    results = (rule(trial) for trial in facts for rule in (drift, slow_first))
    changes = [change for change in results if change is not None]
    counts = Counter(change.code for change in changes)
    for code, count in counts.items():
        if 2 * count > len(launches):
            first = next(change for change in changes if change.code == code)
            yield RepeatedChange(count, len(launches), first)


def _growth(launches: Sequence[CandidateLaunch], rate_rps: float) -> Iterator[MemoryGrowth]:
    per_request = []
    for launch in launches:
        grown_bytes = _grown_bytes(launch)
        if grown_bytes is None or grown_bytes < LEAST_BYTES:
            return
        per_request.append(grown_bytes / max(1.0, (1 - WARM_UP_SHARE) * launch.due))
    least = min(per_request, default=0.0)
    if least >= PER_REQUEST_BYTES:
        yield MemoryGrowth(least, per_hour_bytes=least * rate_rps * HOUR_S)


def _grown_bytes(launch: CandidateLaunch) -> int | None:
    """None where it was not seen."""
    if launch.facts is None:
        return None
    started_ns, ended_ns = launch.facts.started_ns, launch.facts.ended_ns
    warm_ns = started_ns + WARM_UP_SHARE * (ended_ns - started_ns)
    sizes = [
        sample.server_rss_bytes
        for sample in launch.facts.seen.processes
        if warm_ns <= sample.at_ns <= ended_ns and sample.server_rss_bytes is not None
    ]
    return sizes[-1] - sizes[0] if len(sizes) > 1 else None
