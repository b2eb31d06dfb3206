"""A series: the cells that differ in load alone. Where does its server stop serving more?"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import fmean, median

from msgspec import Struct

from workerlab.analysis.batches import precision
from workerlab.analysis.core_wait import is_disturbed
from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.knee import FLAT, REACHED, Capacity, Knee, Sample, capacity, knee
from workerlab.analysis.occupancy import FULL, occupancy
from workerlab.analysis.r0 import R0
from workerlab.analysis.stall import stood_still
from workerlab.finding import Finding
from workerlab.model import Cell, CellResult
from workerlab.numbers.intervals import TRIALS, half_of_mean

STEP = 1.5  # times as many connections: fewer cannot show that throughput stays
HALF = 0.5  # of their time served: the response is twice that of a lone request
OVER = 1.05  # times as many connections as slots: some have to wait

# Why the load tool was the limit; (): it was not; None: unknown
Reasons = tuple[Finding, ...] | None


class Series(Struct, dict=True, frozen=True, eq=False):
    """The trials of a series, and which of them are valid. Knee and capacity are the server's, so
    trials that the load tool held up (`bound`, by key) say nothing of them but that there is more.
    """

    key: Cell
    trials: Sequence[TrialData]
    r0: R0  # of its server; where none is known, no trial is valid
    closed: Sequence[Facts]  # valid trials of the closed loop
    at_rate: Sequence[Facts]  # and of the open model: they tell no knee
    invalid: Sequence[CellResult]
    notes: tuple[Finding, ...] = ()  # on all of its cells
    bound: Mapping[str, Reasons] = {}

    @property
    def valid(self) -> Sequence[Facts]:
        return (*self.closed, *self.at_rate)

    @property
    def slots(self) -> int | None:
        return self.trials[0].slots_configured

    @cached_property
    def levels(self) -> Mapping[int, float]:
        return rates_by_level(self.closed)

    @cached_property
    def halves(self) -> Mapping[int, float]:
        """Half of the 95 % interval of each level, as a part of it: over the trials where there are
        enough of them, else over the batches of one."""
        found: dict[int, list[Facts]] = defaultdict(list)
        for facts in self.closed:
            found[facts.connections].append(facts)
        return {level: _half(trials) for level, trials in found.items()}

    def served(self, n: int) -> float:
        """u = X*R0/N of a level: the part of their time that its connections are being served."""
        return self.levels[n] * self.r0.seconds / n

    def waits(self, facts: Facts) -> bool:
        """Whether requests take longer than a lone one does, beyond what chance explains, and there
        is someone to wait for. Of the whole level, so that identical trials are judged alike."""
        n = facts.connections
        chance = math.hypot(self.halves[n], self.r0.relative_half)
        return n > 1 and self.served(n) * (1 + chance) < REACHED

    def stood_still_alone(self, facts: Facts) -> bool:
        """Whether no more than that the machine stood still made requests take longer than a lone
        one. Where they are more than the slots, some of them wait all the same."""
        n, lost = facts.connections, stood_still(facts)
        if not lost or (facts.slots and n > OVER * facts.slots):
            return False
        return self.served(n) / (1 - lost) >= REACHED

    def grows(self, n: int) -> bool | None:
        """Whether more connections than `n` bring more than `n` and fewer did; of the highest
        level, whether it still gained on a lower one. None where no other level tells, or chance
        explains the gain. (Than the best so far: beyond a level that does not grow none does.)"""
        weak = self.served(n) <= HALF
        best = max((level for level in self.levels if level <= n), key=self.levels.__getitem__)
        more = [self.gains(best, level, weak=weak) for level in self.levels if level > n]
        if True in more:
            return True
        if any(level >= STEP * n for level in self.levels):
            return None if None in more else False
        less = [level for level in self.levels if STEP * level <= n]
        if not less or not self.levels[n]:
            return None
        return self.gains(max(less, key=self.levels.__getitem__), n, weak=weak)

    def levels_off(self, n: int) -> bool:
        """Whether higher levels serve no more than this one, all of them."""
        higher = [level for level in self.levels if level >= STEP * n]
        return bool(higher) and all(self.gains(n, one) is False for one in higher)

    def gains(self, low: int, high: int, *, weak: bool = False) -> bool | None:
        """By more than FLAT, which is not throughput that grows; None where that is within chance.
        `weak`: where requests wait for most of their time, a gain of less than the square root of
        as many more connections is what uneven dealing gives, not a server with room."""
        factor = self.levels[high] / self.levels[low] if self.levels[low] else math.inf
        if factor <= max(FLAT, math.sqrt(high / low) if weak else 0.0):
            return False
        return True if factor > 1 + math.hypot(self.halves[low], self.halves[high]) else None

    @cached_property
    def free(self) -> Sequence[Facts]:
        """The trials in which the load tool was not the limit."""
        return [facts for facts in self.closed if not self.bound.get(facts.key)]

    @cached_property
    def disturbed(self) -> bool:
        """Whether others kept some level waiting for a core: it may have levelled off for that."""
        return any(map(is_disturbed, self.free))

    @cached_property
    def full(self) -> bool:
        """Whether some level took all slots: they are what binds."""
        return any((occupancy(one) or 0.0) >= FULL for one in self.free)

    def knee_of(self, trials: Sequence[Facts]) -> Knee:
        """As these trials show it."""
        full = any((occupancy(one) or 0.0) >= FULL for one in trials)
        return knee(rates_by_level(trials), self.r0.seconds, self.slots, full=full)

    @cached_property
    def knee(self) -> Knee:
        """Before verdicts are known; `class_result` has the last word."""
        return self.knee_of(self.free)

    @cached_property
    def capacity(self) -> Capacity:
        samples = [
            Sample(facts.connections, facts.data.trial.number, facts.throughput_rps)
            for facts in self.free
            if facts.throughput_rps
        ]
        if not samples and len(self.free) < len(self.closed):
            return Capacity(note=f"{self.key.tool} is the limit in every cell")
        return capacity(samples, self.r0.seconds, flat=self.knee.connections is not None)


def rates_by_level(trials: Iterable[Facts]) -> Mapping[int, float]:
    """The median successes per second of each number of connections."""
    rates: dict[int, list[float]] = defaultdict(list)
    for facts in trials:
        rates[facts.connections].append(facts.throughput_rps)
    return {level: median(found) for level, found in rates.items()}


def _half(trials: Sequence[Facts]) -> float:
    rates = [facts.rps for facts in trials]
    if len(rates) >= TRIALS:
        return (half_of_mean(rates) or 0.0) / fmean(rates)
    known = [one.half / one.mean for facts in trials if (one := precision(facts).throughput_rps)]
    return max(known, default=0.0)
