"""The verdict of a valid cell, and its reason.

`of_closed`: so many connections, each of which waits for its answer. In this order:

    generator-bound  the load tool was the limit
    slots taken      measured occupancy of 0.95 and more: saturated where there are more connections
                     than slots, else at capacity. No estimate of R0 is needed for it, and it holds
                     however service times vary and whatever else runs on the machine
    nothing waits    u = X*R0/N, the part of their time that N connections spend being served rather
                     than waiting, is not below 0.95 beyond its interval: at capacity where the
                     connections reach the knee, else below
    requests wait, and slots are free: something else is the limit, or nothing is yet.
                     saturated where the kernel dropped handshakes, where there are more connections
                     than slots (which idle: dealt unevenly), where the workers' cores or loops are
                     busy all the time, or where more connections were seen to bring no more;
                     below capacity where they bring more, or where this, the highest, still gained
                     on the one below; inconclusive where there is no other level to tell, unless
                     half of the time is waiting

An earlier rule, X against min(N, C)/R0 alone, judged 11 of 35 cells wrongly at 4 to 16 connections
on 4 slots, and called the highest level saturated for being the highest.

`of_offered`: requests come at a rate. What is asked of a cell:

    came out   completions in the steady window, from the spans, against the rate asked for
    sent       what the load tool sent of what was due; less than 99 % is always said
    busy       connections under way on average, (R - lag) * sent/s by Little's law (Little 1961)

    all sent, came out >= 97 % of the rate         the server keeps up
    all sent, less came out                        saturated: the backlog grows with every second
    not all sent, connections busy                 saturated: the backlog reached the load tool
    not all sent, or late, and connections idle    generator-bound: the load tool is too slow

Late: a quarter of the mean response or more is lag. Connections count as busy from 45 % of them on
average on: where a backlog grows evenly until all are taken, half of them are taken on average,
whenever that moment comes; later, more.
"""

from msgspec import Struct

from harness.analysis.diagnosis_loop import busiest_loop
from harness.analysis.facts import Facts
from harness.analysis.handshakes import drops, handshakes
from harness.analysis.knee import REACHED
from harness.analysis.load_tool import CEILING
from harness.analysis.occupancy import FULL, occupancy
from harness.analysis.series import HALF, Series
from harness.model import Finding, Measurement, Verdict

OVER = 1.05  # times as many connections as slots: some have to wait
BUSY = 0.9  # of its cores, or of its time
KEEPS_UP = 0.97  # of the rate comes out: a backlog of 3 % of all arrivals cannot be missed
ALL_SENT = 0.99
CONNECTIONS_BUSY = 0.45
NEAR = 0.95  # of the capacity
LATE = 0.25  # of the mean response


def of_closed(facts: Facts, series: Series) -> tuple[Verdict, Finding]:
    """The verdict of a valid cell, by the rules above."""
    n, slots, taken = facts.connections, facts.slots, occupancy(facts)
    if bound := series.bound.get(facts.key):
        return "generator-bound", _lower_bound(facts, bound)
    if slots and taken is not None and taken >= FULL:
        if n > OVER * slots:
            return "saturated", _waits(facts, series)
        return "at capacity", _finding("all_slots_busy", connections=n, slots=slots)
    if series.waits(facts):
        return _unbound(facts, series)
    if slots and n >= REACHED * slots:
        return "at capacity", _finding("all_slots_busy", connections=n, slots=slots)
    knee = series.knee.connections
    if knee is not None and n >= REACHED * knee and not series.full:
        return "at capacity", _finding("at_knee", connections=n, rps=facts.rps)
    used = {"used": facts.open_at_once, "slots": slots, "limit": facts.no_limit}
    return "below capacity", _finding("slots_free", connections=n, **used)


def _unbound(facts: Facts, series: Series) -> tuple[Verdict, Finding]:
    """Requests wait or are slowed down, and not for want of slots."""
    n, slots = facts.connections, facts.slots
    waits = _waits(facts, series)
    if handshakes(facts).dropped or (slots and n > OVER * slots) or _resource_full(facts):
        return "saturated", waits
    grows = series.grows(n)
    if grows is None:  # no other level tells
        if series.served(n) <= HALF:
            return "saturated", waits
        return "inconclusive", _finding("one_level", connections=n, add=2 * n, waits=waits)
    return "below capacity" if grows else "saturated", waits


def _resource_full(facts: Facts) -> bool:
    """The workers' CPU, the machine's (by server and load tool, not by others), or a loop that
    never rests."""
    server, usage = facts.cell.server, facts.usage
    workers = server.workers * server.instances
    cores = facts.seen.cores or workers
    own, beside = usage.server_cores or 0.0, usage.generator_cores or 0.0
    shares = own / min(workers, cores), (own + beside) / cores, busiest_loop(facts)
    return max(shares) >= BUSY


def _finding(code: str, **values: object) -> Finding:
    return Finding(f"verdict.{code}", values)


def _waits(facts: Facts, series: Series) -> Finding:
    """Who shares what, and how long it takes once the load is steady: R = N/X (Little 1961)."""
    n, rps, slots, lone_s = facts.connections, facts.rps, facts.slots, series.r0.seconds
    response_s, service_s = n / rps, facts.service.mean or 0.0
    wait_s = max(0.0, response_s - service_s)
    possible_rps = facts.possible_rps(lone_s)
    common: dict[str, object] = {"connections": n, "drops": drops(handshakes(facts))}
    if wait_s < (1 - REACHED) * response_s:
        return _finding("slowed", **common, service_s=service_s, lone_s=lone_s)
    common |= {"wait_s": wait_s, "response_s": response_s}
    if rps >= REACHED * possible_rps:
        return _finding("slots_shared", **common, slots=facts.usable_slots, limit=facts.no_limit)
    common |= {"rps": rps, "possible_rps": possible_rps, "used": facts.open_at_once}
    per_worker = tuple(sorted(facts.per_worker.values(), reverse=True))
    if facts.data.worker_class.accepts_first and len(set(per_worker)) > 1:
        return _finding("uneven", **common, per_worker=per_worker)
    if slots is not None and facts.open_at_once < REACHED * facts.parallel:
        return _finding("slots_unused", **common, slots=slots)
    return _finding("slots_idle", **common)


def _lower_bound(facts: Facts, reasons: tuple[Finding, ...]) -> Finding:
    """Why a cell says nothing of the server's limit, and what it does say."""
    certain = any(reason.code != CEILING for reason in reasons)
    code = "verdict.generator_bound" if certain else "verdict.perhaps_generator_bound"
    return Finding(code, {"tool": facts.tool, "reasons": reasons, "rps": facts.rps})


class Offered(Struct, frozen=True):
    """What was offered to a server by a load tool of at most so many `connections`, and what became
    of it: requests/s that were asked for and that were done, and what the tool says of them."""

    tool: str
    connections: int
    asked_rps: float
    done_rps: float
    said: Measurement
    capacity_rps: float | None = None
    generator_cores: float | None = None

    @property
    def sent_rps(self) -> float | None:
        """Of what was due; None where the load tool does not tell."""
        sent, unsent = self.said.sent, self.said.unsent
        if sent is None or unsent is None or sent + unsent <= 0:
            return None
        return self.asked_rps * sent / (sent + unsent)

    @property
    def busy(self) -> float | None:
        """Connections under way on average."""
        said = self.said
        if said.response.mean is None or said.duration_s <= 0:
            return None
        under_way_s = max(0.0, said.response.mean - (said.lag.mean or 0.0))
        return under_way_s * said.requests / said.duration_s

    @property
    def all_sent(self) -> bool:
        return self.sent_rps is None or self.sent_rps >= ALL_SENT * self.asked_rps

    @property
    def idle(self) -> bool:
        """Connections were free all the time: whatever was not sent, or late, is the tool's."""
        return self.busy is not None and self.busy < CONNECTIONS_BUSY * self.connections

    @property
    def late(self) -> bool:
        lag, mean = self.said.lag.mean, self.said.response.mean
        return lag is not None and mean is not None and lag >= LATE * mean > 0

    @property
    def keeps_up(self) -> bool:
        return self.all_sent and self.done_rps >= KEEPS_UP * self.asked_rps


def of_offered(offered: Offered) -> tuple[Verdict, Finding]:
    asked = {"asked_rps": offered.asked_rps}
    if offered.keeps_up:
        capacity_rps, times = offered.capacity_rps, offered.said.response
        full = capacity_rps is not None and offered.asked_rps >= NEAR * capacity_rps
        known = times.p50 is not None and times.p95 is not None
        typical = {"p50_s": times.p50, "p95_s": times.p95} if known else {}
        word: Verdict = "at capacity" if full else "below capacity"
        return word, Finding("open.keeps_up", {**asked, "p50_s": None, "p95_s": None, **typical})
    if offered.idle and (offered.late or not offered.all_sent):
        return "generator-bound", _too_slow(offered)
    backlog = {**asked, "done_rps": offered.done_rps, "longest_s": offered.said.response.max}
    if offered.all_sent:
        grows_rps = max(0.0, offered.asked_rps - offered.done_rps)
        return "saturated", Finding("open.backlog_grows", {**backlog, "grows_rps": grows_rps})
    full_up = {"connections": offered.connections, "unsent": offered.said.unsent or 0}
    return "saturated", Finding("open.backlog_fills_connections", {**backlog, **full_up})


def _too_slow(offered: Offered) -> Finding:
    """What the load tool did not do, and what shows that nobody kept it from that."""
    shows = {
        "tool": offered.tool,
        "busy": offered.busy or 0.0,
        "connections": offered.connections,
        "cores": offered.generator_cores,
    }
    if offered.all_sent:
        return Finding("open.tool_sends_late", {**shows, "lag_s": offered.said.lag.mean or 0.0})
    sent = {"sent_rps": offered.sent_rps or 0.0, "asked_rps": offered.asked_rps}
    return Finding("open.tool_sends_less", {**shows, **sent, "unsent": offered.said.unsent or 0})
