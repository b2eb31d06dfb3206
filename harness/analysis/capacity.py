"""Capacity with its interval, where levels on both sides of the knee and repeated trials allow.

With Ĉ = Xmax * R0: above, log X of every trial with N >= 2Ĉ; below, log(X/N) of every trial with
N <= Ĉ/2. log C = mean above - mean below is the log of the slots, with Welch's 95 % interval.
Multiplied by the rate of one slot, exp(mean below), it becomes requests/s. The unit of replication
is a fresh launch of the server. In simulation this interval covered 94 to 97 %, a fitted breakpoint
with bootstrap 68 to 87 %, so the latter was rejected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.model import Finding
from harness.numbers.intervals import TRIALS, half_width

NEAR = 1.05  # Ĉ is an estimate: 8 is on the far side of 2 * 4.02


@dataclass(frozen=True)
class Sample:
    """One valid trial: connections, its number, successful requests/s (above 0)."""

    concurrency: int
    trial: int
    rps: float


@dataclass(frozen=True)
class Capacity:
    """Requests/s, or None with the reason in `note`."""

    rps: float | None
    ci95: tuple[float, float] | None
    note: Finding | None = None


def capacity(samples: Sequence[Sample], lone_s: float | None, *, flat: bool) -> Capacity:
    """The highest sustained throughput with its 95 % interval.

    lone_s: R0 in seconds. flat: throughput has been shown to grow no more (there is a knee);
    without it, or without two sides of three trials each: None and a note.
    """
    samples = [sample for sample in samples if sample.rps > 0]
    if not samples or not lone_s:
        return Capacity(None, None, Finding("capacity.no_cell"))
    estimate = max(sample.rps for sample in samples) * lone_s
    above = [sample for sample in samples if sample.concurrency >= 2 * estimate / NEAR]
    below = [sample for sample in samples if sample.concurrency <= estimate / 2 * NEAR]
    missing = _missing(above, below, estimate)
    if missing is not None:
        return Capacity(None, None, missing)
    if not flat:
        return Capacity(None, None, Finding("capacity.still_growing"))
    tops = [math.log(sample.rps) for sample in above]
    slopes = [math.log(sample.rps / sample.concurrency) for sample in below]
    half = half_width(tops, slopes)
    centre = fmean(tops)
    if half is None:
        return Capacity(None, None, Finding("capacity.trials_differ"))
    return Capacity(math.exp(centre), (math.exp(centre - half), math.exp(centre + half)))


def _missing(above: Sequence[Sample], below: Sequence[Sample], estimate: float) -> Finding | None:
    """What to add to the sweep."""
    low, high = math.floor(estimate / 2 * NEAR), math.ceil(2 * estimate / NEAR)
    wants = []
    if _trials(above, below) < TRIALS:
        wants.append(Finding("capacity.trials", {"trials": TRIALS}))
    if not below:
        if not low:
            return Finding("capacity.no_level_below")
        wants.append(Finding("capacity.low_level", {"level": low}))
    if not above:
        wants.append(Finding("capacity.high_level", {"level": high}))
    return Finding("capacity.needs", {"wants": tuple(wants)}) if wants else None


def _trials(above: Sequence[Sample], below: Sequence[Sample]) -> int:
    """Launches on the side that has fewest; a side without levels does not count."""
    sides = [{sample.trial for sample in side} for side in (above, below) if side]
    return min((len(side) for side in sides), default=0)
