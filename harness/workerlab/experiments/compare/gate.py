"""Limits of a change, for a build that shall fail: 'p95>+10%,rps<-5%'.

A limit is exceeded only where the whole interval is beyond it, and kept where the whole interval is
within it; else nobody knows yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:  # --help reads the metrics, and shall answer at once
    from workerlab.analysis.comparison import Change

METRICS = {
    "rps": "throughput_rps",
    "p50": "response_p50_s",
    "p95": "response_p95_s",
    "cpu": "cpu_s",
    "memory": "memory_bytes",
    "start": "start_s",
    "stop": "stop_s",
    "errors": "failed",
}
LIMIT = re.compile(r"\s*(?P<metric>\w+)\s*(?P<sign>[<>])\s*(?P<share>[+-]?[0-9]*\.?[0-9]+)\s*%\s*")

Outcome = Literal["exceeded", "kept", "inconclusive"]


class Mistake(ValueError):
    """What is wrong with a limit, and at which character, from 1."""


class Limit(NamedTuple):
    """`share`: of A; of errors, of the requests. `above`: too much is more than that."""

    metric: str
    above: bool
    share: float
    text: str


def parse(text: str) -> tuple[Limit, ...]:
    """Raises Mistake."""
    found, at = [], 0
    for word in text.split(","):
        match = LIMIT.fullmatch(word)
        if match is None:
            where = at + len(word) - len(word.lstrip()) + 1
            if LIMIT.fullmatch(f"{word}%"):
                raise Mistake(f"{text!r}, character {at + len(word.rstrip()) + 1}: a % is missing:"
                              f" {word.strip()}%")  # fmt: skip
            raise Mistake(f"{text!r}, character {where}: {word.strip()!r} is no limit of a change,"
                          " such as p95>+10% or rps<-5%")  # fmt: skip
        if match["metric"] not in METRICS:
            where = at + match.start("metric") + 1
            raise Mistake(f"{text!r}, character {where}: {match['metric']!r} is not compared; there"
                          f" are {', '.join(METRICS)}")  # fmt: skip
        share, above = float(match["share"]) / 100, match["sign"] == ">"
        if (share < 0) if above else (share > 0):
            where = at + match.start("share") + 1
            raise Mistake(f"{text!r}, character {where}: {word.strip()!r} would also fail where"
                          " nothing changes")  # fmt: skip
        found.append(Limit(METRICS[match["metric"]], above, share, word.strip()))
        at += len(word) + 1
    return tuple(found)


def judge(limit: Limit, changes: Iterable[Change]) -> Outcome:
    """Of one group."""
    change = next((one for one in changes if one.metric.name == limit.metric), None)
    if change is None or change.low is None or change.high is None:
        return "inconclusive"
    bound = limit.share if change.metric.kind == "share" else 1 + limit.share
    if (change.low > bound) if limit.above else (change.high < bound):
        return "exceeded"
    kept = change.high <= bound if limit.above else change.low >= bound
    return "kept" if kept else "inconclusive"
