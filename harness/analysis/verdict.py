"""The verdict of a valid cell, and its reason.

`of_closed`: so many connections, each of which waits for its answer. In this order:

    generator-bound  the load tool was the limit
    refused          a twentieth of the requests and more got a 503 or 429: saturated, by the
                     server's own word
    slots taken      measured occupancy of 0.95 and more: saturated where there are more connections
                     than slots, else at capacity. No estimate of R0 is needed for it, and it holds
                     however service times vary and whatever else runs on the machine
    nothing waits    u = X*R0/N, the part of their time that N connections spend being served rather
                     than waiting, is not below 0.95 beyond its interval: at capacity where the
                     connections reach the knee, else below
    requests wait, and slots are free: something else is the limit, or nothing is yet.
                     saturated where the kernel dropped handshakes, or where there are more
                     connections than slots (which idle: dealt unevenly) and half of the requests
                     and more are in the server; fewer, and the load tool may hold them;
                     below capacity where there are fewer connections than slots and a higher
                     level took them all, which is what binds; or where waiting for a core explains
                     what a free slot does not;
                     where others kept server or load tool waiting for a core, what that cost is
                     taken off first: nothing waits, as above, or still half of the time is waiting,
                     or else it is inconclusive;
                     saturated where the workers' cores or loops are busy all the time;
                     below capacity where slots enough for all stand idle while requests wait
                     outside of them: that is how connections are dealt (or of a loop, that it
                     is held up: not of these classes);
                     else by the other levels: saturated where more connections bring no more, below
                     capacity where they do, or where this, the highest, still gained on the one
                     below; where no level tells, or the gain is within chance, saturated if more
                     than half of the time is waiting, else inconclusive

An earlier rule, X against min(N, C)/R0 alone, judged 11 of 35 cells wrongly at 4 to 16 connections
on 4 slots, and called the highest level saturated for being the highest.
"""

from harness.analysis.breakdown import in_server
from harness.analysis.core_wait import core_wait, disturbance
from harness.analysis.diagnosis_loop import busiest_loop
from harness.analysis.facts import Facts
from harness.analysis.failures import shed_share
from harness.analysis.handshakes import drops, handshakes
from harness.analysis.knee import REACHED
from harness.analysis.load_tool import CEILING, INSIDE
from harness.analysis.occupancy import FULL, occupancy
from harness.analysis.series import HALF, Series
from harness.model import Finding, Verdict

OVER = 1.05  # times as many connections as slots: some have to wait
REFUSED = 0.05  # of the requests
LOST = 0.9  # of the response: what is left of it then says nothing
BUSY = 0.9  # of its cores
LOOP_BUSY = 0.8  # of its time: what the beats say of it is a lower bound


def of_closed(facts: Facts, series: Series) -> tuple[Verdict, Finding]:
    """The verdict of a valid cell, by the rules above."""
    n, slots, taken = facts.connections, facts.slots, occupancy(facts)
    if bound := series.bound.get(facts.key):
        return "generator-bound", _lower_bound(facts, bound)
    if (share := shed_share(facts)) >= REFUSED:
        return "saturated", _finding("sheds", connections=n, share=share)
    if slots and taken is not None and taken >= FULL:
        if n > OVER * slots:
            return "saturated", _waits(facts, series)
        return "at capacity", _finding("all_slots_busy", connections=n, slots=slots)
    disturbed = disturbance(facts)
    if series.waits(facts) and not (disturbed and _explains(facts, series)):
        return _unbound(facts, series, disturbed)
    if slots and n >= REACHED * slots:
        return "at capacity", _finding("all_slots_busy", connections=n, slots=slots)
    knee = series.knee.connections
    if not slots and knee is not None and n >= REACHED * knee:
        return "at capacity", _finding("at_knee", connections=n, rps=facts.rps)
    used = {"used": facts.open_at_once, "slots": slots, "limit": facts.no_limit}
    return "below capacity", _finding("slots_free", connections=n, **used)


def _explains(facts: Facts, series: Series) -> bool:
    """Whether requests would not wait, had the load had its cores."""
    return _undisturbed(facts, series) >= REACHED


def _undisturbed(facts: Facts, series: Series) -> float:
    """u without what waiting for a core cost."""
    found = core_wait(facts)
    lost = min(found.share, LOST) if found else 0.0
    return min(1.0, series.served(facts.connections) / (1 - lost))


def _unbound(facts: Facts, series: Series, disturbed: Finding | None) -> tuple[Verdict, Finding]:
    """Requests wait or are slowed down, and not for want of slots."""
    n, slots = facts.connections, facts.slots
    waits = _waits(facts, series)
    too_many = bool(slots) and n > OVER * (slots or 0)
    inside = in_server(facts)
    outside = inside is not None and inside < INSIDE * n
    if disturbed and (occupancy(facts) or 0.0) < HALF:
        outside = True  # what is in the server may wait for a core, and not for a slot
    if handshakes(facts).dropped or (too_many and not outside):
        return "saturated", waits
    noise = bool(disturbed) and (too_many or _undisturbed(facts, series) > HALF)
    if slots and n < slots and not facts.data.worker_class.loop and (series.full or noise):
        return "below capacity", waits
    if disturbed and noise:
        return "inconclusive", disturbed
    if _resource_full(facts):
        return "saturated", waits
    if too_many:
        return "inconclusive", _finding("outside", connections=n, inside=inside, tool=facts.tool)
    in_slots = (occupancy(facts) or 0.0) * (slots or 0)
    if slots and not facts.data.worker_class.loop and in_slots < REACHED * n:
        return "below capacity", waits
    return _by_levels(n, series, waits)


def _by_levels(n: int, series: Series, waits: Finding) -> tuple[Verdict, Finding]:
    grows = series.grows(n)
    if grows is not None:
        return "below capacity" if grows else "saturated", waits
    if series.served(n) <= HALF:
        return "saturated", waits
    if len(series.levels) == 1:
        return "inconclusive", _finding("one_level", connections=n, add=2 * n, waits=waits)
    return "inconclusive", _finding("chance", connections=n, waits=waits)


def _resource_full(facts: Facts) -> bool:
    """The workers' CPU, the machine's (by server and load tool, not by others), or a loop that
    never rests, with more connections than loops: fewer may by chance have met in one."""
    server, usage = facts.cell.server, facts.usage
    workers = server.workers * server.instances
    cores = facts.seen.cores or workers
    own, beside = usage.server_cores or 0.0, usage.generator_cores or 0.0
    if facts.connections > OVER * workers and busiest_loop(facts) >= LOOP_BUSY:
        return True
    return max(own / min(workers, cores), (own + beside) / cores) >= BUSY


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
