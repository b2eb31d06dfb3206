"""Chooses the next launch of `advise`: a search, not a grid.

    1. launch candidates at the target's rate, in the order of the forecast, until the prediction
       bound of one meets the target
    2. raise its rate by short launches: first to the forecast, which is a guess, then between the
       last passing and the first failing rate until they are within WIDE of each other. Launch the
       best candidate of a second class before raising the rate a second time
    3. launch the leader a second time at its last passing rate
    4. try rivals slightly above the leader's rate: of its own class the rule-of-thumb number of
       workers, a few more, fewer, and more threads; of every other class the first candidate, if
       its forecast is about as high. A rival that passes becomes the leader, and its rate is raised
    5. bring the leader's passing and failing rates within CLOSE of each other
    6. launch the final leader at the target's rate until its bound is known; with a small budget,
       do this first. If it breaks the target, the next candidate leads
    7. launch its last passing rate until its bound is known, or that of a lower rate; then a rate
       at most WIDE times as high until it is shown to break the target
    8. launch it until there are enough requests for the limit on errors
    9. while the budget lasts, try the best candidate of each class without a launch slightly above
       the leader's rate: its forecast may be far too low

All classes are tried before one is examined closely: near the breaking point the result depends on
the schedule, and a single candidate would use up the budget. More workers than the forecast needs
are tried because the kernel gives cores to every process that is ready to run, including the load
tool: candidates with the same forecast may perform quite differently.

Order: first the candidates within NEAR of the best forecast, by cost (memory, then workers, then
threads), then the others by forecast. If no forecast holds at any rate, the candidates whose times
exceed the limit least come first. If no candidate meets the target, the rate of the best one is
lowered to find where the target holds.

Apart from the remaining budget, everything depends on the recorded launches alone, so a resumed run
continues as it would have. The k-th launch of any candidate at a rate has schedule k.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from workerlab import codec
from workerlab.analysis.target import judge, requests_of, value_of
from workerlab.experiments.advise.forecast import Expected, distance
from workerlab.experiments.advise.standing import (
    LEAST,
    Standing,
    bound_after,
    passes,
    standing,
)
from workerlab.experiments.advise.study import NOISE, CandidateLaunch, Study, holds
from workerlab.finding import Answer
from workerlab.model import Needs, Plan, Server
from workerlab.slo import Metric, Term, parse

NEAR = 0.95  # of the best forecast: candidates above it count as equal
WIDE = 1.25  # first failing rate over last passing rate: the promised precision
CLOSE = 1.075  # the same, if the budget allows
AHEAD = 0.95  # of the forecast: the first rate tried on the way up
BEYOND = 1.05  # times the leader's rate: a rival must reach it to be better
HOPE = 0.5  # of the target's or leader's rate: lower forecasts are tried only as a last resort
SURER = 0.5  # of the forecast: the rate tried if few launches are left
CONFIRMED = 2  # launches at the leader's last passing rate before rivals are tried
ENOUGH = 9  # launches left: with no more, the leader is confirmed and no rivals are tried
LAST_RATE = 4  # launches left: with fewer, one big step down, to keep some for confirmation
FEW = 3  # launches left for raising the rate: with fewer, big steps, from SURER of the forecast
ROUNDING = 1.005  # the largest factor by which `rounded` changes a rate
BRACKET = 2  # launches that bring the leader's rates within WIDE of each other
WELL_BELOW = 0.5  # of a limit: measured times below it need fewer requests for a verdict
FAR_BELOW = 0.25  # of a limit: the same for the upper end of a forecast
MORE = 2  # launches beyond LEAST, if they would show that the rate holds
SPARE = 1  # launch reserved for the leader, in case one is discarded
TRIES = 4  # candidates launched although they are forecast to break the target
MAX_VOIDS = 4  # discarded launches of a candidate at the target's rate, or in all due to noise
MAX_VOIDS_BESIDE = 2  # of a candidate at another rate, or if noise was not the only cause
LOWEST = 0.02  # of the target's rate: the lowest rate tried
LOWEST_RPS = 0.1  # below it, a launch of a minute has too few requests
LIMIT = "What would have to change?"


class Next(Struct, frozen=True):
    """The next launch to make."""

    server: Server
    rps: float
    schedule: int
    short: bool = False  # a short load, to find rates worth a long one


class Reach(Struct, frozen=True):
    """The measured limits of a candidate, requests/s. `last`: the highest passing rate below all
    failing ones; `first`: the lowest failing rate. None: there is none yet."""

    last: float | None = None
    first: float | None = None

    @property
    def is_close(self) -> bool:
        return bool(self.last and self.first and self.first <= CLOSE * self.last)


class Search(Struct, dict=True, frozen=True, eq=False):
    """The state of the search, derived from the launches so far and the forecasts."""

    study: Study
    terms: Sequence[Term]
    servers: Sequence[Server]  # all candidates of classes with known needs
    expected: Mapping[str, Expected]  # by the server's key
    foreseen: bool = True  # whether the forecast has been computed

    @property
    def target_rps(self) -> float:
        return self.study.request.rate_rps

    def order(self) -> list[Server]:
        """Candidates that fit into memory, in the order in which they are tried."""
        fitting = [server for server in self.servers if self.fits(server)]
        best = max(map(self.highest, fitting), default=0.0)

        def place(server: Server) -> tuple[object, ...]:
            highest = self.highest(server)
            if not best:  # no forecast holds at any rate: the closest to the limit first
                central = self.expected[server.key].central
                return distance(central, self.terms), *self.cost(server)
            near = highest >= NEAR * best
            return (not near, *((0.0, *self.cost(server)) if near else (-highest,)))

        return sorted(fitting, key=place)

    def fits(self, server: Server) -> bool:
        limit, memory = (
            self.study.request.limits.memory_bytes,
            self.expected[server.key].memory_bytes,
        )
        return limit is None or memory is None or memory <= limit

    def highest(self, server: Server) -> float:
        return self.expected[server.key].most_rps

    def cost(self, server: Server) -> tuple[float, int, int]:
        """Memory, workers, threads. Unknown memory counts as infinite."""
        memory = self.expected[server.key].memory_bytes
        return math.inf if memory is None else memory, server.workers, server.threads

    @property
    def able(self) -> bool:
        """Whether any candidate is forecast to keep the target."""
        return any(self.highest(server) >= self.target_rps for server in self.order())

    # --- results of the launches -------------------------------------------------------------

    @cached_property
    def _standings(self) -> dict[Server, Standing]:
        return {}

    @cached_property
    def _reaches(self) -> dict[tuple[Server, bool], Reach]:
        return {}

    def standing(self, server: Server) -> Standing:
        """The standing at the target's rate. Errors at higher passing rates count, too."""
        if server not in self._standings:
            self._standings[server] = self._standing(server)
        return self._standings[server]

    def _standing(self, server: Server) -> Standing:
        last = self.reach(server).last or self.target_rps
        launches = self.study.of(server)
        at_higher_rates = [launch for launch in launches if self.target_rps < launch.rps <= last]
        return standing(self.study.at(server, self.target_rps), self.terms, at_higher_rates)

    def meets(self, server: Server) -> bool:
        return self.standing(server).word == "met"

    def reach(self, server: Server, *, unpromising: bool = False) -> Reach:
        """`unpromising`: include the rates that `_unpromising` excludes."""
        if (server, unpromising) not in self._reaches:
            self._reaches[server, unpromising] = self._reach(server, unpromising)
        return self._reaches[server, unpromising]

    def _reach(self, server: Server, unpromising: bool) -> Reach:
        rates = sorted({launch.rps for launch in self.study.of(server)})
        outcomes = {rps: passes(self.study.at(server, rps), self.terms) for rps in rates}
        first = min((rps for rps in rates if outcomes[rps] is False), default=None)
        passing = [rps for rps in rates if outcomes[rps] and (first is None or rps < first)]
        last = max((rps for rps in passing if unpromising or not self._unpromising(server, rps)),
                   default=None)  # fmt: skip
        return Reach(last, first)

    def _unpromising(self, server: Server, rps: float) -> bool:
        """Whether discarded launches leave too few for a prediction at this rate, which is above
        the target's: the machine or the load tool is near its limit."""
        valid, launches = len(self.study.at(server, rps)), len(self.study.all_at(server, rps))
        voids = launches - valid
        return rps > self.target_rps and valid < LEAST and voids >= MAX_VOIDS_BESIDE

    def winner(self) -> Server | None:
        """The best of the candidates that meet the target; see `_first_of`."""
        able = filter(self.meets, self.order())
        return self._first_of({server: self.reach(server).last or 0.0 for server in able})

    def leader(self) -> Server | None:
        """The best candidate that may meet the target, by `_promise`: its standing is not "broken"
        or "undecidable", and it meets the target or passed at some rate. One without a passing rate
        leads only if its promise exceeds BEYOND times that of all the others."""
        promises = {
            server: self._promise(server)
            for server in self.order()
            if self.standing(server).word in ("met", "not shown yet")
        }
        measured = {
            server: rps
            for server, rps in promises.items()
            if self.meets(server) or self.reach(server).last
        }
        mark_rps = BEYOND * max(measured.values(), default=0.0)
        return self._first_of(
            {
                server: rps
                for server, rps in promises.items()
                if server in measured or rps > mark_rps
            }
        )

    def _first_of(self, reached: Mapping[Server, float]) -> Server | None:
        """The cheapest of the candidates within a factor of BEYOND of the highest rate."""
        most = max(reached.values(), default=0.0)
        near = [
            server for server, rps in reached.items() if not most or rounded(BEYOND * rps) > most
        ]
        return min(near, key=self.cost, default=None)

    def _promise(self, server: Server) -> float:
        """The last passing rate, or the next rate to try below the ceiling if that is higher: a
        candidate that just fails or just holds there reaches nearly as much."""
        last, ceiling = self.reach(server).last or 0.0, self._ceiling(server)
        if ceiling is None or (last and ceiling <= CLOSE * last):
            return last
        if not last:
            return rounded(ceiling / CLOSE) if self._held(server, ceiling) else 0.0
        return max(last, self._below(server, last, ceiling))

    def _held(self, server: Server, rps: float) -> bool:
        """Whether any launch at this rate kept the target."""
        return any(holds(launch, self.terms) for launch in self.study.at(server, rps))

    def too_noisy(self, before: int = 0) -> bool:
        """Whether noise spoilt at least MAX_VOIDS launches, and more than are valid. `before`: the
        number of disturbed launches when the run was resumed; they do not count."""
        disturbed = self.study.disturbed - before
        return disturbed >= MAX_VOIDS and disturbed > len(self.study.valid)

    def unsendable(self) -> bool:
        """Whether the target's rate exceeds the load tool's ceiling on this machine."""
        ceiling = self.study.ceiling
        return ceiling is not None and not ceiling.at_least and self.target_rps > ceiling.rps

    def hopeless(self) -> bool:
        """Whether in every class requests are too slow even with the server to themselves."""
        return all(slow_alone(needs, self.terms) for needs in self.study.needs.values())

    # --- the next launch ---------------------------------------------------------------------

    def next(self, left: float = math.inf, before: int = 0) -> Next | None:
        """The next launch; None if there is nothing more to find out. `left`: number of launches
        that the budget allows; `before`: see `too_noisy`."""
        if self.too_noisy(before) or self.hopeless() or self.unsendable():
            return None
        order = self.order()
        for server in self._hopeful(order):
            word = self.standing(server).word
            if word == "met":
                return self._around(self.leader() or server, order, left)
            next_launch = self._launch(server, self.target_rps) if word == "not shown yet" else None
            if next_launch is not None:  # else too many of its launches were discarded
                return next_launch
        return self._lower(order)

    def _hopeful(self, order: Sequence[Server]) -> list[Server]:
        """Candidates worth a launch at the target's rate: those forecast to keep it, classes with
        fewer broken candidates first, since candidates of a class behave alike; then, as forecasts
        may be wrong, the first of each class with a forecast above HOPE times the rate. If there
        are none, the first of each class."""
        broke = Counter(
            server.variant for server in order if self.standing(server).word == "broken"
        )
        able = [server for server in order if self.highest(server) >= self.target_rps]
        able.sort(key=lambda server: broke[server.variant])
        nearly = {
            server.variant: server
            for server in reversed(order)
            if HOPE * self.target_rps <= self.highest(server) < self.target_rps
        }
        first = sorted(nearly.values(), key=self.highest, reverse=True)
        return [*able, *first[:TRIES]] or _first_of_each(order)[:TRIES]

    def _around(self, leader: Server, order: Sequence[Server], left: float) -> Next | None:
        """Once a candidate meets the target: look for a better one, and for its highest rate."""
        next_launch, undecided = None, self.standing(leader).word == "not shown yet"
        needed = LEAST - len(self.study.at(leader, self.target_rps)) if undecided else 0
        spare = left - needed - SPARE
        if not undecided or spare > 0:
            next_launch = self._second_class(leader, order) if spare > 0 else None
            next_launch = next_launch or self._raise(leader, spare, WIDE)
        if next_launch is None and left > ENOUGH:
            next_launch = self._confirmed(leader) or self._rivals(leader, order)
            next_launch = next_launch or self._raise(leader, spare, CLOSE)
        winner, last = self.winner(), self.reach(leader).last
        if winner is not None and last is not None:  # reserve launches for the leader's last rate
            needed += max(0, LEAST - len(self.study.at(leader, last)))
        if next_launch is None and undecided and left >= needed:
            next_launch = self._launch(leader, self.target_rps)
        next_launch = next_launch or self._sure(winner or leader)
        if next_launch is None and winner is not None:
            next_launch = self._bracket(winner, left, leads=winner == leader)
        if next_launch is None and left > LEAST + BRACKET + SPARE:
            next_launch = self._long_shots(leader, order) or self._rivals(leader, order)
            next_launch = next_launch or self._raise(leader, spare, CLOSE)
        return next_launch

    def _bracket(self, winner: Server, left: float, leads: bool) -> Next | None:
        """Raise the winner's rate: to within WIDE if another candidate leads that the budget cannot
        confirm; to within CLOSE unless the winner is shown to break the target within WIDE of its
        last passing rate."""
        next_launch = None if leads else self._raise(winner, left, WIDE)
        last, breaks_at = self.reach(winner).last, self.breaks_at(winner)
        if next_launch or left < LEAST or (last and breaks_at and breaks_at <= WIDE * last):
            return next_launch
        return self._raise(winner, left, CLOSE)

    def _second_class(self, leader: Server, order: Sequence[Server]) -> Next | None:
        """The best candidate of a second class, once the leader's rate was raised and if no second
        class was launched: at the rate where the leader failed, or well above its passing rate.
        Slightly better candidates are not worth the launches that would show it."""
        raised = any(launch.rps > self.target_rps for launch in self.study.of(leader))
        others = self._unlaunched(leader, order)
        if not raised or not others or len(self._launched) > 1:
            return None
        best, least_rps = others[0], self._beyond(leader)
        ceiling = self._ceiling(leader) or rounded(WIDE * least_rps)
        highest_rps = min(ceiling, rounded(WIDE * self.highest(best)))
        return self._launch(best, max(least_rps, highest_rps), short=True)

    def _confirmed(self, leader: Server) -> Next | None:
        """A second launch at the leader's last passing rate: the first one may have passed by
        chance, and rivals have to exceed that rate."""
        last = self.reach(leader).last
        few = last is not None and len(self.study.at(leader, last)) < CONFIRMED
        return self._launch(leader, last) if last is not None and few else None

    def _launch(self, server: Server, rps: float, *, short: bool = False) -> Next | None:
        """None if too many launches of the server at this rate were discarded."""
        launches = self.study.all_at(server, rps)
        voids = [launch.void for launch in launches if launch.void is not None]
        noise = all(isinstance(void, NOISE) for void in voids)  # other causes are likely to recur
        if len(voids) >= (MAX_VOIDS if noise and rps == self.target_rps else MAX_VOIDS_BESIDE):
            return None
        at_target = rps == self.target_rps and len(self.study.at(server, rps)) < LEAST
        short = short or (at_target and self.is_clear(server))
        return Next(server, rps, 1 + len(launches), short)

    def is_clear(self, server: Server) -> bool:
        """Whether the forecast, or some launch at or above the target's rate, and every launch at
        that rate stayed well below every limit. Then short launches at that rate suffice for the
        bound, which leaves more of a small budget for higher rates."""
        above = [launch for launch in self.study.of(server) if launch.rps >= self.target_rps]
        at_target = self.study.at(server, self.target_rps)
        return all(map(self._far_from_limits, at_target)) and (
            any(map(self._far_from_limits, above)) or self._forecast_far_from_limits(server)
        )

    def _forecast_far_from_limits(self, server: Server) -> bool:
        high = self.expected[server.key].high
        times = [(getattr(high, term.metric, None), term) for term in self.terms
                 if term.kind == "time"]  # fmt: skip
        return bool(times) and all(
            value_s is not None and value_s <= FAR_BELOW * term.limit for value_s, term in times
        )

    def _far_from_limits(self, launch: CandidateLaunch) -> bool:
        values = [(term, value_of(term.metric, launch.requests)) for term in self.terms]
        return holds(launch, self.terms) and all(
            term.kind != "time" or (value is not None and value <= WELL_BELOW * term.limit)
            for term, value in values
        )

    def _raise(self, server: Server, left: float, within: float) -> Next | None:
        """Raise the rate until the first failing rate is at most `within` times the last passing
        one. `left`: number of launches available for this."""
        last, first = self.reach(server).last or self.target_rps, self._ceiling(server)
        if first is not None and first > within * last and self._nearly(server, first):
            return self._launch(server, first)
        if left < LEAST - 1 and last > self.target_rps:
            return None  # keep the launches for confirming this rate
        if first is None:
            rates = {launch.rps for launch in self.study.of(server)}
            passed = [rps for rps in rates if rps > self.target_rps]
            next_rps = (WIDE / ROUNDING) ** max(1, len(passed)) * last
            if self.study.at(server, self.target_rps):  # else a rival, seldom much better
                next_rps = max(next_rps, (SURER if left < FEW else AHEAD) * self.highest(server))
            return self._launch(server, rounded(next_rps), short=True)
        if first > within * last:
            middle = self._below(server, last, first)
            if left < FEW and not self._held(server, first):
                middle = rounded(math.sqrt(last * first))
            elif left < LAST_RATE:
                middle = between(last, first)
            if last < middle < first:
                return self._launch(server, middle, short=first > WIDE**2 * last)
        return None

    def _below(self, server: Server, last: float, first: float) -> float:
        """The next rate between a passing and a failing one. If any launch held at the failing one,
        only slightly below it."""
        close = rounded(first / CLOSE) if self._held(server, first) else 0.0
        failed = {launch.rps for launch in self.study.of(server) if launch.rps >= first}
        return max(between(last, first, len(failed)), close)

    def _nearly(self, server: Server, rps: float) -> bool:
        """Whether all launches at this rate held, and one more like them would bring every bound
        within its limit; False from LEAST + MORE launches on."""
        launches = self.study.at(server, rps)
        if not LEAST <= len(launches) < LEAST + MORE:
            return False
        times = (
            bound for bound in standing(launches, self.terms).bounds if bound.term.kind == "time"
        )
        return all(holds(launch, self.terms) for launch in launches) and all(
            bound_after(bound) <= bound.term.limit for bound in times
        )

    def _sure(self, winner: Server) -> Next | None:
        """Confirm the winner: launch its last passing rate LEAST times, then a rate that should
        break the target, then the target's rate until the limit on errors is decided."""
        last = self.reach(winner).last or self.target_rps
        next_launch = None
        if len(self.study.at(winner, last)) < LEAST:
            next_launch = self._launch(winner, last)
        if next_launch is None and (broken := self._to_break(winner, last)):
            next_launch = self._launch(winner, broken, short=True)
        if next_launch is None and self.standing(winner).unshown:
            next_launch = self._launch(winner, self.target_rps)
        return next_launch

    def _to_break(self, server: Server, last: float) -> float | None:
        """A rate at which further launches may show that the target breaks: WIDE times the last
        passing one, else the ceiling, which may just be close to the limit. None if it is already
        shown to break within WIDE, or if there is no ceiling within WIDE."""
        ceiling, shown = self._ceiling(server), self.breaks_at(server)
        widest = rounded(WIDE / ROUNDING * last)
        if ceiling is None or ceiling > WIDE * last or (shown is not None and shown <= WIDE * last):
            return None
        rates = (max(widest, ceiling), ceiling)
        return next((rps for rps in rates if len(self.study.at(server, rps)) < LEAST), None)

    def breaks_at(self, server: Server) -> float | None:
        """The lowest rate above the last passing one that is shown to break the target. A single
        launch that breaks it slightly is not enough, nor are launches that all kept it, however
        much they vary."""
        rates = [rps for rps in self._broken(server)
                 if standing(self.study.at(server, rps), self.terms).word == "broken"]  # fmt: skip
        return min(rates, default=None)

    def broken_at(self, server: Server) -> float | None:
        """The rate of `breaks_at`, else the lowest rate above the last passing one at which a
        launch broke the target."""
        return self.breaks_at(server) or min(self._broken(server), default=None)

    def _broken(self, server: Server) -> set[float]:
        """The rates above the last passing one at which a launch broke the target."""
        last = self.reach(server).last or 0.0
        return {launch.rps for launch in self.study.of(server)
                if launch.rps > last and not holds(launch, self.terms)}  # fmt: skip

    def _ceiling(self, server: Server) -> float | None:
        """The lowest rate above the last passing one at which launches failed, came too close to
        the limit to pass, or were discarded too often. Nothing above it is tried."""
        above = self.reach(server).last or self.target_rps

        def is_close(rps: float) -> bool:
            launches = self.study.at(server, rps)
            failed = bool(launches) and not passes(launches, self.terms)
            return failed or self._unpromising(server, rps)

        rates = {launch.rps for launch in self.study.launches if launch.server == server}
        return min((rps for rps in rates if rps > above and is_close(rps)), default=None)

    def _rivals(self, leader: Server, order: Sequence[Server]) -> Next | None:
        """A rival that may reach a higher rate, at the rate that would make it the leader."""
        leader_rps, mark_rps = self._promise(leader) or self.target_rps, self._beyond(leader)
        min_forecast = NEAR * min(leader_rps, self.highest(leader))
        for other in self._others(leader, order):
            ceiling = self._ceiling(other)
            if self.highest(other) < min_forecast or (ceiling and ceiling <= CLOSE * mark_rps):
                continue
            next_launch = self._launch(other, mark_rps)
            if next_launch is not None:
                return next_launch
        return None

    def _long_shots(self, leader: Server, order: Sequence[Server]) -> Next | None:
        """The best candidate of a class without a launch."""
        others = self._unlaunched(leader, order)
        return self._launch(others[0], self._beyond(leader)) if others else None

    def _unlaunched(self, leader: Server, order: Sequence[Server]) -> list[Server]:
        """The best candidate of each class without a launch, unless its forecast is below HOPE
        times the leader's rate; the highest forecast first."""
        min_forecast = HOPE * (self._promise(leader) or self.target_rps)
        best = _first_of_each(sorted(order, key=self.highest, reverse=True))
        return [
            server
            for server in best
            if server.variant not in self._launched and self.highest(server) >= min_forecast
        ]

    @property
    def _launched(self) -> set[str]:
        """Variants with at least one launch, discarded ones included."""
        return {launch.server.variant for launch in self.study.launches}

    def _beyond(self, leader: Server) -> float:
        """The rate at which another candidate would take the lead."""
        return rounded(BEYOND * (self._promise(leader) or self.target_rps))

    def _others(self, leader: Server, order: Sequence[Server]) -> list[Server]:
        """Rivals: the rule of thumb with the leader's class and threads, the leader's neighbours in
        workers and threads, and the first of each other class that may meet the target."""
        able = [
            server
            for server in order
            if self.standing(server).word not in ("broken", "undecidable")
        ]
        first = {server.variant: server for server in reversed(able)}
        first.pop(leader.variant, None)
        same_class = [server for server in able if server.variant == leader.variant]
        same_threads = sorted(
            (server for server in same_class if server.threads == leader.threads),
            key=lambda server: server.workers,
        )
        smaller = [server for server in same_threads if server.workers < leader.workers]
        larger = [server for server in same_threads if server.workers > leader.workers]
        thumb = [server for server in larger if server.workers == self.study.request.limits.thumb]
        more_threads = [
            server
            for server in same_class
            if server.workers == leader.workers and server.threads > leader.threads
        ]
        return [*thumb, *larger[:1], *smaller[-1:], *more_threads[:1], *first.values()]

    def missed_by(self, server: Server) -> float:
        """The largest ratio of a measured time to its limit, in launches at the target's rate;
        infinite without launches."""
        times = (bound for bound in self.standing(server).bounds if bound.term.kind == "time")
        ratios = (bound.mean / bound.term.limit for bound in times if bound.mean is not None)
        return max(ratios, default=math.inf)

    def nearest(self) -> Server | None:
        """The launched candidate with the highest passing rate, else the one whose times exceed the
        limit least."""
        return min(
            filter(self.study.of, self.order()),
            key=lambda server: (-(self.reach(server).last or 0.0), self.missed_by(server)),
            default=None,
        )

    def _lower(self, order: Sequence[Server]) -> Next | None:
        """Launch the best candidate below the target's rate."""
        if not order:
            return None
        server = max(order[:TRIES], key=self.highest)
        if not self.highest(server):
            server = self.nearest() or server
        reach = self.reach(server)
        if reach.first is None:
            return self._launch(server, self.target_rps)
        if reach.last is None:
            ahead = AHEAD * self.highest(server)
            below = ahead if 0 < ahead < reach.first / CLOSE else reach.first / 2
            lowest = max(LOWEST * self.target_rps, LOWEST_RPS)
            return self._launch(server, rounded(below)) if below > lowest else None
        if not reach.is_close:
            middle = self._below(server, reach.last, reach.first)
            if reach.last < middle < reach.first:
                return self._launch(server, middle)
        return None


def _first_of_each(order: Sequence[Server]) -> list[Server]:
    """The first candidate of each variant."""
    first: dict[str, Server] = {}
    for server in order:
        first.setdefault(server.variant, server)
    return list(first.values())


def between(last: float, first: float, failed: int = 1) -> float:
    """The next rate between the last passing and the first failing one. `failed`: number of failing
    rates so far. Forecasts are seldom far off, so steps down start at a factor of WIDE and square
    it with each failure, but never go below the geometric mean of the two rates."""
    return rounded(max(math.sqrt(last * first), first / WIDE ** (2 ** (max(1, failed) - 1))))


def rounded(rps: float) -> float:
    """The rate to three significant digits."""
    return float(f"{rps:.3g}")


def launches_at(study: Study, server: Server) -> dict[float, list[CandidateLaunch]]:
    """The server's valid launches, by rate in ascending order."""
    by_rate: dict[float, list[CandidateLaunch]] = {}
    for launch in sorted(study.of(server), key=lambda launch: launch.rps):
        by_rate.setdefault(launch.rps, []).append(launch)
    return by_rate


class SlowAlone(Answer):
    """Requests that have the server to themselves take too long for {term}: {metric} is
    {value_s:duration}[[; too slow are {share:percent} of all, those of {routes:list}]]. No setting
    of Gunicorn changes that."""

    question = LIMIT

    term: str
    metric: Metric
    value_s: float
    routes: tuple[str, ...]
    share: float


def slow_alone(needs: Needs, terms: Sequence[Term]) -> SlowAlone | None:
    """The first term on a time that requests break even with the server to themselves, else None.
    The difference must be significant, since the needs come from a short load. Terms on `max` are
    skipped: the needs may not include the slowest kind of request."""
    times_s = [
        need.wait_s + need.cpu_s + need.blocked_s + need.nogil_s + needs.gap_s + needs.beside_s
        for need in needs.requests
    ]
    alone = requests_of(times_s)
    for term in terms:
        if term.kind == "time" and term.metric != "max" and judge(term, alone).result == "broken":
            value_s = value_of(term.metric, alone)
            assert value_s is not None  # a broken term has a value
            timed = zip(needs.requests, times_s, strict=True)
            slow = [need.route for need, took_s in timed if not term.holds(took_s)]
            return SlowAlone(
                term=str(term),
                metric=term.metric,
                value_s=value_s,
                routes=tuple(sorted(set(filter(None, slow)))),
                share=len(slow) / len(times_s),
            )
    return None


def search_of(study: Study, plan: Plan) -> Search:
    expected = codec.convert(plan.details.get("expected", ()), tuple[Expected, ...])
    servers = codec.convert(plan.details.get("servers", ()), tuple[Server, ...])
    by_key = {forecast.key: forecast for forecast in expected}
    return Search(study, parse(study.request.slo), servers, by_key, "expected" in plan.details)
