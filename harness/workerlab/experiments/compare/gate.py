"""Limits of a change, for a build to fail on: 'p95>+10%,rps<-5%'.

A limit is exceeded only if the whole interval is beyond it, and kept if the whole interval is
within it; otherwise it is inconclusive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:  # --help uses METRICS and must be fast
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


class LimitSyntaxError(ValueError):
    """An invalid limit, with the character, counted from 1."""


class Limit(NamedTuple):
    """`share`: of A; for errors, of the requests. `above`: an increase beyond it exceeds the
    limit."""

    metric: str
    above: bool
    share: float
    text: str


def parse(text: str) -> tuple[Limit, ...]:
    """The limits, in order. Raises LimitSyntaxError."""
    limits, at = [], 0
    for word in text.split(","):
        match = LIMIT.fullmatch(word)
        if match is None:
            where = at + len(word) - len(word.lstrip()) + 1
            if LIMIT.fullmatch(f"{word}%"):
                end = at + len(word.rstrip()) + 1
                raise LimitSyntaxError(
                    f"{text!r}, character {end}: a % is missing: {word.strip()}%"
                )
            raise LimitSyntaxError(
                f"{text!r}, character {where}: {word.strip()!r} is no limit of a change, such as"
                " p95>+10% or rps<-5%"
            )
        if match["metric"] not in METRICS:
            where = at + match.start("metric") + 1
            raise LimitSyntaxError(
                f"{text!r}, character {where}: {match['metric']!r} is not compared; there are"
                f" {', '.join(METRICS)}"
            )
        share, above = float(match["share"]) / 100, match["sign"] == ">"
        if (share < 0) if above else (share > 0):
            where = at + match.start("share") + 1
            raise LimitSyntaxError(
                f"{text!r}, character {where}: {word.strip()!r} would also fail where nothing"
                " changes"
            )
        limits.append(Limit(METRICS[match["metric"]], above, share, word.strip()))
        at += len(word) + 1
    return tuple(limits)


def judge(limit: Limit, changes: Iterable[Change]) -> Outcome:
    """The outcome of a limit for one group."""
    change = next((change for change in changes if change.metric.name == limit.metric), None)
    if change is None or change.low is None or change.high is None:
        return "inconclusive"
    bound = limit.share if change.metric.kind == "share" else 1 + limit.share
    if (change.low > bound) if limit.above else (change.high < bound):
        return "exceeded"
    is_kept = change.high <= bound if limit.above else change.low >= bound
    return "kept" if is_kept else "inconclusive"
