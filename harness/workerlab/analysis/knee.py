"""The knee of a series, where throughput stops growing, from its levels and their verdicts; and its
capacity.

In a closed loop with N connections X(N) <= min(N/R0, C/R0) (Denning & Buzen 1978, the asymptotic
bounds). The two meet at the knee, N* = Xmax * R0: any more requests in flight only wait. The knee
is a number only if the measured throughput stops growing. If nothing waits even at the highest
level, or the last doubling still gains, the result is a lower limit with its reason. Kneedle and
the Universal Scalability Law were rejected: at a sharp knee they are off by up to half.

Verdict and throughput of an inconclusive trial do not count, nor does the throughput of a trial
that the load tool limited. Knee and verdicts appear in one sentence and must not contradict each
other:

    a trial beyond the knee is below     there is no knee: if connections are unevenly distributed,
    capacity                             or other programs use the cores, throughput may level off
                                         below what more connections could reach
    the highest level is saturated, but  the knee is between the measured lower limit and the lowest
    throughput did not stop growing      saturated level, or the slots. The note does not suggest
                                         more connections: they would add no capacity, but only make
                                         slots and loops idle less often by chance

Capacity needs a knee, levels on both sides of it, and repeated trials. With Ĉ = Xmax * R0, the
upper sample is log X of every trial with N >= 2Ĉ, the lower sample log(X/N) of every trial with N
<= Ĉ/2. The difference of their means is the log of the effective number of slots, with Welch's 95 %
interval. Multiplied by the rate of one slot, exp(lower mean), it becomes requests/s. The unit of
replication is a fresh launch of the server. In simulations this interval covered the true value in
94 to 97 % of cases, a fitted breakpoint with bootstrap (rejected) in 68 to 87 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from msgspec.structs import replace

from workerlab.analysis.diagnosis.cpu import disturbance
from workerlab.analysis.facts import Facts
from workerlab.analysis.load_tool import Certainty, tool_certainty
from workerlab.analysis.series import FLAT_RATIO, REACHED_SHARE, Series
from workerlab.analysis.verdict import Judgements, knee_decides
from workerlab.finding import Finding
from workerlab.model.result import Label
from workerlab.numbers.intervals import TRIALS, half_width
from workerlab.numbers.units import fill

NEAR_RATIO = 1.05  # tolerance for the estimate Xmax * R0: 8 counts as at least 2 * 4.02
BEYOND_KNEE_RATIO = 1.05  # level / knee; above it, a level is beyond the knee
# Half of a throughput's 95 % interval / the throughput; above it, the throughput is in doubt
MAX_HALF_SHARE = 0.25


class ToolLimitFrom(Finding):
    """from {connections:# connection} on {tool} {certainty} the limit, not the server"""

    connections: int
    tool: str
    certainty: Certainty = "is"


class KneeNote(Finding, kw_only=True):
    """The evidence for the knee, or for a bound on it. `tool_limit`: set if the load tool limited
    the higher levels, which only show that the server can do more."""

    tool_limit: ToolLimitFrom | None = None

    def __str__(self) -> str:
        return "; ".join(filter(None, (super().__str__(), str(self.tool_limit or ""))))


class LevelsOff(KneeNote):
    """the last step ({below} → {highest}) gained {gain:percent}"""

    below: int
    highest: int
    gain: float


class SlotsAllTaken(KneeNote):
    """at {highest} connections all {slots} slots are busy and further requests wait"""

    highest: int
    slots: int


class KneeUnknown(KneeNote):
    """unknown: {reason}"""

    reason: Label

    short = "unknown"


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
    """`connections`: None if the knee was not reached or is uncertain; `note` says which. `rps`:
    Xmax, the throughput at which the server levels off."""

    connections: float | None
    note: KneeNote
    rps: float | None = None


class KneeDoubtful(KneeNote):
    """inconclusive: at {levels:list} connections {why}"""

    levels: tuple[int, ...]
    why: str

    short = "inconclusive"


class SlotsReached(KneeNote):
    """throughput is at the limit of {slots:# slot}, and requests wait"""

    slots: int


class RoomBeyond(Finding):
    """[[throughput levels off at {rps:number} requests/s, although ]]slots were still free with
    {connections:# connection}"""

    rps: float | None
    connections: int


class KneeBetween(KneeNote):
    """between {least:number} and {most}[[: {step}]]"""

    least: float
    most: int
    step: LastStep | None  # to the highest level

    @property
    def short(self) -> str:
        return fill("{least:number} to {most}", self.values)


class Doubt(NamedTuple):
    """Why a trial's throughput is in doubt. `share`: of the response time, lost to other programs
    or machines."""

    why: str
    share: float = 0.0


NOT_SIGNIFICANT = "not statistically significant"
NO_SPARE_CAPACITY = "not due to spare capacity: requests wait at both levels"
PROPORTIONAL = "throughput grows in proportion to connections up to the number of slots"
ONE_LEVEL = "a single usable level cannot show where it levels off"
AT_BOUND = "requests wait, although throughput is as high as the lone response time allows"
REPEAT_OR_ADD: Literal["repeat with --trials, or add"] = "repeat with --trials, or add"


def knee_of(series: Series, judgements: Judgements) -> Knee:
    """The knee of a series. `judgements`: those of its closed trials.

    Trials in doubt (`doubts_of`) can only show that nothing waits despite the disturbance, and only
    if their throughput is known. Any other knee must follow from the remaining trials alone.
    """
    conclusive = [f for f in series.closed if judgements[f.key][0] != "inconclusive"]
    measured = [facts for facts in series.closed if facts in conclusive or disturbance(facts)]
    if series.closed and not measured:
        return Knee(None, KneeUnknown("every cell is inconclusive"))
    knee, doubts = _knee_of_trials(series, conclusive, judgements), doubts_of(series, measured)
    unknown_rates = any(
        series.relative_halves[facts.connections] > MAX_HALF_SHARE for facts in conclusive
    )
    if not doubts or (conclusive and not unknown_rates and _is_true_despite_doubts(knee.note)):
        return knee
    certain = [facts for facts in conclusive if facts.key not in doubts]
    highest = max(facts.connections for facts in measured)
    if certain:
        knee = _knee_of_trials(series, certain, judgements)
        if knee.connections is not None or highest in {facts.connections for facts in certain}:
            return knee
    levels = tuple(sorted({facts.connections for facts in measured if facts.key in doubts}))
    # The largest disturbance; an imprecise throughput (share 0) may be the effect of one
    worst = max(doubts.values(), key=lambda doubt: doubt.share).why
    return Knee(None, KneeDoubtful(levels=levels, why=worst))


def _is_true_despite_doubts(note: KneeNote) -> bool:
    """Whether the note is true despite the doubts: nothing waits at the highest level, or the note
    itself says that the last gain is not significant."""
    if note.tool_limit is not None:
        return False
    if isinstance(note, KneeAtLeast):
        return note.why == PROPORTIONAL or note.advice == REPEAT_OR_ADD
    return isinstance(note, KneeAbove)


def doubts_of(series: Series, trials: Iterable[Facts]) -> dict[str, Doubt]:
    """The doubts about the throughput of trials, by trial key."""
    doubts: dict[str, Doubt] = {}
    for facts in trials:
        half = series.relative_halves[facts.connections]
        if (noise := disturbance(facts)) is not None:
            doubts[facts.key] = Doubt(noise.doubt, noise.share)
        elif half > MAX_HALF_SHARE:
            doubts[facts.key] = Doubt(f"the throughput is known only to ± {100 * half:.0f} %")
    return doubts


def _knee_of_trials(series: Series, trials: Sequence[Facts], judgements: Judgements) -> Knee:
    """The knee that these trials show, with a note on the level from which the load tool was the
    limit. If it was the limit in all trials, they only show a lower limit of the knee."""
    subseries = replace(series, closed=trials)
    without_tool_limit = replace(series, closed=subseries.not_tool_limited)
    knee = knee_by_levels(without_tool_limit, judgements, max(series.levels, default=0))
    limits = [(facts.connections, series.tool_limits.get(facts.key)) for facts in trials]
    limited_from = min((connections for connections, reasons in limits if reasons), default=None)
    if limited_from is None:
        return knee
    certainty = tool_certainty(reasons for _, reasons in limits)
    tool_limit = ToolLimitFrom(limited_from, series.key.tool, certainty)
    if without_tool_limit.closed:
        return knee._replace(note=replace(knee.note, tool_limit=tool_limit))
    least = max(subseries.levels.values()) * series.r0.seconds
    return knee._replace(note=KneeAtLeast(least=least, why=tool_limit))


def knee_by_levels(series: Series, judgements: Judgements, highest_tried: int) -> Knee:
    """The knee by the closed trials of `series`. `highest_tried`: the highest level measured."""
    rates = series.levels
    if not rates:
        return Knee(None, KneeUnknown("no valid cell"))
    highest, rps = max(rates), max(rates.values())
    least, waits = rps * series.r0.seconds, series.served_share(highest) < REACHED_SHARE
    below, spare = step_below(rates), None
    if waits and (note := _why_flat(series, below)):
        spare = _level_with_spare_slots(series, judgements, least)
        if spare is None:
            return Knee(least, note, rps)
    saturated_from = _saturated_from(series, judgements)
    flat = is_flat(rates)
    if spare and (flat or not saturated_from):
        return Knee(None, KneeUnknown(RoomBeyond(rps if flat else None, spare)))
    if saturated_from:
        return _knee_between(series, below, least, saturated_from)
    add = 2 * highest if highest == highest_tried else None
    if not waits:
        return Knee(None, _no_wait_note(highest, series.slots, add))
    if below is None:
        return Knee(None, KneeAtLeast(least=least, why=ONE_LEVEL, add=add))
    step = _last_step(series, below)
    advice = REPEAT_OR_ADD if step.meaning else "add"
    return Knee(None, KneeAtLeast(least=least, why=step, advice=advice, add=add))


def max_closed_rps(
    workers: int, slots: int | None, cores: float, wait_s: float, cpu_s: float
) -> float | None:
    """The upper bound on throughput in requests per second (Denning & Buzen 1978), from the slots
    and from the cores that workers can use, one each. Multiplied by wait_s + cpu_s it is the knee
    of a closed loop. None: unbounded."""
    bounds_rps = []
    if slots is not None and wait_s + cpu_s > 0:
        bounds_rps.append(slots / (wait_s + cpu_s))
    if cpu_s > 0:
        bounds_rps.append(min(cores, workers) / cpu_s)
    return min(bounds_rps, default=None)


def step_below(levels: Mapping[int, float]) -> int | None:
    """The level to compare the highest level with: the next one with at most half as many
    connections, else the lowest. None if there is only one level."""
    highest = max(levels)
    halves = [level for level in levels if level <= highest / 2]
    below = max(halves, default=min(levels) if len(levels) > 1 else None)
    if halves and below is not None and levels[highest] > FLAT_RATIO * levels[below]:
        return max(halves, key=levels.__getitem__)  # recovering from a dip is not a gain
    return below


def is_flat(levels: Mapping[int, float]) -> bool:
    """Whether the highest level's throughput is at most FLAT_RATIO times the best lower one."""
    *lower, highest = (levels[level] for level in sorted(levels)) if levels else (0.0,)
    return bool(lower) and highest <= FLAT_RATIO * max(lower)


def _why_flat(series: Series, below: int | None) -> KneeNote | None:
    """The evidence that throughput stops growing; None without evidence."""
    rates, highest, slots = series.levels, max(series.levels), series.slots
    if below is not None and rates[highest] <= FLAT_RATIO * rates[below]:
        gain = max(0.0, rates[highest] / rates[below] - 1)
        return LevelsOff(below=below, highest=highest, gain=gain)
    # Throughput does not level off in the data, but all slots are taken, so it cannot grow
    if slots and series.slots_filled and highest > NEAR_RATIO * slots:
        return SlotsAllTaken(highest=highest, slots=slots)
    return None


def _level_with_spare_slots(series: Series, judgements: Judgements, knee: float) -> int | None:
    """The highest level beyond the knee with a trial below capacity; None if there is none."""
    levels = [
        facts.connections
        for facts in series.closed
        if judgements[facts.key][0] == "below capacity"
        and not knee_decides(series, judgements[facts.key])
    ]
    highest = max(levels, default=0)
    return highest if highest > BEYOND_KNEE_RATIO * knee else None


def _saturated_from(series: Series, judgements: Judgements) -> int | None:
    """The lowest level such that it and all higher ones are saturated; None if there is none."""
    lowest = None
    for level in sorted(series.trials_of_level, reverse=True):
        trials = series.trials_of_level[level].valid
        if any(judgements[facts.key][0] != "saturated" for facts in trials):
            break
        lowest = level
    return lowest


def _knee_between(series: Series, below: int | None, least: float, saturated_from: int) -> Knee:
    """The knee or its range, if requests wait at the highest level but throughput still grew."""
    rates, slots = series.levels, series.slots
    if slots and max(rates) > NEAR_RATIO * slots and least >= REACHED_SHARE * slots:
        return Knee(float(slots), SlotsReached(slots=slots), max(rates.values()))
    limits = [level for level in rates if level >= max(saturated_from, least)]
    limits += [slots] if slots and slots >= least else []
    if not limits:
        return Knee(None, KneeUnknown(AT_BOUND))
    step = None if below is None else _last_step(series, below)
    if step is not None and step.meaning:
        step = replace(step, verb="changed")
    elif step is not None:
        meaning = NO_SPARE_CAPACITY if step.below >= saturated_from else ""
        step = replace(step, verb="grew", meaning=meaning)
    return Knee(None, KneeBetween(least=least, most=min(limits), step=step))


def _last_step(series: Series, below: int) -> LastStep:
    """The step from `below` to the highest level: its gain, and whether that is significant."""
    rates, highest = series.levels, max(series.levels)
    return LastStep(
        "still grew",
        below=below,
        highest=highest,
        gain=rates[highest] / rates[below] - 1,
        meaning=NOT_SIGNIFICANT if series.gains(below, highest) is None else "",
    )


def _no_wait_note(highest: int, slots: int | None, add: int | None) -> KneeAbove | KneeAtLeast:
    """The note if nothing waits at the highest level. If there are as many slots, "more than" would
    be false, and the number of slots itself is a setting, not a measured knee."""
    if slots is None:
        return KneeAbove(highest=highest, remark=f"no limit found up to {highest}")
    if highest == slots:
        return KneeAtLeast(least=highest, why=PROPORTIONAL, add=add)
    return KneeAbove(highest=highest, slots=slots if highest > slots else None)


# --- capacity -------------------------------------------------------------------------------------


class TrialRate(NamedTuple):
    """A valid trial: connections, trial number, successful requests/s."""

    concurrency: int
    trial: int
    rps: float


class Capacity(NamedTuple):
    """Requests/s with a 95 % interval, or the reason why it is unknown."""

    rps: float | None = None
    ci95: tuple[float, float] | None = None
    note: str = ""


STILL_GROWING = "throughput did not stop growing"
NO_LEVEL_BELOW = "the knee is too low for a level at half of it or below"


def capacity_of(series: Series, knee: Knee) -> Capacity:
    """The capacity, from the trials in which the load tool was not the limit."""
    samples = [
        TrialRate(facts.connections, facts.data.trial.number, facts.throughput_rps)
        for facts in series.not_tool_limited
    ]
    if not samples and series.closed:
        return Capacity(note="every cell is generator-bound")
    no_knee = "" if knee.connections is not None else STILL_GROWING
    if isinstance(knee.note, KneeDoubtful | KneeUnknown):
        no_knee = f"the knee is {knee.note}"
    return capacity(samples, series.r0.seconds, no_knee=no_knee)


def capacity(samples: Sequence[TrialRate], lone_s: float, *, no_knee: str = "") -> Capacity:
    """The highest sustained throughput. `lone_s`: R0 in seconds. `no_knee`: why there is no knee;
    "": there is one."""
    if not samples:
        return Capacity(note="no valid cell")
    estimate = max(sample.rps for sample in samples) * lone_s
    above = [sample for sample in samples if sample.concurrency >= 2 * estimate / NEAR_RATIO]
    below = [sample for sample in samples if sample.concurrency <= estimate / 2 * NEAR_RATIO]
    missing = _what_to_add(above, below, estimate)
    if missing:
        return Capacity(note=missing)
    if no_knee:
        return Capacity(note=no_knee)
    log_rates = [math.log(sample.rps) for sample in above]
    half = half_width(log_rates, [math.log(sample.rps / sample.concurrency) for sample in below])
    centre = fmean(log_rates)
    return Capacity(math.exp(centre), (math.exp(centre - half), math.exp(centre + half)))


def _what_to_add(above: Sequence[TrialRate], below: Sequence[TrialRate], estimate: float) -> str:
    """What to add to the sweep, as a note; "" if nothing. `trial_counts` excludes a side without
    levels."""
    low, high = math.floor(estimate / 2 * NEAR_RATIO), math.ceil(2 * estimate / NEAR_RATIO)
    trial_counts = [len({sample.trial for sample in side}) for side in (above, below) if side]
    if not below and not low:
        return NO_LEVEL_BELOW
    additions = [
        f"at least {TRIALS} trials" if min(trial_counts, default=0) < TRIALS else "",
        "" if below else f"a level of at most {low}",
        "" if above else f"a level of at least {high}",
    ]
    return f"an interval needs {' and '.join(filter(None, additions))}" if any(additions) else ""
