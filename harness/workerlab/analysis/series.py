"""A series: cells that differ only in load. Computes R0, and how throughput grows with the load.

R0 is the time for which a request holds a slot on an idle server; the throughput bound follows from
it. It is measured with lone requests and may be corrected from two other sources:

    lone requests      sent one at a time before the load: their median if their mean is within 5 %
                       of it, else their mean; the 95 % interval is Student's. For a mix, rounds of
                       its routes, each with the weighted mean of its requests
    the lowest level   the mean span of the lowest level plus a lone request's overhead (response
                       time less span), if this lies inside the interval of the lone requests and is
                       more precise: if service times vary, a few lone requests say little
    the load's limit   X <= min(N, C)/R0, so R0 <= min(N, C)/X. If lone requests took longer,
                       something else slowed them down, and this limit replaces their time

Only successes count, for lone requests and under load: an app that sheds load refuses requests
immediately, which would make R0 too short.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from statistics import fmean, median

from msgspec import Struct

from workerlab.analysis.batches import precision
from workerlab.analysis.core_wait import is_disturbed
from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.samples import durations_s
from workerlab.analysis.slots import all_slots_taken, overhead_s
from workerlab.analysis.stall import paused_share
from workerlab.analysis.trials import Replicates, grouped
from workerlab.finding import Finding, Findings
from workerlab.model.plan import Cell, Server
from workerlab.model.result import Invalid
from workerlab.numbers.intervals import TRIALS, half_width_of_mean

CONTRADICTED_RATIO = 1.05  # R0 of lone requests / the load's limit; above it, the limit counts
# If the mean is within this share of the median, the machine caused the tail: the median counts
MAX_MEAN_DIFFERENCE = 0.05
PRECISE_HALF_SHARE = 0.02  # half of an interval / mean; up to it, R0 is precise
MIN_SPANS = 16  # required for an interval of their mean
MIN_SUCCESS_SHARE = 0.99  # below it, spans of failures would distort the mean


class R0(Struct, frozen=True):
    """R0 in seconds. `half_s`: half of its 95 % interval; None with too few responses."""

    seconds: float
    half_s: float | None

    @property
    def relative_half(self) -> float:
        """Half of the interval / R0; 0.0 if unknown."""
        return self.half_s / self.seconds if self.half_s else 0.0


UNKNOWN_R0 = R0(0.0, None)  # no lone request succeeded, so no trial is valid


def lone_r0_by_server(trials: Iterable[TrialData]) -> Mapping[Server, R0 | None]:
    """R0 of each server from the lone requests of all its trials: those of the warm-up and, if
    reported, the load tool's lone first request. Their whole response time counts, because a slot
    is held for longer than the app runs. None without lone requests."""
    return {
        server: _r0_from_lone([lone_s for trial in server_trials for lone_s in _lone_s(trial)])
        for server, server_trials in grouped(trials, lambda trial: trial.cell.server).items()
    }


def _lone_s(trial: TrialData) -> Iterable[float]:
    """The response times of a trial's lone requests. For a mix, the load tool's lone first request
    is excluded: it covers one route only."""
    record, measurement = trial.record, trial.measurement
    if record is None or record.fault is not None:
        return ()
    own = measurement.lone_s if measurement and not record.lone_weights else None
    return (lone_s for lone_s in (*record.alone_s, own or 0.0) if lone_s > 0)


def _r0_from_lone(lone_s: Sequence[float]) -> R0 | None:
    if not lone_s:
        return None
    median_s, mean = median(lone_s), _mean_r0(lone_s)
    similar = abs(mean.seconds - median_s) <= MAX_MEAN_DIFFERENCE * median_s
    return R0(median_s, mean.half_s) if similar else mean


def _mean_r0(times_s: Sequence[float]) -> R0:
    return R0(fmean(times_s), half_width_of_mean(times_s))


class SlowerAlone(Finding):
    """lone requests took {lone_s:duration}, longer than under load, where no request holds a slot
    for more than {most_s:duration} on average: bound and knee are computed from the latter"""

    lone_s: float
    most_s: float


def r0_under_load(lone: R0, closed: Sequence[Facts]) -> tuple[R0, Findings]:
    """R0, corrected by the valid closed-loop trials, and a note if the load contradicts it."""
    lowest = _r0_at_lowest_level(closed) if lone.relative_half > PRECISE_HALF_SHARE else None
    if lowest and abs(lowest.seconds - lone.seconds) <= (lone.half_s or 0.0):
        lone = min(lone, lowest, key=attrgetter("relative_half"))
    limit_s = min((facts.max_parallel / facts.throughput_rps for facts in closed), default=None)
    if limit_s is None or lone.seconds <= CONTRADICTED_RATIO * limit_s:
        return lone, ()
    return R0(limit_s, lone.half_s), (SlowerAlone(lone.seconds, limit_s),)


def _r0_at_lowest_level(closed: Sequence[Facts]) -> R0 | None:
    """R0 from the spans of the lowest level; None if there are few, or failures among them."""
    lowest = min((facts.connections for facts in closed), default=0)
    trials = [facts for facts in closed if facts.connections == lowest]
    spans_s = [span_s for facts in trials for span_s in durations_s(facts.finished)]
    if (
        len(spans_s) < MIN_SPANS
        or min(facts.outcome.success_share for facts in trials) < MIN_SUCCESS_SHARE
    ):
        return None
    spans = _mean_r0(spans_s)
    return R0(spans.seconds + median(map(overhead_s, trials)), spans.half_s)


# A throughput of this share of a bound has reached it; a level with this served share has no
# waiting requests
REACHED_SHARE = 0.95
FLAT_RATIO = 1.05  # of throughputs; up to it, throughput has stopped growing
MIN_STEP_RATIO = 1.5  # of connections; a smaller step cannot show that throughput levels off
HALF_SERVED = 0.5  # served share at which responses take twice as long as a lone one
OVER_SLOTS_RATIO = 1.05  # connections / slots; above it, some connections have to wait

# Why the load tool was the limit; (): it was not; None: unknown
Reasons = Findings | None


class Series(Struct, dict=True, frozen=True, eq=False):
    """The trials of a series, and which of them are valid. Its levels include closed trials that
    the load tool limited (`tool_limits`, by trial key)."""

    key: Cell
    trials: Sequence[TrialData]
    r0: R0  # the server's; if unknown, no trial is valid
    closed: Sequence[Facts]  # valid trials of the closed loop; each has successes
    at_rate: Sequence[Facts]  # valid trials of the open model; they do not show a knee
    invalid: Sequence[Invalid]
    notes: Findings = ()  # for all of its cells
    tool_limits: Mapping[str, Reasons] = {}

    @property
    def valid(self) -> Sequence[Facts]:
        return (*self.closed, *self.at_rate)

    @cached_property
    def slots(self) -> int | None:
        return self.trials[0].slots_configured

    @cached_property
    def trials_of_level(self) -> Mapping[int, Replicates[Facts]]:
        """The valid closed trials by connections."""
        levels = grouped(self.closed, lambda facts: facts.connections)
        return {level: Replicates(tuple(trials)) for level, trials in levels.items()}

    @cached_property
    def levels(self) -> Mapping[int, float]:
        """Median successes per second, by connections."""
        return {
            level: trials.median("throughput_rps") or 0.0
            for level, trials in self.trials_of_level.items()
        }

    def rates_at(self, level: int) -> list[float]:
        """Successes per second of each trial with this number of connections; [] if none."""
        trials = self.trials_of_level.get(level)
        return trials.positive("throughput_rps") if trials else []

    @cached_property
    def relative_halves(self) -> Mapping[int, float]:
        """Half of the 95 % interval of each level / its mean: over its trials if there are enough,
        else the widest over the batches of a trial."""
        return {
            level: _relative_half(trials.valid) for level, trials in self.trials_of_level.items()
        }

    def served_share(self, n: int) -> float:
        """u = X*R0/N of a level: the share of time in which a connection is served."""
        return self.levels[n] * self.r0.seconds / n

    def requests_wait(self, facts: Facts) -> bool:
        """Whether requests take significantly longer than a lone one, with more than one
        connection. Computed for the whole level, so the result is the same for all its trials."""
        n = facts.connections
        chance = math.hypot(self.relative_halves[n], self.r0.relative_half)
        return n > 1 and self.served_share(n) * (1 + chance) < REACHED_SHARE

    def explained_by_pauses(self, facts: Facts) -> bool:
        """Whether requests took longer than a lone one only because the machine was paused. Never
        with more connections than slots: then some wait in any case."""
        n, lost_share = facts.connections, paused_share(facts)
        if not lost_share or (facts.slots and n > OVER_SLOTS_RATIO * facts.slots):
            return False
        return self.served_share(n) / (1 - lost_share) >= REACHED_SHARE

    def grows(self, n: int) -> bool | None:
        """Whether a higher level has more throughput than the best level up to `n`; for the highest
        level, whether it still gained on a lower one. None if no other level shows it, or the gain
        may be chance. The best level is the reference, so no level beyond a flat one can grow."""
        mostly_waiting = self.served_share(n) <= HALF_SERVED
        best = max((level for level in self.levels if level <= n), key=self.levels.__getitem__)
        higher_gains = [
            self.gains(best, level, mostly_waiting=mostly_waiting)
            for level in self.levels
            if level > n
        ]
        if True in higher_gains:
            return True
        if any(level >= MIN_STEP_RATIO * n for level in self.levels):
            return None if None in higher_gains else False
        lower = [level for level in self.levels if MIN_STEP_RATIO * level <= n]
        if not lower:
            return None
        return self.gains(max(lower, key=self.levels.__getitem__), n, mostly_waiting=mostly_waiting)

    def levels_off(self, n: int) -> bool:
        """Whether there are higher levels (by MIN_STEP_RATIO), none with more throughput."""
        higher = [level for level in self.levels if level >= MIN_STEP_RATIO * n]
        return bool(higher) and all(self.gains(n, level) is False for level in higher)

    def gains(self, low: int, high: int, *, mostly_waiting: bool = False) -> bool | None:
        """Whether the throughput of `high` is more than FLAT_RATIO times that of `low`; None if
        that may be chance. `mostly_waiting`: if requests mostly wait, a gain up to the square root
        of high/low comes from uneven distribution, not from spare capacity."""
        factor = self.levels[high] / self.levels[low]
        if factor <= max(FLAT_RATIO, math.sqrt(high / low) if mostly_waiting else 0.0):
            return False
        chance = math.hypot(self.relative_halves[low], self.relative_halves[high])
        return True if factor > 1 + chance else None

    @cached_property
    def not_tool_limited(self) -> Sequence[Facts]:
        """The closed trials in which the load tool is not known to be the limit."""
        return [facts for facts in self.closed if not self.tool_limits.get(facts.key)]

    @cached_property
    def disturbed(self) -> bool:
        """Whether other programs or machines kept some trial waiting for a core, which may be why
        throughput levels off."""
        return any(map(is_disturbed, self.not_tool_limited))

    @cached_property
    def slots_filled(self) -> bool:
        """Whether some trial took all slots, so the slots are the limit."""
        return any(map(all_slots_taken, self.not_tool_limited))


def _relative_half(trials: Sequence[Facts]) -> float:
    """`Series.relative_halves` for the trials of one level."""
    rates_rps = [facts.rps for facts in trials]
    if len(rates_rps) >= TRIALS:
        return (half_width_of_mean(rates_rps) or 0.0) / fmean(rates_rps)
    halves = [rps.half / rps.mean for facts in trials if (rps := precision(facts).throughput_rps)]
    return max(halves, default=0.0)
