"""Which launch comes next: a search, not a grid.

    1. in the order of the forecast: the first candidate whose prediction bound keeps the target
    2. the rate is raised on it, short launches first: the forecast, which is a guess, then between
       the last rate that passed and the first that failed, until the two are within WIDE. The best
       of a second class is launched before the rate is raised a second time
    3. the two are brought within CLOSE: it leads, once a second launch holds at the last rate that
       passed
    4. tried a little beyond what the leader reached are, of its own class, as many workers as the
       rule of thumb says, a few more, fewer, and more threads; and of every other class the first
       that is expected to go about as far; one that passes there leads, and is raised in turn
    5. who leads in the end, or when the budget allows no more, is launched at the target's rate
       until its bound is known; where that breaks the target the next one leads
    6. the last rate that passes on it is seen as often as a prediction takes, or a lower one is
    7. it is launched until its requests are enough to show that few fail
    8. as long as the budget lasts, the best of each class that has had no launch is tried a little
       beyond what the leader reached, for its forecast may be far too low

All classes are looked at before one is looked at closely: near the rate at which it breaks, the
schedules decide, and a single candidate takes all the time there is. More workers than the forecast
asks for are tried because the kernel deals cores to whoever is ready to run, the load tool among
them: candidates that are forecast alike may differ by more than others do.

The order: candidates whose forecast is within NEAR of the best go first, the cheapest of them
before the others, by memory, then by threads. Where none meets the target, the best one's rate is
lowered instead, to say up to which rate the target would hold. Where it holds at no rate, those go
first whose times are the fewest times the limit.

Everything here is a function of what is on file, so that a run that was stopped goes on as it
would have. The k-th launch at a rate has schedule k, whichever candidate it is of.
"""

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
from workerlab.experiments.advise.study import NOISE, Launch, Study, holds
from workerlab.model import Finding, Needs, Plan, Server
from workerlab.slo import Term, parse

NEAR = 0.95  # of the best forecast: as good as the best
WIDE = 1.25  # between the last rate that passes and the first that fails: what is promised
CLOSE = 1.075  # between them where the budget allows
AHEAD = 0.95  # of the forecast: the first rate that is tried on the way up
BEYOND = 1.05  # times what the winner reached, for another candidate to be better
HOPE = 0.5  # of a rate: candidates of which less is forecast are not tried, while there are others
SURER = 0.5  # of the forecast: what is tried where few launches are left
CONFIRMED = 2  # launches at the last rate of who leads, before others are held against it
ENOUGH = 9  # launches left: with fewer, who leads is shown rather than others held against it
LAST_RATE = 4  # launches left: with fewer, one big step down, so that some are left to show it
FEW = 3  # launches left to raise the rate with: with fewer, big steps from half of the forecast
ROUNDING = 1.005  # times a rate: what it may be off by once rounded
BRACKET = 2  # launches that bring the rates of who leads within WIDE of each other
FAR = 0.5  # of a limit: a time below it takes fewer requests to be shown
MORE = 2  # launches beyond LEAST, where they would show that it holds
SPARE = 1  # launch, of those that are kept for who leads: one may be void
TRIES = 4  # candidates that are forecast to break the target
MOST_VOIDS = 4  # of a candidate at the target's rate: then the machine is too noisy
MOST_VOIDS_BESIDE = 2  # at another rate
LOWEST = 0.02  # of the target's rate
LOWEST_RPS = 0.1  # a launch of a minute has too few requests to say anything


class Next(Struct, frozen=True):
    """A launch to be made."""

    server: Server
    rps: float
    schedule: int
    short: bool = False  # it is to show which rates are worth a long one


class Reach(Struct, frozen=True):
    """Of a candidate: the highest rate that passed below any that failed, and the lowest that
    failed above it. None: there is none yet."""

    last: float | None = None
    first: float | None = None

    @property
    def known(self) -> bool:
        return bool(self.last and self.first and self.first <= CLOSE * self.last)


class Search(Struct, dict=True, frozen=True, eq=False):
    study: Study
    terms: Sequence[Term]
    servers: Sequence[Server]  # all candidates whose class is known
    expected: Mapping[str, Expected]  # by the server's key

    foreseen: bool = True  # whether there is a forecast yet

    @property
    def target_rps(self) -> float:
        return self.study.asked.rate_rps

    def order(self) -> list[Server]:
        """All candidates, those first that are tried first."""
        within = [one for one in self.servers if self.fits(one)]
        best = max((self.highest(one) for one in within), default=0.0)

        def place(server: Server) -> tuple[object, ...]:
            highest = self.highest(server)
            if not best:  # at no rate: who comes nearest
                central = self.expected[server.key].central
                return distance(central, self.terms), *self.cost(server)
            near = highest >= NEAR * best
            return (not near, *((0.0, *self.cost(server)) if near else (-highest,)))

        return sorted(within, key=place)

    def fits(self, server: Server) -> bool:
        limit, memory = self.study.asked.limits.memory_bytes, self.expected[server.key].memory_bytes
        return limit is None or memory is None or memory <= limit

    def highest(self, server: Server) -> float:
        return self.expected[server.key].most_rps

    def cost(self, server: Server) -> tuple[float, int, int]:
        """Memory, workers, threads. What is not known is not cheap."""
        memory = self.expected[server.key].memory_bytes
        return math.inf if memory is None else memory, server.workers, server.threads

    @property
    def able(self) -> bool:
        """Whether any candidate is forecast to keep the target."""
        return any(self.highest(one) >= self.target_rps for one in self.order())

    # --- what was found ----------------------------------------------------------------------

    @cached_property
    def _standings(self) -> dict[Server, Standing]:
        return {}

    @cached_property
    def _reaches(self) -> dict[tuple[Server, bool], Reach]:
        return {}

    def standing(self, server: Server) -> Standing:
        """At the target's rate. Errors are seen at higher rates that passed, too."""
        if server not in self._standings:
            self._standings[server] = self._standing(server)
        return self._standings[server]

    def _standing(self, server: Server) -> Standing:
        last = self.reach(server).last or self.target_rps
        also = [one for one in self.study.of(server) if self.target_rps < one.rps <= last]
        return standing(self.study.at(server, self.target_rps), self.terms, also)

    def meets(self, server: Server) -> bool:
        return self.standing(server).word == "met"

    def reach(self, server: Server, *, unpromising: bool = False) -> Reach:
        """`unpromising`: with rates at which too few launches say anything for a prediction."""
        if (server, unpromising) not in self._reaches:
            self._reaches[server, unpromising] = self._reach(server, unpromising)
        return self._reaches[server, unpromising]

    def _reach(self, server: Server, unpromising: bool) -> Reach:
        rates = sorted({one.rps for one in self.study.of(server)})
        tried = {rps: passes(self.study.at(server, rps), self.terms) for rps in rates}
        first = min((rps for rps in rates if tried[rps] is False), default=None)
        under = [rps for rps in rates if tried[rps] and (first is None or rps < first)]
        last = max((rps for rps in under if unpromising or not self._unpromising(server, rps)),
                   default=None)  # fmt: skip
        return Reach(last, first)

    def _unpromising(self, server: Server, rps: float) -> bool:
        """Whether so many launches at this rate, above the target's, say nothing that no prediction
        can be made: too little is left of the machine, or of the load tool."""
        launches = [launch for launch in self.study.launches
                    if launch.server == server and launch.rps == rps]  # fmt: skip
        void = sum(launch.void is not None for launch in launches)
        few = len(launches) - void < LEAST
        return rps > self.target_rps and few and void >= MOST_VOIDS_BESIDE

    def winner(self) -> Server | None:
        """The first of those that meet the target; see `_first_of`."""
        able = [one for one in self.order() if self.meets(one)]
        return self._first_of({one: self.reach(one).last or 0.0 for one in able})

    def leader(self) -> Server | None:
        """The first of those that may meet the target, by what they promise: nothing at its rate
        speaks against it, and at some rate it was seen to hold. One that held only by a little
        leads where the others promise less."""
        words = {one: self.standing(one).word for one in self.order()}
        may = {one: self._promise(one) for one, word in words.items() if word in ("met", "open")}
        known = {
            one: rps for one, rps in may.items() if words[one] == "met" or self.reach(one).last
        }
        most = max(known.values(), default=0.0)
        return self._first_of(
            {one: rps for one, rps in may.items() if one in known or rps > BEYOND * most}
        )

    def _first_of(self, reached: Mapping[Server, float]) -> Server | None:
        """The one that reaches furthest; the cheaper of two of which neither reached BEYOND the
        other."""
        most = max(reached.values(), default=0.0)
        near = [one for one, rps in reached.items() if not most or rounded(BEYOND * rps) > most]
        return min(near, key=self.cost, default=None)

    def _promise(self, server: Server) -> float:
        """The rate that it was seen to hold, or the next one that is tried below one that it did
        not: who fails at a rate by a little, or holds it by a little, reaches hardly less."""
        last, ceiling = self.reach(server).last or 0.0, self._ceiling(server)
        if ceiling is None or (last and ceiling <= CLOSE * last):
            return last
        if not last:
            return rounded(ceiling / CLOSE) if self._held(server, ceiling) else 0.0
        return max(last, self._below(server, last, ceiling))

    def _held(self, server: Server, rps: float) -> bool:
        """Whether some launch held there."""
        return any(holds(one, self.terms) for one in self.study.at(server, rps))

    def too_noisy(self, before: int = 0) -> bool:
        """Whether others disturbed more launches than say anything. `before`: so many were, when a
        run was resumed, and do not count."""
        disturbed = self.study.disturbed - before
        return disturbed >= MOST_VOIDS and disturbed > len(self.study.valid)

    def unsendable(self) -> bool:
        """Whether the load tool cannot send so many requests on this machine."""
        known = self.study.ceiling
        return known is not None and not known.at_least and self.target_rps > known.rps

    def hopeless(self) -> bool:
        """Whether requests that have a server to themselves are too slow, in every class."""
        return all(slow_alone(one, self.terms) for one in self.study.needs.values())

    # --- what is next ------------------------------------------------------------------------

    def next(self, left: float = math.inf, before: int = 0) -> Next | None:
        """None: there is nothing more to find out. `left`: launches that the budget allows;
        `before`: as of `too_noisy`."""
        if self.too_noisy(before) or self.hopeless() or self.unsendable():
            return None
        order = self.order()
        for server in self._hopeful(order):
            found = self.standing(server)
            if found.word == "met":
                return self._around(self.leader() or server, order, left)
            following = self._launch(server, self.target_rps) if found.word == "open" else None
            if following is not None:  # else nothing of its launches says anything
                return following
        return self._lower(order)

    def _hopeful(self, order: Sequence[Server]) -> list[Server]:
        """Those that are worth a launch at the target's rate. Of those that are forecast to break
        it only the first of each class: their forecast may be wrong, but they are all alike. So
        they are where one of a class broke it that was forecast to keep it: the other classes'
        turn comes first."""
        broke = Counter(
            server.variant for server in order if self.standing(server).word == "broken"
        )
        able = [one for one in order if self.highest(one) >= self.target_rps]
        able.sort(key=lambda server: broke[server.variant])
        nearly = {one.variant: one for one in reversed(order)
                  if HOPE * self.target_rps <= self.highest(one) < self.target_rps}  # fmt: skip
        first = sorted(nearly.values(), key=self.highest, reverse=True)
        return [*able, *first[:TRIES]] or _first_of_each(order)[:TRIES]

    def _around(self, leader: Server, order: Sequence[Server], left: float) -> Next | None:
        """Once something meets the target: whether there is better, and what the best reaches."""
        following, unknown = None, self.standing(leader).word == "open"
        wanting = LEAST - len(self.study.at(leader, self.target_rps)) if unknown else 0
        spare = left - wanting - SPARE
        if not unknown or spare > 0:
            following = self._second_class(leader, order) if spare > 0 else None
            following = following or self._raise(leader, spare, WIDE)
        if following is None and left > ENOUGH:
            following = self._confirmed(leader) or self._rivals(leader, order)
            following = following or self._raise(leader, spare, CLOSE)
        winner, last = self.winner(), self.reach(leader).last
        if winner is not None and last is not None:  # else that answer is shown
            wanting += max(0, LEAST - len(self.study.at(leader, last)))
        if following is None and unknown and left >= wanting:
            following = self._launch(leader, self.target_rps)
        following = following or self._sure(winner or leader)
        if following is None and winner is not None:
            following = self._bracket(winner, left, leads=winner == leader)
        if following is None and left > LEAST + BRACKET + SPARE:
            following = self._long_shots(leader, order) or self._rivals(leader, order)
            following = following or self._raise(leader, spare, CLOSE)
        return following

    def _bracket(self, winner: Server, left: float, leads: bool) -> Next | None:
        """Its rate is raised where there is no time to show that others lead, and as long as it is
        not shown to break the target within WIDE of the last rate that passed."""
        following = None if leads else self._raise(winner, left, WIDE)
        last, breaks_at = self.reach(winner).last, self.breaks_at(winner)
        if following or left < LEAST or (last and breaks_at and breaks_at <= WIDE * last):
            return following
        return self._raise(winner, left, CLOSE)

    def _second_class(self, leader: Server, order: Sequence[Server]) -> Next | None:
        """The best of another one, once the leader's rate was raised, where none was launched: at
        the rate where the leader failed, or well beyond the one where it held, since one that is
        hardly better is not worth the launches that show it."""
        raised = any(one.rps > self.target_rps for one in self.study.of(leader))
        others = self._unlaunched(leader, order)
        if not raised or not others or len({one.server.variant for one in self.study.launches}) > 1:
            return None
        best, least = others[0], self._beyond(leader)
        beyond = self._ceiling(leader) or rounded(WIDE * least)
        further = min(beyond, rounded(WIDE * self.highest(best)))
        return self._launch(best, max(least, further), short=True)

    def _confirmed(self, leader: Server) -> Next | None:
        """Its last rate that passed, seen twice: the first launch that held on the way up is often
        one that chance helped, and rivals would have to go beyond it."""
        last = self.reach(leader).last
        few = last is not None and len(self.study.at(leader, last)) < CONFIRMED
        return self._launch(leader, last) if last is not None and few else None

    def _launch(self, server: Server, rps: float, *, short: bool = False) -> Next | None:
        made = [one for one in self.study.launches if one.server == server and one.rps == rps]
        voids = [one.void for one in made if one.void is not None]
        noise = all(why.code in NOISE for why in voids)  # else the next will hardly be better
        if len(voids) >= (MOST_VOIDS if noise and rps == self.target_rps else MOST_VOIDS_BESIDE):
            return None
        at_target = rps == self.target_rps and len(self.study.at(server, rps)) < LEAST
        short = short or (at_target and self.is_clear(server))
        return Next(server, rps, 1 + len(made), short)

    def is_clear(self, server: Server) -> bool:
        """Whether a launch at the target's rate or above, and each at that rate, was so far from
        every limit that short ones at that rate will do for the bound: that leaves more of a small
        budget for higher rates."""
        above = [launch for launch in self.study.of(server) if launch.rps >= self.target_rps]
        at_target = self.study.at(server, self.target_rps)
        return any(map(self._far_from_limits, above)) and all(map(self._far_from_limits, at_target))

    def _far_from_limits(self, launch: Launch) -> bool:
        values = [(term, value_of(term.metric, launch.requests)) for term in self.terms]
        return holds(launch, self.terms) and all(
            term.kind != "time" or (value is not None and value <= FAR * term.limit)
            for term, value in values
        )

    def _raise(self, server: Server, left: float, within: float) -> Next | None:
        """Up to where a launch keeps the target: until the first rate that fails is `within` so
        many times the last that passed. `left`: launches that there are for it."""
        last, first = self.reach(server).last or self.target_rps, self._ceiling(server)
        if left < LEAST - 1 and last > self.target_rps:
            return None  # it can still be shown that it holds there
        if first is None:
            passed = {one.rps for one in self.study.of(server) if one.rps > self.target_rps}
            further = WIDE ** max(1, len(passed)) * last
            if self.study.at(server, self.target_rps):  # else a rival: seldom much further
                further = max(further, (SURER if left < FEW else AHEAD) * self.highest(server))
            return self._launch(server, rounded(further), short=True)
        if first > within * last:
            if self._nearly(server, first):
                return self._launch(server, first)
            middle = self._below(server, last, first)
            if left < FEW and not self._held(server, first):
                middle = rounded(math.sqrt(last * first))
            elif left < LAST_RATE:
                middle = between(last, first)
            if last < middle < first:
                return self._launch(server, middle, short=first > WIDE**2 * last)
        return None

    def _below(self, server: Server, last: float, first: float) -> float:
        """The rate to try between one that passed and one that did not. Where some launch held
        there, hardly less will."""
        close = rounded(first / CLOSE) if self._held(server, first) else 0.0
        failed = {one.rps for one in self.study.of(server) if one.rps >= first}
        return max(between(last, first, len(failed)), close)

    def _nearly(self, server: Server, rps: float) -> bool:
        """Whether all launches held there, and one or two more like them would show it."""
        launches = self.study.at(server, rps)
        if not LEAST <= len(launches) < LEAST + MORE:
            return False
        limits = {str(term): term.limit for term in self.terms if term.kind == "time"}
        bounds = standing(launches, self.terms).bounds
        return all(holds(launch, self.terms) for launch in launches) and all(
            bound_after(bound) <= limits.get(bound.term, math.inf) for bound in bounds
        )

    def _sure(self, winner: Server) -> Next | None:
        """The last rate that passes holds in further launches, or is a lower one; one that is at
        most WIDE times as high is shown to break the target; and errors are few."""
        last = self.reach(winner).last or self.target_rps
        following = None
        if len(self.study.at(winner, last)) < LEAST:
            following = self._launch(winner, last)
        if following is None and (broken := self._to_break(winner, last)):
            following = self._launch(winner, broken, short=True)
        if following is None and self.standing(winner).unshown:
            following = self._launch(winner, self.target_rps)
        return following

    def _to_break(self, server: Server, last: float) -> float | None:
        """A rate of which further launches may show that it breaks the target: one that is WIDE
        times the last, else the first that failed, which may only be close to the limit."""
        ceiling, shown = self._ceiling(server), self.breaks_at(server)
        widest = rounded(WIDE / ROUNDING * last)
        if ceiling is None or ceiling > WIDE * last or (shown is not None and shown <= WIDE * last):
            return None
        rates = (max(widest, ceiling), ceiling)
        return next((rps for rps in rates if len(self.study.at(server, rps)) < LEAST), None)

    def breaks_at(self, server: Server) -> float | None:
        """The lowest rate above the last that passed of which launches show that it breaks the
        target. One launch that breaks it by a little shows nothing, nor do launches that all kept
        it, however much they differ."""
        shown = [rps for rps in self._broken(server)
                 if standing(self.study.at(server, rps), self.terms).word == "broken"]  # fmt: skip
        return min(shown, default=None)

    def broken_at(self, server: Server) -> float | None:
        """Where it is shown to break the target, else the lowest rate above the last that passed
        at which a launch broke it."""
        return self.breaks_at(server) or min(self._broken(server), default=None)

    def _broken(self, server: Server) -> set[float]:
        """The rates above the last that passed at which a launch broke the target."""
        last = self.reach(server).last or 0.0
        return {launch.rps for launch in self.study.of(server)
                if launch.rps > last and not holds(launch, self.terms)}  # fmt: skip

    def _ceiling(self, server: Server) -> float | None:
        """The lowest rate above which nothing is tried: it failed, or is so close to the limit that
        it would, or others' programs left nothing of its launches."""
        above = self.reach(server).last or self.target_rps
        rates = {launch.rps for launch in self.study.launches
                 if launch.server == server and launch.rps > above}  # fmt: skip
        tried = {rps: self.study.at(server, rps) for rps in rates}
        close = {rps for rps in rates if self._unpromising(server, rps)
                 or (tried[rps] and not passes(tried[rps], self.terms))}  # fmt: skip
        return min(close, default=None)

    def _rivals(self, leader: Server, order: Sequence[Server]) -> Next | None:
        """Others that may go further: tried at the rate from which on they would lead."""
        most, mark = self._promise(leader) or self.target_rps, self._beyond(leader)
        expected = NEAR * min(most, self.highest(leader))
        for other in self._others(leader, order):
            ceiling = self._ceiling(other)
            if self.highest(other) < expected or (ceiling and ceiling <= CLOSE * mark):
                continue
            following = self._launch(other, mark)
            if following is not None:
                return following
        return None

    def _long_shots(self, leader: Server, order: Sequence[Server]) -> Next | None:
        """The best of each class that has had no launch."""
        others = self._unlaunched(leader, order)
        return self._launch(others[0], self._beyond(leader)) if others else None

    def _unlaunched(self, leader: Server, order: Sequence[Server]) -> list[Server]:
        """The best of each class that has had no launch, unless it is forecast to be hopeless."""
        worth = HOPE * (self._promise(leader) or self.target_rps)
        launched = {one.server.variant for one in self.study.launches}
        best = _first_of_each(sorted(order, key=self.highest, reverse=True))
        return [one for one in best
                if one.variant not in launched and self.highest(one) >= worth]  # fmt: skip

    def _beyond(self, leader: Server) -> float:
        """The rate from which on others would lead."""
        return rounded(BEYOND * (self._promise(leader) or self.target_rps))

    def _others(self, leader: Server, order: Sequence[Server]) -> list[Server]:
        """The rule of thumb with the leader's class and threads, the leader's neighbours, and the
        first of each other class that may meet the target."""
        able = [one for one in order if self.standing(one).word not in ("broken", "undecidable")]
        first = {one.variant: one for one in reversed(able)}
        first.pop(leader.variant, None)
        own = [one for one in able if one.variant == leader.variant]
        beside = sorted(
            (one for one in own if one.threads == leader.threads), key=lambda one: one.workers
        )
        fewer = [one for one in beside if one.workers < leader.workers]
        more = [one for one in beside if one.workers > leader.workers]
        thumb = [one for one in more if one.workers == self.study.asked.limits.thumb]
        threads = [
            one for one in own if one.workers == leader.workers and one.threads > leader.threads
        ]
        return [*thumb, *more[:1], *fewer[-1:], *threads[:1], *first.values()]

    def missed_by(self, server: Server) -> float:
        """How many times its limit the worst time was, in its launches at the target's rate;
        infinite where there are none."""
        means = {one.term: one.mean for one in self.standing(server).bounds}
        times = [(means.get(str(term)), term.limit) for term in self.terms if term.kind == "time"]
        return max((mean / limit for mean, limit in times if mean is not None), default=math.inf)

    def nearest(self) -> Server | None:
        """Of those that were launched the one that holds the target up to the highest rate, or
        whose times come nearest to it."""
        tried = [one for one in self.order() if self.study.of(one)]

        return min(
            tried,
            key=lambda server: (-(self.reach(server).last or 0.0), self.missed_by(server)),
            default=None,
        )

    def _lower(self, order: Sequence[Server]) -> Next | None:
        """The best candidate, below the rate that nobody keeps the target at."""
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
        if not reach.known:
            middle = self._below(server, reach.last, reach.first)
            if reach.last < middle < reach.first:
                return self._launch(server, middle)
        return None


def _first_of_each(order: Sequence[Server]) -> list[Server]:
    """The first candidate of each variant."""
    first: dict[str, Server] = {}
    for one in order:
        first.setdefault(one.variant, one)
    return list(first.values())


def between(last: float, first: float, failed: int = 1) -> float:
    """The rate to try next, between the last that passed and the first that failed. `failed`: rates
    that did. The forecast is seldom far off, so that steps down begin at WIDE and double, but no
    lower than half the way, in logarithms."""
    return rounded(max(math.sqrt(last * first), first / WIDE ** (2 ** (max(1, failed) - 1))))


def rounded(rps: float) -> float:
    """To three digits: nobody asks for 83.2917 requests/s."""
    return float(f"{rps:.3g}")


def launches_at(study: Study, server: Server) -> dict[float, list[Launch]]:
    """Valid ones, by rate."""
    found: dict[float, list[Launch]] = {}
    for one in sorted(study.of(server), key=lambda launch: launch.rps):
        found.setdefault(one.rps, []).append(one)
    return found


def slow_alone(needs: Needs, terms: Sequence[Term]) -> Finding | None:
    """Requests that have the server for themselves already break a term, by more than chance: the
    needs are of a short load. The longest of a launch may be of another kind than any seen here."""
    times_s = [
        one.wait_s + one.cpu_s + one.blocked_s + one.nogil_s + needs.gap_s + needs.beside_s
        for one in needs.requests
    ]
    alone = requests_of(times_s)
    for term in terms:
        if term.kind == "time" and term.metric != "max" and judge(term, alone).result == "broken":
            timed = zip(needs.requests, times_s, strict=True)
            slow = [one.route for one, took_s in timed if not term.holds(took_s)]
            values = {
                "term": str(term),
                "metric": term.metric,
                "value_s": value_of(term.metric, alone),
                "routes": tuple(sorted(set(filter(None, slow)))) or None,
                "share": len(slow) / len(times_s),
            }
            return Finding("advise.limit.alone", values)
    return None


def search_of(study: Study, plan: Plan) -> Search:
    expected = codec.convert(plan.details.get("expected", ()), tuple[Expected, ...])
    servers = codec.convert(plan.details.get("servers", ()), tuple[Server, ...])
    known = {one.key: one for one in expected}
    return Search(study, parse(study.asked.slo), servers, known, "expected" in plan.details)
