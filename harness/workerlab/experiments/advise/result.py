"""What the search has come to: the candidate that is recommended, or why there is none, and why not
the others."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from workerlab.experiments.advise.candidates import Limits
from workerlab.experiments.advise.forecast import Expected
from workerlab.experiments.advise.search import Reach, Search, slow_alone
from workerlab.experiments.advise.standing import Bound, Standing
from workerlab.experiments.advise.study import TOOL, Launch, Study, holds
from workerlab.model import Finding, Needs, Server
from workerlab.server.gunicorn import GRACE_S
from workerlab.server.worker_classes import class_named, configured_slots

Word = Literal[
    "recommended", "nothing", "noisy", "undecidable", "unfinished", "no_class", "unsendable"
]

LESS = 0.9  # of the recommended one's forecast
TIMES, LEAST_GRACE_S, DEFAULT_GRACE_S = 3.0, 2, 30  # of a response; seconds; Gunicorn's
BUSY = 0.7  # of a core, or of a pool: beyond that requests wait for each other for long


class Row(Struct, frozen=True):
    """A candidate: what was expected of it, what was measured at the target's rate, how far it
    goes, where a launch broke the target, and what became of it."""

    server: Server
    expected: Expected
    standing: Standing
    launches: int
    reach: Reach
    broken_rps: float | None
    status: Finding


class Result(Struct, frozen=True):
    """`server`: recommended, or what comes nearest where nothing is; `breaks`: the launch at the
    lowest rate at which it was shown to break the target, else failed, `first_rps`; `cores`: what
    it computed at the target's rate."""

    word: Word
    search: Search
    rows: tuple[Row, ...]
    server: Server | None = None
    standing: Standing = Standing("open")
    reach: Reach = Reach()
    launches: tuple[Launch, ...] = ()
    breaks: Launch | None = None
    first_rps: float | None = None

    @property
    def study(self) -> Study:
        return self.search.study

    @property
    def limits(self) -> Limits:
        return self.study.asked.limits

    @property
    def needs(self) -> Needs | None:
        return self.study.needs.get(self.server.variant) if self.server else None

    @property
    def memory_bytes(self) -> int | None:
        return self.search.expected[self.server.key].memory_bytes if self.server else None

    @property
    def cores(self) -> float | None:
        used = [one.cell.usage.server_cores for one in self.launches]
        known = [one for one in used if one is not None]
        return sum(known) / len(known) if known else None

    @property
    def stop_s(self) -> float | None:
        """The shortest stop after a load, when nothing was under way."""
        stops = [one.facts.record.stop_s for one in self.launches if one.facts]
        return min((stop_s for stop_s in stops if stop_s is not None), default=None)

    @property
    def waits_at_stop(self) -> bool:
        """Whether each stop took all the time that workers are given to finish requests."""
        return self.stop_s is not None and self.stop_s >= GRACE_S

    @property
    def grace_s(self) -> int | None:
        """The graceful_timeout that the file sets, so that a stop takes no longer than requests
        may: TIMES the longest of them. None: Gunicorn's, or the app's own file's, is as good."""
        ends_s = [one.times_s[-1] for one in self.launches if one.times_s]
        own = "graceful_timeout" in self.study.asked.config_sets
        if own or not ends_s or not self.waits_at_stop:
            return None
        grace_s = max(LEAST_GRACE_S, math.ceil(TIMES * max(ends_s)))
        return grace_s if grace_s < DEFAULT_GRACE_S else None


def result_of(search: Search) -> Result:
    server = search.winner()
    word: Word = "recommended"
    if server is None:
        word = _without(search)
        server = search.nearest()
    rows = tuple(_row(search, one, server if word == "recommended" else None)
                 for one in search.servers)  # fmt: skip
    if server is None:
        return Result(word, search, rows)
    launches = search.study.at(server, search.target_rps)
    reach = search.reach(server)
    if reach.last is None or reach.last <= search.target_rps:  # better than nothing
        reach = search.reach(server, unpromising=True)
    first_rps = search.broken_at(server) or reach.first
    failed = search.study.at(server, first_rps) if first_rps is not None else ()
    return Result(
        *(word, search, rows, server, search.standing(server), reach, launches),
        breaks=next(
            (one for one in failed if not holds(one, search.terms)), next(iter(failed), None)
        ),
        first_rps=first_rps,
    )


def _without(search: Search) -> Word:
    """Why nothing is recommended."""
    study = search.study
    if unmeasured(study):
        return "unfinished"
    if not study.needs:
        return "no_class"
    if search.hopeless() or (search.foreseen and not search.order()):
        return "nothing"
    if search.unsendable():
        return "unsendable"
    if search.too_noisy():
        return "noisy"
    following = search.next()
    words = {search.standing(one).word for one in search.servers}
    if "broken" in words and not search.able and not words & {"met", "undecidable"}:
        return "nothing"  # as it was forecast of all
    if following is not None and following.rps == search.target_rps:
        return "unfinished"
    if "undecidable" in words and following is None:
        return "undecidable"
    if "broken" in words and following is None:
        return "nothing"
    return "nothing" if "broken" in words and "open" not in _tried(search) else "unfinished"


def unmeasured(study: Study) -> set[str]:
    """Variants whose needs a run that was stopped has not come to."""
    planned = {one.server.variant for one in study.plan.cells if one.inside == "needs"}
    return planned - {*study.needs, *study.left_out}


def without_candidates(search: Search) -> list[str]:
    """Variants of which no settings are within the limits that were set."""
    having = {one.variant for one in search.servers}
    return [name for name in search.study.needs if name not in having and search.foreseen]


def _tried(search: Search) -> set[str]:
    """What became of those that were launched at the target's rate."""
    launched = [one for one in search.servers if search.study.at(one, search.target_rps)]
    return {search.standing(one).word for one in launched}


# --- why not the others ---------------------------------------------------------------------------


def _row(search: Search, server: Server, winner: Server | None) -> Row:
    launches = search.study.at(server, search.target_rps)
    found = search.standing(server)
    return Row(
        *(server, search.expected[server.key], found, len(launches), search.reach(server)),
        *(search.broken_at(server), _status(search, server, found, winner)),
    )


def _status(search: Search, server: Server, found: Standing, winner: Server | None) -> Finding:
    if server == winner:
        return Finding("advise.status.recommended")
    expected = search.expected[server.key]
    if not search.fits(server):
        limit = search.study.asked.limits.memory_bytes
        values = {"memory_bytes": expected.memory_bytes, "limit_bytes": limit}
        return Finding("advise.status.memory", values)
    if found.word == "met":
        return _second(search, server, winner)
    if found.word in ("broken", "undecidable") and found.bounds:
        (first, *_) = (one for one in found.bounds if one.word == found.word)
        return Finding(f"advise.status.{found.word}", {"term": first.term})
    broken, best = search.broken_at(server), search.reach(winner).last if winner else None
    if broken is not None and best is not None and (search.reach(server).last or 0.0) <= best:
        return Finding("advise.status.fails_at", {"rps": broken})
    if search.study.of(server):
        return Finding("advise.status.too_few")
    if voids := sum(one.server == server for one in search.study.launches):
        return Finding("advise.status.void", {"launches": voids})
    return _not_launched(search, expected, winner)


def _not_launched(search: Search, expected: Expected, winner: Server | None) -> Finding:
    if expected.most_rps < search.target_rps:
        return Finding("advise.status.expected_broken")
    most = search.highest(winner) if winner else 0.0
    if expected.most_rps < LESS * most:
        if expected.highest_rps is None:
            return Finding("advise.status.bounded_less", {"rps": expected.bound_rps})
        return Finding("advise.status.expected_less")
    return Finding("advise.status.not_tried")


def _second(search: Search, server: Server, winner: Server | None) -> Finding:
    """It meets the target, too."""
    mine, best = search.reach(server).last, search.reach(winner).last if winner else None
    if mine and best and 1.05 * mine < best:
        return Finding("advise.status.reaches_less")
    if winner and search.cost(server) > search.cost(winner):
        return Finding("advise.status.costs_more")
    return Finding("advise.status.meets")


# --- what limits ----------------------------------------------------------------------------------


def limit_of(result: Result) -> Finding | None:
    """Why nothing meets the target: what would have to change. None: nothing is known."""
    if result.search.hopeless():
        found = (slow_alone(one, result.search.terms) for one in result.study.needs.values())
        return min(filter(None, found), key=lambda one: float(one.values["value_s"]))
    limit, every = result.limits.memory_bytes, result.search.expected.values()
    if limit is not None and every and not result.search.order():  # all are known, and too much
        least = min(one.memory_bytes for one in every if one.memory_bytes is not None)
        return Finding("advise.limit.memory", {"least_bytes": least, "limit_bytes": limit})
    if (ceiling := result.study.ceiling) and result.search.unsendable():
        cpus = [_cpu_limit(result, one) for one in result.study.needs.values()]
        cpu = min(filter(None, cpus), key=lambda one: float(one.values["cpu_s"]), default=None)
        too = replace(cpu, code="advise.limit.cpu.too") if cpu and all(cpus) else None
        return Finding("advise.limit.unsendable", {"tool": TOOL, "rps": ceiling.rps, "cpu": too})
    needs, server = result.needs, result.server
    if needs is None or server is None:
        return None
    if result.breaks is not None and result.breaks.cell.verdict == "generator-bound":
        return Finding("advise.limit.load_tool", {"tool": TOOL})
    if (cpu := _cpu_limit(result, needs)) is not None:
        return cpu
    rate_rps, many = result.search.target_rps, len(needs.requests)
    pool = result.limits.max_in_flight
    hold_s = sum(one.wait_s + one.cpu_s + one.blocked_s for one in needs.requests) / many
    if pool is not None and hold_s * rate_rps > BUSY * pool:
        values = {"pool": pool, "hold_s": hold_s, "under_way": hold_s * rate_rps}
        return Finding("advise.limit.pool", values)
    every_slots = [configured_slots(one) for one in result.search.servers]
    known = [one for one in every_slots if one is not None]
    if len(known) == len(every_slots) and hold_s * rate_rps > BUSY * max(known, default=0):
        values = {"slots": max(known, default=0), "hold_s": hold_s}
        return Finding("advise.limit.slots", {**values, "under_way": hold_s * rate_rps})
    return None


def _cpu_limit(result: Result, needs: Needs) -> Finding | None:
    """How many cores it would take, where there are fewer."""
    cpu_s = sum(one.cpu_s + one.nogil_s for one in needs.requests) / len(needs.requests)
    needed = cpu_s * result.search.target_rps / BUSY
    if needed <= result.limits.cores:
        return None
    values = {"cpu_s": cpu_s, "cores": result.limits.cores, "needed": needed, "busy": BUSY}
    return Finding("advise.limit.cpu", values)


def primary(bounds: Sequence[Bound]) -> Bound | None:
    """The one that a table shows: the first that is a time."""
    return next((one for one in bounds if not one.term.startswith("rps")), None)


def name_of(server: Server) -> Finding:
    """A candidate in words."""
    row = class_named(server.worker_class)
    threads = server.threads if row.slots == "threads" else None
    connections = server.worker_connections if row.slots == "worker_connections" else None
    values: Mapping[str, object] = {
        "worker_class": server.variant,
        "workers": server.workers,
        "threads": threads,
        "worker_connections": connections,
    }
    return Finding("advise.candidate", values)
