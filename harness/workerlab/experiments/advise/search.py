"""Chooses the next launch of `advise`: a search, not a grid.

    1. launch candidates at the target's rate, in the order of the forecast, until the prediction
       bound of one meets the target
    2. raise its rate with short launches: first to the forecast, which may be wrong, then between
       its highest passing and lowest failing rate until they are within MAX_GAP_RATIO. Launch the
       best candidate of a second class before raising the rate a second time
    3. launch the leader a second time at its highest passing rate
    4. try rivals slightly above the leader's rate: in its own class the rule-of-thumb number of
       workers, slightly more workers, fewer workers, and more threads; in every other class the
       first candidate, if its forecast is about as high. A rival that passes becomes the leader,
       and its rate is raised
    5. bring the leader's two rates within FINE_GAP_RATIO
    6. launch the final leader at the target's rate until its bound is known; with a small budget,
       do this first. If it misses the target, the next candidate leads
    7. launch it at its highest passing rate, or at a lower rate, until the bound there is known;
       then at a rate at most MAX_GAP_RATIO times as high until that is shown to miss the target. If
       none is, launch at the rates in between at which all launches met it, until one is shown to
       pass; or show at least that WIDE_GAP_RATIO times the highest rate misses it
    8. launch it until there are enough requests for the limit on errors
    9. while the budget lasts, try the best candidate of each class without a launch slightly above
       the leader's rate: its forecast may be far too low

All classes are tried before one is examined closely: near the limit the result depends on the
schedule, and a single candidate would use up the budget. More workers than the forecast requires
are tried because workers compete with the load tool for the cores: candidates with the same
forecast may perform quite differently.

Order: first the candidates within EQUAL_FORECAST_SHARE of the best forecast, by cost (memory, then
workers, then threads), then the others by forecast. If no candidate is forecast to meet the target
at any rate, those whose times exceed the limit least come first. If no candidate meets the target,
the rate of the best one is lowered to find where it is met.

Apart from the remaining budget, everything depends on the recorded launches alone, so a resumed run
continues as if it had not stopped. The k-th launch of any candidate at a rate has schedule k.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import takewhile
from typing import Literal

from msgspec import Struct

from workerlab import codec
from workerlab.analysis.target import judge, requests_of, value_of
from workerlab.analysis.trials import grouped
from workerlab.experiments.advise.candidates import Expected, limited_times
from workerlab.experiments.advise.standing import (
    MAX_LAUNCHES,
    MIN_LAUNCHES,
    RATE_BEYOND_SHARE,
    Standing,
    expected_to_pass,
    passes,
    standing,
)
from workerlab.experiments.advise.study import NOISE, CandidateLaunch, Study, meets_target
from workerlab.finding import Answer
from workerlab.model.plan import Plan, Server
from workerlab.model.result import Needs
from workerlab.numbers.units import fill
from workerlab.slo import Metric, Term, parse

EQUAL_FORECAST_SHARE = 0.95  # of the best forecast: candidates above it count as equal
MAX_GAP_RATIO = 1.25  # lowest failing rate over highest passing rate: the required precision
FINE_GAP_RATIO = 1.075  # the same, if the budget allows
WIDE_GAP_RATIO = 1.5  # the same, if no launch misses the target within MAX_GAP_RATIO
FIRST_RATE_SHARE = 0.95  # of the forecast: the first rate tried on the way up
SAFE_RATE_SHARE = 0.5  # the same, if few launches are left
BETTER_RATIO = 1.05  # times the leader's rate: a rival must reach it to be better
MIN_FORECAST_SHARE = 0.5  # of the target's or leader's rate: with less, only as a last resort
CONFIRMING_LAUNCHES = 2  # at the leader's highest passing rate before rivals are tried
RESERVED_LAUNCHES = 9  # for confirming the leader: if no more are left, no rivals are tried
MIN_LEFT_FOR_SMALL_STEPS = 4  # launches: with fewer, one big step down, to save some for confirming
MIN_LEFT_FOR_RISK = 3  # launches for raising the rate: with fewer, rates that are likely to pass
MAX_ROUNDING = 1.005  # the largest factor by which `rounded` changes a rate
BRACKETING_LAUNCHES = 2  # bring the leader's rates within MAX_GAP_RATIO of each other
SHORT_SHARE = 0.5  # of a full launch: enough to find the rates that deserve one
CLEAR_SHARES = (0.25, 0.5)  # of a time limit: below it, that share of a full launch is enough
MIN_LEFT_TO_REPEAT = 6  # launches: with fewer, too few may remain if one misses the target
MAX_REPEATED_LAUNCHES = 5  # at a rate: beyond that, another rate is worth more
SPARE_LAUNCHES = 1  # reserved for the leader, in case one is discarded
MAX_UNLIKELY = 4  # candidates launched although they are forecast to miss the target
MAX_DISCARDED = 4  # launches of a candidate at the target's rate, or of all candidates due to noise
MAX_OTHER_DISCARDED = 2  # of a candidate at another rate, or if noise was not the only cause
MIN_RATE_SHARE = 0.02  # of the target's rate: the lowest rate tried
MIN_RATE_RPS = 0.1  # below it, a launch of a minute has too few requests
LIMIT_QUESTION = "What would have to change?"


class NextLaunch(Struct, frozen=True):
    """The next launch to make."""

    server: Server
    rps: float
    schedule: int
    share: float = 1.0  # of the duration of a full launch


NextLaunches = Iterator[NextLaunch | None]  # the most important first


class Reach(Struct, frozen=True):
    """The measured limits of a candidate: its highest passing rate below all failing ones, and its
    lowest failing rate; None if there is none yet."""

    passing_rps: float | None = None
    failing_rps: float | None = None


class Search(Struct, dict=True, frozen=True, eq=False):
    """The state of the search, derived from the launches so far and the forecasts."""

    study: Study
    terms: Sequence[Term]
    servers: Sequence[Server]  # all candidates of classes with known needs
    expected: Mapping[str, Expected]  # by the server's key
    has_forecast: bool = True  # False until the forecast is computed

    @property
    def target_rps(self) -> float:
        return self.study.request.rate_rps

    @cached_property
    def order(self) -> list[Server]:
        """Candidates that fit into memory, in the order in which they are tried."""
        candidates = [server for server in self.servers if self.fits_memory(server)]
        best_rps = max(map(self.forecast_rps, candidates), default=0.0)

        def sort_key(server: Server) -> tuple[object, ...]:
            rps = self.forecast_rps(server)
            if not best_rps:  # none is forecast to meet the target at any rate
                times = limited_times(self.expected[server.key].central, self.terms)
                ratio = max((value_s / term.limit for term, value_s in times), default=0.0)
                return ratio, *self.cost(server)
            if rps >= EQUAL_FORECAST_SHARE * best_rps:
                return False, *self.cost(server)
            return True, -rps

        return sorted(candidates, key=sort_key)

    def fits_memory(self, server: Server) -> bool:
        """Whether the server fits into the memory limit; True if its memory is unknown."""
        limit_bytes = self.study.request.limits.memory_bytes
        used_bytes = self.expected[server.key].memory_bytes
        return limit_bytes is None or used_bytes is None or used_bytes <= limit_bytes

    def forecast_rps(self, server: Server) -> float:
        return self.expected[server.key].most_rps

    def cost(self, server: Server) -> tuple[float, int, int]:
        """Memory in bytes, workers, threads. Unknown memory counts as infinite."""
        memory = self.expected[server.key].memory_bytes
        return math.inf if memory is None else memory, server.workers, server.threads

    @property
    def any_forecast_meets(self) -> bool:
        """Whether any candidate is forecast to meet the target."""
        return any(self.forecast_rps(server) >= self.target_rps for server in self.order)

    @property
    def lacks_capacity(self) -> bool:
        """Whether the target's rate exceeds what slots and cores allow, for every candidate."""
        bounds = (self.expected[server.key].bound_rps for server in self.order)
        return self.has_forecast and all(bound_rps < self.target_rps for bound_rps in bounds)

    # --- results of the launches -------------------------------------------------------------

    @cached_property
    def standing(self) -> Callable[[Server], Standing]:
        """The standing at the target's rate. Errors at higher passing rates also count."""
        return cache(self._standing)

    @cached_property
    def reach(self) -> Callable[..., Reach]:
        """`reach(server, unpromising=False)`: the server's limits. `unpromising`: include rates
        that `_unpromising` excludes."""
        return cache(self._reach)

    def _standing(self, server: Server) -> Standing:
        target_rps, launches = self.target_rps, self.study.launches_of(server)
        passing_rps = self.reach(server).passing_rps or target_rps
        at_higher_rates = [launch for launch in launches if target_rps < launch.rps <= passing_rps]
        return standing(self.study.launches_at(server, target_rps), self.terms, at_higher_rates)

    def meets(self, server: Server) -> bool:
        return self.standing(server).word == "met"

    def _reach(self, server: Server, *, unpromising: bool = False) -> Reach:
        outcomes = {rps: self.passes(server, rps) for rps in self.study.rates(server)}
        failing_rps = next((rps for rps, passed in outcomes.items() if passed is False), None)
        passing = (
            rps
            for rps, passed in outcomes.items()
            if passed and rps < (failing_rps or math.inf)
            if unpromising or not self._unpromising(server, rps)
        )
        return Reach(max(passing, default=None), failing_rps)

    def passes(self, server: Server, rps: float) -> bool | None:
        """Whether the rate passes; None if unknown."""
        return passes(
            self.study.launches_at(server, rps), self.terms, self.count_met_nearby(server, rps)
        )

    def count_met_nearby(self, server: Server, rps: float) -> int:
        """The number of launches at this rate, and at higher ones up to MAX_GAP_RATIO times it,
        below the lowest rate at which a launch missed the target."""
        near = (near_rps for near_rps in self.study.rates(server)
                if rps <= near_rps <= MAX_GAP_RATIO * rps)  # fmt: skip
        return sum(
            map(len, takewhile(all, (self.launch_outcomes(server, near_rps) for near_rps in near)))
        )

    def launch_outcomes(self, server: Server, rps: float) -> list[bool]:
        """Whether each valid launch at this rate met the target."""
        return [meets_target(launch, self.terms) for launch in self.study.launches_at(server, rps)]

    def _unpromising(self, server: Server, rps: float) -> bool:
        """Whether this rate is above the target's, and discarded launches leave too few for a
        prediction: the machine or the load tool is near its limit there."""
        valid, launches = (
            len(self.study.launches_at(server, rps)),
            len(self.study.all_launches_at(server, rps)),
        )
        is_bounded = valid >= MIN_LAUNCHES
        return rps > self.target_rps and not is_bounded and launches - valid >= MAX_OTHER_DISCARDED

    def winner(self) -> Server | None:
        """The best of the candidates that meet the target; see `_cheapest_of_best`."""
        servers = filter(self.meets, self.order)
        return self._cheapest_of_best(
            {server: self.reach(server).passing_rps or 0.0 for server in servers}
        )

    def leader(self) -> Server | None:
        """The best candidate that may meet the target, by `_attainable_rps`; its standing is not
        "broken" or "undecidable". One that neither meets the target nor passed at any rate leads
        only if it may attain over BETTER_RATIO times the rate of each one that does."""
        attainable = {
            server: self._attainable_rps(server)
            for server in self.order
            if self.standing(server).word in ("met", "not shown yet")
        }
        measured = {
            server for server in attainable if self.meets(server) or self.reach(server).passing_rps
        }
        min_rps = BETTER_RATIO * max((attainable[server] for server in measured), default=0.0)
        may_lead = {
            server: rps for server, rps in attainable.items() if server in measured or rps > min_rps
        }
        return self._cheapest_of_best(may_lead)

    def _cheapest_of_best(self, rates: Mapping[Server, float]) -> Server | None:
        """The cheapest of the candidates within a factor of BETTER_RATIO of the highest rate."""
        best_rps = max(rates.values(), default=0.0)
        best = (
            server
            for server, rps in rates.items()
            if not best_rps or rounded(BETTER_RATIO * rps) > best_rps
        )
        return min(best, key=self.cost, default=None)

    def _attainable_rps(self, server: Server) -> float:
        """The highest passing rate, or the next rate to try below the ceiling if that is higher,
        since a candidate that narrowly fails at the ceiling nearly reaches it; 0 if unknown."""
        passing_rps, ceiling_rps = self.reach(server).passing_rps or 0.0, self._ceiling_rps(server)
        if ceiling_rps is None or ceiling_rps <= FINE_GAP_RATIO * passing_rps:
            return passing_rps
        if not passing_rps:
            return self._slightly_below(server, ceiling_rps)
        return max(passing_rps, self._below(server, passing_rps, ceiling_rps))

    def too_noisy(self, disturbed_before: int = 0) -> bool:
        """Whether noise disturbed at least MAX_DISCARDED launches, and more than are valid.
        `disturbed_before`: their number before the run was resumed, which does not count."""
        disturbed = self.study.disturbed - disturbed_before
        return disturbed >= MAX_DISCARDED and disturbed > len(self.study.valid)

    def unsendable(self) -> bool:
        """Whether the target's rate exceeds the load tool's ceiling on this machine."""
        ceiling = self.study.ceiling
        return ceiling is not None and not ceiling.at_least and self.target_rps > ceiling.rps

    def slow_in_all_classes(self) -> bool:
        """Whether requests are too slow in every class even with the server to themselves."""
        return all(slow_alone(needs, self.terms) for needs in self.study.needs.values())

    # --- the next launch ---------------------------------------------------------------------

    def next(self, launches_left: float = math.inf, disturbed_before: int = 0) -> NextLaunch | None:
        """The next launch; None if none is worth making. `launches_left`, here and below: the
        number of launches that the budget allows; `disturbed_before`: see `too_noisy`."""
        if self.too_noisy(disturbed_before) or self.slow_in_all_classes() or self.unsendable():
            return None
        return next(filter(None, self._launches(launches_left)), None)

    def _launches(self, launches_left: float) -> NextLaunches:
        """Launches worth making; None in place of one that was discarded too often."""
        for server in self._worth_launching():
            word = self.standing(server).word
            if word == "met":
                yield from self._improve(self.leader() or server, launches_left)
                return
            if word == "not shown yet":
                yield self._launch(server, self.target_rps)
        yield self._launch_below_target()

    def _worth_launching(self) -> list[Server]:
        """Candidates worth a launch at the target's rate: those forecast to meet it, classes with
        fewer failed candidates first, since candidates of a class behave alike; then, because
        forecasts may be wrong, the first of each class that is forecast to meet the target at
        MIN_FORECAST_SHARE of the rate. If there are none, the first of each class."""
        order, forecast_rps, rate_rps = self.order, self.forecast_rps, self.target_rps
        failures = Counter(
            server.variant for server in order if self.standing(server).word == "broken"
        )
        likely = [server for server in order if forecast_rps(server) >= rate_rps]
        likely.sort(key=lambda server: failures[server.variant])
        unlikely = _first_of_each(
            server
            for server in order
            if MIN_FORECAST_SHARE * rate_rps <= forecast_rps(server) < rate_rps
        )
        unlikely.sort(key=forecast_rps, reverse=True)
        return [*likely, *unlikely[:MAX_UNLIKELY]] or _first_of_each(order)[:MAX_UNLIKELY]

    def _improve(self, leader: Server, launches_left: float) -> NextLaunches:
        """Once a candidate meets the target, look for a better one, and for its highest rate."""
        undecided = self.standing(leader).word == "not shown yet"
        at_target = self.study.launches_at(leader, self.target_rps)
        reserved = MIN_LAUNCHES - len(at_target) if undecided else 0
        spare = launches_left - reserved - SPARE_LAUNCHES
        if spare > 0:
            yield self._launch_second_class(leader)
        if spare > 0 or not undecided:
            yield from self._raise(leader, spare, MAX_GAP_RATIO)
        passing_rps = self.reach(leader).passing_rps
        if launches_left > RESERVED_LAUNCHES:
            # The first launch may have passed by chance, and rivals have to exceed that rate
            yield self._launch_up_to(leader, passing_rps, CONFIRMING_LAUNCHES)
            yield from self._launch_rivals(leader)
            yield from self._raise(leader, spare, FINE_GAP_RATIO)
        winner = self.winner()
        if winner is not None and passing_rps is not None:  # reserve launches for that rate
            reserved += max(0, MIN_LAUNCHES - len(self.study.launches_at(leader, passing_rps)))
        if undecided and launches_left >= reserved:
            yield self._launch(leader, self.target_rps)
        yield from self._confirm(winner or leader, launches_left)
        if winner is not None:
            yield from self._bracket(winner, launches_left, leads=winner == leader)
        if launches_left > MIN_LAUNCHES + BRACKETING_LAUNCHES + SPARE_LAUNCHES:
            for candidate in self._best_unlaunched(leader)[:1]:
                yield self._launch(candidate, self._better_rps(leader))
            yield from self._launch_rivals(leader)
            yield from self._raise(leader, spare, FINE_GAP_RATIO)
        if winner is not None and launches_left >= MIN_LEFT_TO_REPEAT:
            yield self._launch_up_to(winner, self.reach(winner).passing_rps, MAX_LAUNCHES)

    def _bracket(self, winner: Server, launches_left: float, *, leads: bool) -> NextLaunches:
        """Raise the winner's rate: to within MAX_GAP_RATIO if the leader is another candidate,
        which the budget cannot confirm; to within FINE_GAP_RATIO unless the winner is shown to miss
        the target within MAX_GAP_RATIO of its highest passing rate."""
        if not leads:
            yield from self._raise(winner, launches_left, MAX_GAP_RATIO)
        shown_rps = self.shown_broken_rps(winner) or math.inf
        is_shown = shown_rps <= MAX_GAP_RATIO * (self.reach(winner).passing_rps or 0.0)
        if launches_left >= MIN_LAUNCHES and not is_shown:
            yield from self._raise(winner, launches_left, FINE_GAP_RATIO)

    def _launch_second_class(self, leader: Server) -> NextLaunch | None:
        """Launch the best candidate of a second class, after the leader's rate was raised and if no
        second class was launched: at the rate where the leader failed, or well above its passing
        rate. Slightly better candidates are not worth the launches that would show it."""
        is_raised = any(rps > self.target_rps for rps in self.study.rates(leader))
        candidates = self._best_unlaunched(leader)
        if not is_raised or not candidates or len(self._launched_variants) > 1:
            return None
        best, better_rps = candidates[0], self._better_rps(leader)
        ceiling_rps = self._ceiling_rps(leader) or rounded(MAX_GAP_RATIO * better_rps)
        max_rps = min(ceiling_rps, rounded(MAX_GAP_RATIO * self.forecast_rps(best)))
        return self._launch(best, max(better_rps, max_rps), SHORT_SHARE)

    def _launch_up_to(self, server: Server, rps: float | None, count: int) -> NextLaunch | None:
        """A further launch at this rate; None if there are `count` of them."""
        if rps is None or len(self.study.launches_at(server, rps)) >= count:
            return None
        return self._launch(server, rps)

    def _launch(self, server: Server, rps: float, share: float = 1.0) -> NextLaunch | None:
        """The launch; None if too many of the server's launches at this rate were discarded."""
        launches = self.study.all_launches_at(server, rps)
        reasons = list(filter(None, (launch.discard_reason for launch in launches)))
        only_noise = all(isinstance(reason, NOISE) for reason in reasons)  # others likely recur
        may_repeat = only_noise and rps == self.target_rps
        if len(reasons) >= (MAX_DISCARDED if may_repeat else MAX_OTHER_DISCARDED):
            return None
        if rps == self.target_rps and len(launches) - len(reasons) < MIN_LAUNCHES:
            share = min(share, self.target_share(server))
            forecast_rps = self.forecast_rps(server)
            if 0 < forecast_rps < rps and not any(self.launch_outcomes(server, rps)):
                share *= forecast_rps / rps  # requests waiting at its end are served after it
        return NextLaunch(server, rps, 1 + len(launches), share)

    def min_next_rps(self, server: Server) -> float:
        """The approximate lowest rate of the next launches of a server that meets the target: its
        highest passing rate or, before any rate above the target's has passed, a cautious one below
        those that failed."""
        passing_rps = self.reach(server).passing_rps or self.target_rps
        if passing_rps > self.target_rps:
            return passing_rps
        ceiling_rps = self._ceiling_rps(server)
        if ceiling_rps is None:
            return max(passing_rps, SAFE_RATE_SHARE * self.forecast_rps(server))
        return math.sqrt(passing_rps * ceiling_rps)

    def target_share(self, server: Server) -> float:
        """The share of a full launch that is enough to show the bound at the target's rate. It is
        one of CLEAR_SHARES if all launches there, and the forecast or some launch there or above,
        stayed below that share of every time limit: this leaves more of a small budget for higher
        rates."""
        all_launches, target_rps = self.study.launches_of(server), self.target_rps
        launches = [launch for launch in all_launches if launch.rps >= target_rps]
        at_target = self.study.launches_at(server, target_rps)
        forecast = partial(getattr, self.expected[server.key].high)
        for share in CLEAR_SHARES:
            clear = [launch for launch in launches if self._is_clear(launch, share)]
            is_clear = bool(clear) or self._are_below(share, forecast)
            if is_clear and all(launch in clear for launch in at_target):
                return share
        return 1.0

    def _is_clear(self, launch: CandidateLaunch, share: float) -> bool:
        """Whether the launch met the target, with times of at most this share of their limits."""
        times = partial(value_of, requests=launch.requests)
        return meets_target(launch, self.terms) and self._are_below(share, times)

    def _are_below(self, share: float, time_s: Callable[[Metric], float | None]) -> bool:
        """Whether the target limits times, and all are at most this share of their limits."""
        times = [(time_s(term.metric), term.limit) for term in self.terms if term.kind == "time"]
        return bool(times) and all(
            value_s is not None and value_s <= share * limit_s for value_s, limit_s in times
        )

    def _raise(self, server: Server, launches_left: float, gap_ratio: float) -> NextLaunches:
        """Raise the rate until the ceiling is at most `gap_ratio` times the highest passing rate.
        `launches_left`: those available for this."""
        passing_rps = self.reach(server).passing_rps or self.target_rps
        ceiling_rps, may_risk = self._ceiling_rps(server), launches_left >= MIN_LEFT_FOR_RISK
        is_wide = ceiling_rps is not None and ceiling_rps > gap_ratio * passing_rps
        if ceiling_rps and is_wide:
            launches = 1 + len(self.study.launches_at(server, ceiling_rps))
            count = MAX_REPEATED_LAUNCHES if gap_ratio == FINE_GAP_RATIO else launches
            if self._would_pass(server, ceiling_rps, min(count, MAX_REPEATED_LAUNCHES)):
                yield self._launch(server, ceiling_rps)
        if launches_left < MIN_LAUNCHES - 1 and passing_rps > self.target_rps:
            return  # save the launches for confirming this rate
        if ceiling_rps is None:
            higher = sum(rps > self.target_rps for rps in self.study.rates(server))
            next_rps = (MAX_GAP_RATIO / MAX_ROUNDING) ** max(1, higher) * passing_rps
            # Otherwise this is a rival, which is seldom much better
            if self.study.launches_at(server, self.target_rps):
                share = FIRST_RATE_SHARE if may_risk else SAFE_RATE_SHARE
                next_rps = max(next_rps, share * self.forecast_rps(server))
            yield self._launch(server, rounded(next_rps), SHORT_SHARE)
        elif is_wide:
            middle_rps = self._below(server, passing_rps, ceiling_rps)
            if not may_risk and not any(self.launch_outcomes(server, ceiling_rps)):
                middle_rps = rounded(math.sqrt(passing_rps * ceiling_rps))
            elif launches_left < MIN_LEFT_FOR_SMALL_STEPS:
                middle_rps = between(passing_rps, ceiling_rps)
            if passing_rps < middle_rps < ceiling_rps:
                short = ceiling_rps > MAX_GAP_RATIO**2 * passing_rps
                yield self._launch(server, middle_rps, SHORT_SHARE if short else 1.0)

    def _below(self, server: Server, passing_rps: float, failing_rps: float) -> float:
        """The next rate between a passing and a failing one; only slightly below the failing one if
        any launch met the target there."""
        failures = sum(rps >= failing_rps for rps in self.study.rates(server))
        middle_rps = between(passing_rps, failing_rps, failures)
        return max(middle_rps, self._slightly_below(server, failing_rps))

    def _slightly_below(self, server: Server, failing_rps: float) -> float:
        """The rate slightly below a failing one; 0 if no launch at the failing one met the
        target."""
        any_met = any(self.launch_outcomes(server, failing_rps))
        return rounded(failing_rps / FINE_GAP_RATIO) if any_met else 0.0

    def _would_pass(self, server: Server, rps: float, count: int) -> bool:
        """Whether there are fewer than `count` launches at this rate, and `count` are expected to
        show that it passes."""
        launches = self.study.launches_at(server, rps)
        return len(launches) < count and expected_to_pass(launches, self.terms, count)

    def _confirm(self, winner: Server, launches_left: float) -> NextLaunches:
        """Launch the winner at its highest passing rate MIN_LAUNCHES times, then at rates slightly
        above, then at that rate and the target's until the limit on errors is decided."""
        passing_rps = self.reach(winner).passing_rps or self.target_rps
        yield self._launch_up_to(winner, passing_rps, MIN_LAUNCHES)
        if len(self.study.launches_at(winner, passing_rps)) >= MIN_LAUNCHES:
            yield from self._narrow(winner, passing_rps, launches_left)
        if self.standing(winner).inconclusive:
            # Launches at the highest rate have more requests, which also count
            yield self._launch_up_to(winner, passing_rps, MAX_LAUNCHES)
            yield self._launch(winner, self.target_rps)

    def _narrow(self, server: Server, passing_rps: float, launches_left: float) -> NextLaunches:
        """Narrow the gap above the passing rate, unless a rate at most MAX_GAP_RATIO times as high
        is already shown to miss the target. Launch at the highest such rate, or the ceiling, which
        may merely be close to the limit. If neither misses the target, launch at a rate that may be
        shown to pass, then one that surely misses it, then one in between. Without a ceiling within
        that ratio launch nothing: the rate has yet to be raised."""
        ceiling_rps = self._ceiling_rps(server)
        shown_rps = self.shown_broken_rps(server) or math.inf
        limit_rps = MAX_GAP_RATIO * passing_rps
        if shown_rps <= limit_rps or ceiling_rps is None or ceiling_rps > limit_rps:
            return
        for rps in (max(rounded(limit_rps / MAX_ROUNDING), ceiling_rps), ceiling_rps):
            if self._may_miss(server, rps):
                yield self._launch(server, rps, SHORT_SHARE)
        if confirmable_rps := self._confirmable_rps(server, passing_rps, launches_left):
            yield self._launch(server, confirmable_rps)
        wide_rps = rounded(WIDE_GAP_RATIO / MAX_ROUNDING * passing_rps)
        if shown_rps > WIDE_GAP_RATIO * passing_rps and self._may_miss(server, wide_rps):
            yield self._launch(server, wide_rps, SHORT_SHARE)
        elif shown_rps < math.inf:
            middle_rps = rounded(math.sqrt(passing_rps * shown_rps))
            yield self._launch_up_to(server, middle_rps, MAX_REPEATED_LAUNCHES)

    def _may_miss(self, server: Server, rps: float) -> bool:
        """Whether a further launch may show that this rate misses the target."""
        outcomes = self.launch_outcomes(server, rps)
        return len(outcomes) < MIN_LAUNCHES - all(outcomes)

    def _confirmable_rps(
        self, server: Server, passing_rps: float, launches_left: float
    ) -> float | None:
        """The highest rate above the passing one, and below any at which a launch missed the
        target, that the launches the budget allows are expected to show to pass; None if there is
        none."""
        confirmable_rps = None
        for rps in self.study.rates(server):
            if rps > passing_rps:
                outcomes = self.launch_outcomes(server, rps)
                if not all(outcomes):
                    break
                count = int(min(MAX_LAUNCHES, len(outcomes) + launches_left))
                if count >= MIN_LAUNCHES and self._would_pass(server, rps, count):
                    confirmable_rps = rps
        return confirmable_rps

    def shown_broken_rps(self, server: Server) -> float | None:
        """The lowest rate above the highest passing one that is shown to miss the target. A single
        launch that narrowly misses it is not enough, nor are launches that all met it, however much
        they vary."""

        def is_shown(rps: float) -> bool:
            launches = self.study.launches_at(server, rps)
            return standing(launches, self.terms, beyond_share=RATE_BEYOND_SHARE).word == "broken"

        return next(filter(is_shown, self._broken_rates(server)), None)

    def broken_rps(self, server: Server) -> float | None:
        """The rate of `shown_broken_rps`, else the lowest of `_broken_rates`, else None."""
        return self.shown_broken_rps(server) or next(self._broken_rates(server), None)

    def _broken_rates(self, server: Server) -> Iterator[float]:
        """The rates above the highest passing one at which a launch missed the target,
        ascending."""
        passing_rps = self.reach(server).passing_rps or 0.0
        for rps in self.study.rates(server):
            if rps > passing_rps and not all(self.launch_outcomes(server, rps)):
                yield rps

    def _ceiling_rps(self, server: Server) -> float | None:
        """The lowest rate above the highest passing one at which launches missed the target, came
        too close to the limit to pass, or were discarded too often."""
        passing_rps = self.reach(server).passing_rps or self.target_rps

        def is_ceiling(rps: float) -> bool:
            failed = bool(self.study.launches_at(server, rps)) and not self.passes(server, rps)
            return failed or self._unpromising(server, rps)

        rates = {launch.rps for launch in self.study.launches if launch.server == server}
        return min((rps for rps in rates if rps > passing_rps and is_ceiling(rps)), default=None)

    def _launch_rivals(self, leader: Server) -> NextLaunches:
        """Launch rivals that may reach a higher rate, at the rate that would make them lead."""
        leader_rps, better_rps = self._leader_rps(leader), self._better_rps(leader)
        min_forecast_rps = EQUAL_FORECAST_SHARE * min(leader_rps, self.forecast_rps(leader))
        for rival in self._rivals(leader):
            ceiling_rps = self._ceiling_rps(rival) or math.inf
            is_limited = ceiling_rps <= FINE_GAP_RATIO * better_rps
            if self.forecast_rps(rival) >= min_forecast_rps and not is_limited:
                yield self._launch(rival, better_rps)

    def _best_unlaunched(self, leader: Server) -> list[Server]:
        """The best candidate of each class without a launch, unless its forecast is below
        MIN_FORECAST_SHARE of the leader's rate; the highest forecast first."""
        min_forecast_rps = MIN_FORECAST_SHARE * self._leader_rps(leader)
        return [
            server
            for server in _first_of_each(sorted(self.order, key=self.forecast_rps, reverse=True))
            if server.variant not in self._launched_variants
            if self.forecast_rps(server) >= min_forecast_rps
        ]

    def untried(self, leader: Server) -> list[Server]:
        """The best candidates of other classes that a longer search would launch."""
        return [] if self.next() is None else self._best_unlaunched(leader)

    @property
    def _launched_variants(self) -> set[str]:
        """Variants with at least one launch, discarded ones included."""
        return {launch.server.variant for launch in self.study.launches}

    def _leader_rps(self, leader: Server) -> float:
        """The rate that the leader may attain; the target's while that is unknown."""
        return self._attainable_rps(leader) or self.target_rps

    def _better_rps(self, leader: Server) -> float:
        """The rate at which another candidate would take the lead."""
        return rounded(BETTER_RATIO * self._leader_rps(leader))

    def _rivals(self, leader: Server) -> list[Server]:
        """The candidates that may meet the target: the rule of thumb with the leader's class and
        threads, the leader's neighbours in workers and threads, the first of each other class."""
        excluded = ("broken", "undecidable")
        servers = [server for server in self.order if self.standing(server).word not in excluded]
        by_class = {server.variant: server for server in reversed(servers)}
        by_class.pop(leader.variant, None)
        same_class = sorted(
            (server for server in servers if server.variant == leader.variant),
            key=lambda server: server.workers,
        )
        same_threads = [server for server in same_class if server.threads == leader.threads]
        smaller = [server for server in same_threads if server.workers < leader.workers]
        larger = [server for server in same_threads if server.workers > leader.workers]
        rule_of_thumb = self.study.request.limits.rule_of_thumb
        more_threads = [
            server
            for server in same_class
            if server.workers == leader.workers and server.threads > leader.threads
        ]
        return [
            *(server for server in larger if server.workers == rule_of_thumb),
            *larger[:1],
            *smaller[-1:],
            *more_threads[:1],
            *by_class.values(),
        ]

    def worst_ratio(self, server: Server) -> float:
        """The largest ratio of a measured time to its limit, in launches at the target's rate;
        infinite if there is none."""
        ratios = (
            bound.mean / bound.term.limit
            for bound in self.standing(server).bounds
            if bound.term.kind == "time" and bound.mean is not None
        )
        return max(ratios, default=math.inf)

    def nearest(self) -> Server | None:
        """The launched candidate with the highest passing rate, else the one whose times exceed the
        limit least."""
        return min(
            filter(self.study.launches_of, self.order),
            key=lambda server: (-(self.reach(server).passing_rps or 0.0), self.worst_ratio(server)),
            default=None,
        )

    def _launch_below_target(self) -> NextLaunch | None:
        """Launch the best candidate at the target's rate and, once it failed there, below it."""
        if not self.order:
            return None
        server = max(self.order[:MAX_UNLIKELY], key=self.forecast_rps)
        if not self.forecast_rps(server):
            server = self.nearest() or server
        passing_rps, failing_rps = (reach := self.reach(server)).passing_rps, reach.failing_rps
        if failing_rps is None:
            return self._launch(server, self.target_rps)
        if passing_rps is None:
            first_rps = FIRST_RATE_SHARE * self.forecast_rps(server)
            rps = first_rps if 0 < first_rps < failing_rps / FINE_GAP_RATIO else failing_rps / 2
            min_rps = max(MIN_RATE_SHARE * self.target_rps, MIN_RATE_RPS)
            return self._launch(server, rounded(rps)) if rps > min_rps else None
        if failing_rps > FINE_GAP_RATIO * passing_rps:
            middle_rps = self._below(server, passing_rps, failing_rps)
            if passing_rps < middle_rps < failing_rps:
                return self._launch(server, middle_rps)
        return None


def _first_of_each(servers: Iterable[Server]) -> list[Server]:
    """The first candidate of each variant."""
    return [group[0] for group in grouped(servers, lambda server: server.variant).values()]


def between(passing_rps: float, failing_rps: float, failures: int = 1) -> float:
    """The next rate between the two. `failures`: number of failing rates so far. Forecasts are
    seldom far off, so the first step down is by a factor of MAX_GAP_RATIO, less what rounding may
    add. Each failure squares the factor, but the rate is at least the geometric mean of the two."""
    step_ratio = (MAX_GAP_RATIO / MAX_ROUNDING) ** (2 ** (max(1, failures) - 1))
    return rounded(max(math.sqrt(passing_rps * failing_rps), failing_rps / step_ratio))


def rounded(rps: float) -> float:
    """The rate to three significant digits."""
    return float(f"{rps:.3g}")


SLOW_ALONE_RATIO = 1.25  # value over limit; below it, launches decide
UNDISTURBED_CPU_SHARE = 0.5  # of CPU time measured while other programs use caches and cores


SOME_REQUESTS = "{share:percent} of the requests[[, {all_or_most} to {routes:list},]]"
ROUTE_SLOW_SHARE = 0.5  # of a route's requests; if as many or more are slow, it is named


class SlowAlone(Answer):
    """{which} take too long for {term} even with the server to themselves: without any waiting, the
    {metric} would be[[ {bound}]] {value_s:duration}. No server setting changes that."""

    question = LIMIT_QUESTION

    which: str  # requests
    term: str
    metric: Metric
    bound: Literal["", "at least"]
    value_s: float
    routes: tuple[str, ...]  # those whose requests are mostly too slow
    share: float  # of the requests


def times_alone_s(needs: Needs) -> list[float]:
    """The time of each request with the server to itself. If other programs disturbed the
    measurement, only UNDISTURBED_CPU_SHARE of the CPU time counts."""
    cpu_share = UNDISTURBED_CPU_SHARE if needs.disturbed else 1.0
    outside_app_s = needs.gap_s + needs.beside_s
    return [
        need.wait_s + need.blocked_s + cpu_share * (need.cpu_s + need.nogil_s) + outside_app_s
        for need in needs.requests
    ]


def slow_alone(
    needs: Needs, terms: Sequence[Term], min_ratio: float = SLOW_ALONE_RATIO
) -> SlowAlone | None:
    """The answer for the first term on a time that requests miss even alone on the server; None if
    there is none. The difference must be significant and over `min_ratio`, since the needs come
    from a short load: otherwise launches decide. Terms on `max` are skipped: the needs may not
    include the slowest kind of request."""
    times_s = times_alone_s(needs)
    alone = requests_of(times_s)
    for term in terms:
        if term.kind != "time" or term.metric == "max" or judge(term, alone).result != "broken":
            continue
        value_s = value_of(term.metric, alone) or 0.0
        if value_s >= min_ratio * term.limit:
            timed = zip(needs.requests, times_s, strict=True)
            slow = Counter(need.route for need, took_s in timed if not term.holds(took_s))
            sent = Counter(need.route for need in needs.requests)
            routes = sorted(
                name for name in slow if name and slow[name] >= ROUTE_SLOW_SHARE * sent[name]
            )
            share = slow.total() / len(times_s)
            all_or_most = "all" if set(slow) == set(routes) else "most"
            values = {"share": share, "routes": routes, "all_or_most": all_or_most}
            return SlowAlone(
                which="Requests" if share == 1 else fill(SOME_REQUESTS, values),
                term=str(term),
                metric=term.metric,
                bound="at least" if needs.disturbed else "",
                value_s=value_s,
                routes=tuple(routes),
                share=share,
            )
    return None


def search_of(study: Study, plan: Plan) -> Search:
    expected = codec.convert(plan.details.get("expected", ()), tuple[Expected, ...])
    servers = codec.convert(plan.details.get("servers", ()), tuple[Server, ...])
    by_key = {forecast.key: forecast for forecast in expected}
    return Search(study, parse(study.request.slo), servers, by_key, "expected" in plan.details)
