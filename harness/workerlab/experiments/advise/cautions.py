"""What the launches of a recommended candidate show that a target does not ask for: service times
that change while the load lasts, and memory that grows with the requests.

Memory is that of all its processes (resident) between a third of the load and its end: what the
first requests load and cache is no leak. It has to grow in each launch, or it may have been a
single allocation.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from workerlab.analysis.diagnosis.service import drift, slow_first
from workerlab.experiments.advise.study import Launch
from workerlab.experiments.document import answer
from workerlab.model import Finding

FROM = 1 / 3  # of the load
LEAST_BYTES, PER_REQUEST_BYTES = 1 << 20, 512  # in each launch; less is a heap that fills its pages
HOUR_S = 3600.0


def cautions(launches: Sequence[Launch], rate_rps: float) -> Iterable[Finding]:
    found = (*_changes(launches), *_growth(launches, rate_rps))
    if found:
        yield answer("advise", "cautions", "cautions", {"cautions": found})


def _changes(launches: Sequence[Launch]) -> Iterable[Finding]:
    """In most launches: one may have had a bad moment."""
    facts = [launch.facts for launch in launches if launch.facts is not None]
    told = (rule(one) for one in facts for rule in (drift, slow_first))
    seen = [one for one in told if one is not None]
    counts = Counter(one.code for one in seen)
    for code, count in counts.items():
        first = next(one for one in seen if one.code == code)
        if 2 * count > len(launches):
            values = {"launches": count, "of": len(launches), "finding": first}
            yield Finding("advise.caution.changes", values)


def _growth(launches: Sequence[Launch], rate_rps: float) -> Iterable[Finding]:
    grown = [_grown_bytes(one) for one in launches]
    known = [one for one in grown if one is not None]
    if not known or len(known) < len(launches):
        return
    per_request = [
        bytes_ / max(1.0, (1 - FROM) * launch.due)
        for bytes_, launch in zip(known, launches, strict=True)
    ]
    if min(known) >= LEAST_BYTES and min(per_request) >= PER_REQUEST_BYTES:
        least = min(per_request)
        values = {"per_request_bytes": least, "hour_bytes": least * rate_rps * HOUR_S}
        yield Finding("advise.caution.memory_grows", values)


def _grown_bytes(launch: Launch) -> int | None:
    """None where it was not seen."""
    if launch.facts is None:
        return None
    begun_ns, ended_ns = launch.facts.started_ns, launch.facts.ended_ns
    since_ns = begun_ns + FROM * (ended_ns - begun_ns)
    sizes = [
        one.server_rss_bytes
        for one in launch.facts.seen.processes
        if since_ns <= one.at_ns <= ended_ns and one.server_rss_bytes is not None
    ]
    return sizes[-1] - sizes[0] if len(sizes) > 1 else None
