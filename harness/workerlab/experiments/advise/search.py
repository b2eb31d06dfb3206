"""Which launch comes next: a search, not a grid.

    1. the first candidate, in the order of the forecast, whose prediction bound keeps the target
    2. its rate is raised by short launches: to the forecast, which is a guess, then between the
       last rate that passed and the first that failed, until they are within WIDE of each other.
       The best candidate of a second class is launched before the rate is raised a second time
    3. they are brought within CLOSE of each other; the candidate leads once a second launch holds
       at the last rate that passed
    4. rivals are tried a little beyond the rate that the leader reached: of its own class as many
       workers as the rule of thumb says, a few more, fewer, and more threads; of every other class
       the first that is expected to go about as far. One that passes there leads, and is raised
    5. the final leader is launched at the target's rate until its bound is known, also when the
       budget allows no more; if that breaks the target, the next candidate leads
    6. its last rate that passed is launched until it can be predicted to hold, or a lower one is
    7. it is launched until the requests are enough to show that few fail
    8. as long as the budget lasts, the best of each class without a launch is tried a little beyond
       the leader's rate, as its forecast may be far too low

All classes are looked at before one is looked at closely: near the rate at which it breaks, the
schedules decide, and a single candidate takes all the time there is. More workers than the forecast
asks for are tried because the kernel gives cores to every process that is ready to run, the load
tool included: candidates with the same forecast may differ more than others do.

The order: candidates whose forecast is within NEAR of the best go first, the cheapest before the
others, by memory, then by threads. If none meets the target, the rate of the best one is lowered,
to say up to which rate the target would hold. If it holds at no rate, the candidates whose times
exceed the limit the least go first.

Everything here depends only on what is on file, so a run that was stopped goes on as it would have.
The k-th launch at a rate has schedule k, whatever the candidate.
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

NEAR = 0.95  # of the best forecast: as good as the best
WIDE = 1.25  # between the last rate that passes and the first that fails: what is promised
CLOSE = 1.075  # between them where the budget allows
AHEAD = 0.95  # of the forecast: the first rate that is tried on the way up
BEYOND = 1.05  # times what the winner reached, for another candidate to be better
HOPE = 0.5  # of a rate: candidates of which less is forecast are not tried, while there are others
SURER = 0.5  # of the forecast: what is tried where few launches are left
CONFIRMED = 2  # launches at the last rate of the leader, before rivals are tried
ENOUGH = 9  # launches left: with fewer, the leader is shown rather than rivals tried
LAST_RATE = 4  # launches left: with fewer, one big step down, so that some are left to show it
FEW = 3  # launches left to raise the rate with: with fewer, big steps from half of the forecast
ROUNDING = 1.005  # times a rate: what it may be off by once rounded
BRACKET = 2  # launches that bring the rates of the leader within WIDE of each other
WELL_BELOW = 0.5  # of a limit: a time below it takes fewer requests to be shown
MORE = 2  # launches beyond LEAST, where they would show that it holds
SPARE = 1  # launch, of those that are kept for the leader: one may be void
TRIES = 4  # candidates that are forecast to break the target
MAX_VOIDS = 4  # of a candidate at the target's rate: then the machine is too noisy
MAX_VOIDS_BESIDE = 2  # at another rate
LOWEST = 0.02  # of the target's rate
LOWEST_RPS = 0.1  # a launch of a minute has too few requests to say anything
LIMIT = "What would have to change?"


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
    def is_close(self) -> bool:
        return bool(self.last and self.first and self.first <= CLOSE * self.last)


class Search(Struct, dict=True, frozen=True, eq=False):
    study: Study
    terms: Sequence[Term]
    servers: Sequence[Server]  # all candidates whose class is known
    expected: Mapping[str, Expected]  # by the server's key

    foreseen: bool = True  # whether there is a forecast yet

    @property
    def target_rps(self) -> float:
        return self.study.request.rate_rps

    def order(self) -> list[Server]:
        """All candidates, those first that are tried first."""
        within = [server for server in self.servers if self.fits(server)]
        best = max(map(self.highest, within), default=0.0)

        def place(server: Server) -> tuple[object, ...]:
            highest = self.highest(server)
            if not best:  # at no rate: the nearest first
                central = self.expected[server.key].central
                return distance(central, self.terms), *self.cost(server)
            near = highest >= NEAR * best
            return (not near, *((0.0, *self.cost(server)) if near else (-highest,)))

        return sorted(within, key=place)

    def fits(self, server: Server) -> bool:
        limit, memory = (
            self.study.request.limits.memory_bytes,
            self.expected[server.key].memory_bytes,
        )
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
        return any(self.highest(server) >= self.target_rps for server in self.order())

    # --- what launches showed ----------------------------------------------------------------

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
        launches = self.study.of(server)
        also = [launch for launch in launches if self.target_rps < launch.rps <= last]
        return standing(self.study.at(server, self.target_rps), self.terms, also)

    def meets(self, server: Server) -> bool:
        return self.standing(server).word == "met"

    def reach(self, server: Server, *, unpromising: bool = False) -> Reach:
        """`unpromising`: with rates at which too few launches say anything for a prediction."""
        if (server, unpromising) not in self._reaches:
            self._reaches[server, unpromising] = self._reach(server, unpromising)
        return self._reaches[server, unpromising]

    def _reach(self, server: Server, unpromising: bool) -> Reach:
        rates = sorted({launch.rps for launch in self.study.of(server)})
        tried = {rps: passes(self.study.at(server, rps), self.terms) for rps in rates}
        first = min((rps for rps in rates if tried[rps] is False), default=None)
        under = [rps for rps in rates if tried[rps] and (first is None or rps < first)]
        last = max((rps for rps in under if unpromising or not self._unpromising(server, rps)),
                   default=None)  # fmt: skip
        return Reach(last, first)

    def _unpromising(self, server: Server, rps: float) -> bool:
        """Whether so many launches at this rate, above the target's, say nothing that no prediction
        can be made: too little is left of the machine, or of the load tool."""
        valid, launches = len(self.study.at(server, rps)), len(self.study.all_at(server, rps))
        voids = launches - valid
        return rps > self.target_rps and valid < LEAST and voids >= MAX_VOIDS_BESIDE

    def winner(self) -> Server | None:
        """The first of those that meet the target; see `_first_of`."""
        able = filter(self.meets, self.order())
        return self._first_of({server: self.reach(server).last or 0.0 for server in able})

    def leader(self) -> Server | None:
        """The first of those that may meet the target, by what they promise: nothing at its rate
        speaks against it, and at some rate it was seen to hold. One that held only by a little
        leads where the others promise less."""
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
        """The one that reaches furthest; the cheaper of two of which neither reached BEYOND the
        other."""
        most = max(reached.values(), default=0.0)
        near = [
            server for server, rps in reached.items() if not most or rounded(BEYOND * rps) > most
        ]
        return min(near, key=self.cost, default=None)

    def _promise(self, server: Server) -> float:
        """The rate that it was seen to hold, or the next one that is tried below one that it did
        not: a candidate that fails, or holds, by a little reaches hardly less."""
        last, ceiling = self.reach(server).last or 0.0, self._ceiling(server)
        if ceiling is None or (last and ceiling <= CLOSE * last):
            return last
        if not last:
            return rounded(ceiling / CLOSE) if self._held(server, ceiling) else 0.0
        return max(last, self._below(server, last, ceiling))

    def _held(self, server: Server, rps: float) -> bool:
        """Whether some launch held there."""
        return any(holds(launch, self.terms) for launch in self.study.at(server, rps))

    def too_noisy(self, before: int = 0) -> bool:
        """Whether others disturbed more launches than say anything. `before`: so many were, when a
        run was resumed, and do not count."""
        disturbed = self.study.disturbed - before
        return disturbed >= MAX_VOIDS and disturbed > len(self.study.valid)

    def unsendable(self) -> bool:
        """Whether the load tool cannot send so many requests on this machine."""
        ceiling = self.study.ceiling
        return ceiling is not None and not ceiling.at_least and self.target_rps > ceiling.rps

    def hopeless(self) -> bool:
        """Whether requests that have a server to themselves are too slow, in every class."""
        return all(slow_alone(needs, self.terms) for needs in self.study.needs.values())

    # --- what is next ------------------------------------------------------------------------

    def next(self, left: float = math.inf, before: int = 0) -> Next | None:
        """None: there is nothing more to find out. `left`: launches that the budget allows;
        `before`: as of `too_noisy`."""
        if self.too_noisy(before) or self.hopeless() or self.unsendable():
            return None
        order = self.order()
        for server in self._hopeful(order):
            word = self.standing(server).word
            if word == "met":
                return self._around(self.leader() or server, order, left)
            following = self._launch(server, self.target_rps) if word == "not shown yet" else None
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
        """Once something meets the target: whether there is better, and what the best reaches."""
        following, unknown = None, self.standing(leader).word == "not shown yet"
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
        raised = any(launch.rps > self.target_rps for launch in self.study.of(leader))
        others = self._unlaunched(leader, order)
        if not raised or not others or len(self._launched) > 1:
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
        made = self.study.all_at(server, rps)
        voids = [launch.void for launch in made if launch.void is not None]
        noise = all(
            isinstance(void, NOISE) for void in voids
        )  # else the next will hardly be better
        if len(voids) >= (MAX_VOIDS if noise and rps == self.target_rps else MAX_VOIDS_BESIDE):
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

    def _far_from_limits(self, launch: CandidateLaunch) -> bool:
        values = [(term, value_of(term.metric, launch.requests)) for term in self.terms]
        return holds(launch, self.terms) and all(
            term.kind != "time" or (value is not None and value <= WELL_BELOW * term.limit)
            for term, value in values
        )

    def _raise(self, server: Server, left: float, within: float) -> Next | None:
        """Up to where a launch keeps the target: until the first rate that fails is `within` so
        many times the last that passed. `left`: launches that there are for it."""
        last, first = self.reach(server).last or self.target_rps, self._ceiling(server)
        if left < LEAST - 1 and last > self.target_rps:
            return None  # it can still be shown that it holds there
        if first is None:
            rates = {launch.rps for launch in self.study.of(server)}
            passed = [rps for rps in rates if rps > self.target_rps]
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
        failed = {launch.rps for launch in self.study.of(server) if launch.rps >= first}
        return max(between(last, first, len(failed)), close)

    def _nearly(self, server: Server, rps: float) -> bool:
        """Whether all launches held there, and one or two more like them would show it."""
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

        def is_close(rps: float) -> bool:
            launches = self.study.at(server, rps)
            failed = bool(launches) and not passes(launches, self.terms)
            return failed or self._unpromising(server, rps)

        rates = {launch.rps for launch in self.study.launches if launch.server == server}
        return min((rps for rps in rates if rps > above and is_close(rps)), default=None)

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
        best = _first_of_each(sorted(order, key=self.highest, reverse=True))
        return [
            server
            for server in best
            if server.variant not in self._launched and self.highest(server) >= worth
        ]

    @property
    def _launched(self) -> set[str]:
        """Variants that were launched."""
        return {launch.server.variant for launch in self.study.launches}

    def _beyond(self, leader: Server) -> float:
        """The rate from which on others would lead."""
        return rounded(BEYOND * (self._promise(leader) or self.target_rps))

    def _others(self, leader: Server, order: Sequence[Server]) -> list[Server]:
        """The rule of thumb with the leader's class and threads, the leader's neighbours, and the
        first of each other class that may meet the target."""
        able = [
            server
            for server in order
            if self.standing(server).word not in ("broken", "undecidable")
        ]
        first = {server.variant: server for server in reversed(able)}
        first.pop(leader.variant, None)
        own = [server for server in able if server.variant == leader.variant]
        beside = sorted(
            (server for server in own if server.threads == leader.threads),
            key=lambda server: server.workers,
        )
        fewer = [server for server in beside if server.workers < leader.workers]
        more = [server for server in beside if server.workers > leader.workers]
        thumb = [server for server in more if server.workers == self.study.request.limits.thumb]
        threads = [
            server
            for server in own
            if server.workers == leader.workers and server.threads > leader.threads
        ]
        return [*thumb, *more[:1], *fewer[-1:], *threads[:1], *first.values()]

    def missed_by(self, server: Server) -> float:
        """How many times its limit the worst time was, in its launches at the target's rate;
        infinite where there are none."""
        times = (bound for bound in self.standing(server).bounds if bound.term.kind == "time")
        missed = (bound.mean / bound.term.limit for bound in times if bound.mean is not None)
        return max(missed, default=math.inf)

    def nearest(self) -> Server | None:
        """Of those that were launched the one that holds the target up to the highest rate, or
        whose times come nearest to it."""
        return min(
            filter(self.study.of, self.order()),
            key=lambda server: (-(self.reach(server).last or 0.0), self.missed_by(server)),
            default=None,
        )

    def _lower(self, order: Sequence[Server]) -> Next | None:
        """The best candidate, below the target's rate."""
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
    """The rate to try next, between the last that passed and the first that failed. `failed`: rates
    that did. The forecast is seldom far off, so that steps down begin at WIDE and double, but no
    lower than half the way, in logarithms."""
    return rounded(max(math.sqrt(last * first), first / WIDE ** (2 ** (max(1, failed) - 1))))


def rounded(rps: float) -> float:
    """To three digits."""
    return float(f"{rps:.3g}")


def launches_at(study: Study, server: Server) -> dict[float, list[CandidateLaunch]]:
    """Valid ones, by rate."""
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
    """Requests that have the server for themselves already break a term, by more than chance: the
    needs are of a short load. The longest of a launch may be of another kind than any seen here."""
    times_s = [
        need.wait_s + need.cpu_s + need.blocked_s + need.nogil_s + needs.gap_s + needs.beside_s
        for need in needs.requests
    ]
    alone = requests_of(times_s)
    for term in terms:
        if term.kind == "time" and term.metric != "max" and judge(term, alone).result == "broken":
            value_s = value_of(term.metric, alone)
            assert value_s is not None  # or no limit were broken
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
    by_key = {each.key: each for each in expected}
    return Search(study, parse(study.request.slo), servers, by_key, "expected" in plan.details)
