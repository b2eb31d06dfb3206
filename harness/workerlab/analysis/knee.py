"""Where throughput stops growing: the knee, and the capacity with its interval.

In a closed loop with N connections X(N) <= min(N/R0, C/R0) (Denning & Buzen 1978, the asymptotic
bounds). The two meet at N* = Xmax * R0, the knee: beyond that many requests in flight, more of them
only wait. It is a number only if measured throughput stops growing. If nothing waits yet at the
highest level, or the last doubling still gains, the answer is a lower limit with its reason.
Kneedle and the Universal Scalability Law were rejected: on a sharp knee they are off by up to half.

Capacity needs levels on both sides of the knee and repeated trials. With Ĉ = Xmax * R0: above it,
log X of every trial with N >= 2Ĉ; below it, log(X/N) of every trial with N <= Ĉ/2. log C = mean
above - mean below is the log of the slots, with Welch's 95 % interval. Multiplied by the rate of
one slot, exp(mean below), it becomes requests/s. The unit of replication is a fresh launch of the
server. In simulation this interval covered 94 to 97 %. A fitted breakpoint with bootstrap was
rejected, since it covered 68 to 87 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from workerlab.finding import Finding
from workerlab.model import Label
from workerlab.numbers.intervals import TRIALS, half_width
from workerlab.numbers.units import fill

REACHED_SHARE = 0.95  # of a bound: it counts as reached; X*R0/N at least this: nothing waits
FLAT_RATIO = 1.05  # up to this ratio, throughput has stopped growing
NEAR_RATIO = 1.05  # tolerance, since Ĉ is an estimate: 8 counts as at least 2 * 4.02


Certainty = Literal["is", "may be"]  # the limit


class ToolLimitFrom(Finding):
    """from {connections:# connection} on {tool} {certainty} the limit, not the server"""

    connections: int
    tool: str
    certainty: Certainty = "is"


class KneeNote(Finding, kw_only=True):
    """What shows the knee, or what is known instead. `tool_limit`: set if levels from there on show
    only that the server can do more."""

    tool_limit: ToolLimitFrom | None = None

    def __str__(self) -> str:
        return "; ".join(filter(None, (super().__str__(), str(self.tool_limit or ""))))


class LevelsOff(KneeNote):
    """the last step ({below} → {highest}) gained {gain:percent}"""

    below: int
    highest: int
    gain: float


class SlotsAllTaken(KneeNote):
    """at {highest} connections all {slots} slots are busy and the others wait"""

    highest: int
    slots: int


class KneeUnknown(KneeNote):
    """unknown: {reason}"""

    reason: Label

    @property
    def short(self) -> str:
        return "unknown"


class LastStep(Finding):
    """throughput {verb}[[ by {gain:percent}]] from {below} to {highest:# connection}
    [[, which is {meaning}]]"""

    verb: Literal["grew", "still grew", "changed"]
    below: int
    highest: int
    gain: float | None
    meaning: str = ""


class KneeAtLeast(KneeNote):
    """at least {least:number}: {why}[[; {advice} {add} or more]]"""

    least: float
    why: Label
    advice: Literal["add", "repeat with --trials, or add"] = "add"
    add: int | None = None  # connections

    @property
    def short(self) -> str:
        return fill("at least {least:number}", self.values)


class KneeAbove(KneeNote):
    """> {highest}[[, although {slots} slots are configured]][[: {remark}]]"""

    highest: int
    slots: int | None = None  # if fewer than `highest`
    remark: str = ""

    @property
    def short(self) -> str:
        return f"> {self.highest}"


class Knee(NamedTuple):
    """`connections`: None if the knee was not reached or not shown; `note` says which. `rps`: Xmax,
    the throughput at which the server levels off."""

    connections: float | None
    note: KneeNote
    rps: float | None = None


def max_closed_rps(
    workers: int, slots: int | None, cores: float, wait_s: float, cpu_s: float
) -> float | None:
    """Upper bound on throughput in requests per second (Denning & Buzen 1978), from the slots and
    from the cores that workers can use, one each. Multiplied by wait_s + cpu_s it is the knee of a
    closed loop. None: no bound."""
    bounds_rps = []
    if slots is not None and wait_s + cpu_s > 0:
        bounds_rps.append(slots / (wait_s + cpu_s))
    if cpu_s > 0:
        bounds_rps.append(min(cores, workers) / cpu_s)
    return min(bounds_rps, default=None)


WITHIN_CHANCE = "within chance"
NO_SIGN_OF_ROOM = "no spare capacity, as requests wait at both levels"
IN_STEP = "throughput grows in proportion to connections up to the number of slots"
ONE_LEVEL = "a single usable level cannot show where it levels off"


def knee(
    levels: Mapping[int, float],
    lone_s: float | None,
    slots: int | None,
    *,
    slots_filled: bool = False,
) -> Knee:
    """The knee of a series. `levels`: throughput in requests/s by concurrency, the median of its
    trials. `lone_s`: R0, seconds. `slots`: as configured; None: unlimited. `slots_filled`: whether
    some level took all of them."""
    if not levels or not lone_s:
        return Knee(None, KneeUnknown("no valid cell"))
    highest = max(levels)
    if levels[highest] * lone_s / highest >= REACHED_SHARE:
        return Knee(None, _not_reached(highest, slots))
    rps = max(levels.values())
    estimate, below = rps * lone_s, step_below(levels)
    if below is not None and levels[highest] <= FLAT_RATIO * levels[below]:
        gain = max(0.0, levels[highest] / levels[below] - 1) if levels[below] else 0.0
        return Knee(estimate, LevelsOff(below=below, highest=highest, gain=gain), rps)
    # Measured throughput does not level off, but all slots are taken, so it cannot grow
    if slots and slots_filled and highest > NEAR_RATIO * slots:
        return Knee(estimate, SlotsAllTaken(highest=highest, slots=slots), rps)
    why: Label = ONE_LEVEL
    if below is not None:
        last_gain = levels[highest] / levels[below] - 1 if levels[below] > 0 else None
        why = LastStep("still grew", below=below, highest=highest, gain=last_gain)
    return Knee(None, KneeAtLeast(least=estimate, why=why, add=2 * highest))


def step_below(levels: Mapping[int, float]) -> int | None:
    """The level to compare the highest with: at most half as many connections, if there is such a
    level, else the lowest. None if there is only one level."""
    highest = max(levels)
    halves = [level for level in levels if level <= highest / 2]
    below = max(halves, default=min(levels) if len(levels) > 1 else None)
    if halves and below is not None and levels[highest] > FLAT_RATIO * levels[below]:
        return max(halves, key=levels.__getitem__)  # recovering from a dip is not a gain
    return below


def _not_reached(highest: int, slots: int | None) -> KneeAbove | KneeAtLeast:
    """The knee if nothing waits at the highest level. If there are exactly as many slots, "more
    than" would be false, and the number of slots would be a setting, not a measured knee."""
    if slots is None:
        return KneeAbove(highest=highest, remark=f"no limit found up to {highest}")
    if highest == slots:
        return KneeAtLeast(least=highest, why=IN_STEP, add=2 * highest)
    return KneeAbove(highest=highest, slots=slots if highest > slots else None)


# --- capacity -------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """One valid trial: connections, trial number, successful requests/s."""

    concurrency: int
    trial: int
    rps: float


class Capacity(NamedTuple):
    """Requests/s with a 95 % interval, or the reason why there is none."""

    rps: float | None = None
    ci95: tuple[float, float] | None = None
    note: str = ""


STILL_GROWING = "throughput did not stop growing"
NO_LEVEL_BELOW = "the knee is too low for a level of at most half of it"


def capacity(samples: Sequence[Sample], lone_s: float | None, *, flat: bool) -> Capacity:
    """The highest sustained throughput. `lone_s`: R0, seconds. `flat`: whether throughput was shown
    to stop growing (there is a knee)."""
    samples = [sample for sample in samples if sample.rps > 0]
    if not samples or not lone_s:
        return Capacity(note="no valid cell")
    estimate = max(sample.rps for sample in samples) * lone_s
    above = [sample for sample in samples if sample.concurrency >= 2 * estimate / NEAR_RATIO]
    below = [sample for sample in samples if sample.concurrency <= estimate / 2 * NEAR_RATIO]
    missing = _missing(above, below, estimate)
    if missing:
        return Capacity(note=missing)
    if not flat:
        return Capacity(note=STILL_GROWING)
    log_rates = [math.log(sample.rps) for sample in above]
    half = half_width(log_rates, [math.log(sample.rps / sample.concurrency) for sample in below])
    centre = fmean(log_rates)
    return Capacity(math.exp(centre), (math.exp(centre - half), math.exp(centre + half)))


def _missing(above: Sequence[Sample], below: Sequence[Sample], estimate: float) -> str:
    """What to add to the sweep; "" if nothing. Trials are missing if the side with the fewest
    launches has too few; a side without levels does not count."""
    low, high = math.floor(estimate / 2 * NEAR_RATIO), math.ceil(2 * estimate / NEAR_RATIO)
    trial_counts = [len({sample.trial for sample in side}) for side in (above, below) if side]
    if not below and not low:
        return NO_LEVEL_BELOW
    wants = [
        f"at least {TRIALS} trials" if min(trial_counts, default=0) < TRIALS else "",
        "" if below else f"a level of at most {low}",
        "" if above else f"a level of at least {high}",
    ]
    return f"an interval needs {' and '.join(filter(None, wants))}" if any(wants) else ""
