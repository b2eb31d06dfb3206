"""The verdict of a valid cell, and its reason.

`of_closed` judges a closed loop, in which each of N connections waits for its answer. It uses the
share of their time in which the connections are served rather than waiting, u = X*R0/N. The first
rule that applies decides:

    generator-bound    the load tool was the limit
    refused            at least 5 % of the requests got a 503 or 429: saturated, by the server's
                       own answers
    slots taken        measured occupancy is 0.95 or more: saturated if there are more connections
                       than slots, else at capacity. This needs no estimate of R0, and holds however
                       service times vary and whatever else runs on the machine
    accept queue full  the kernel dropped handshakes: saturated
    requests wait      u is below 0.95 beyond its interval: see below. Not if only pauses explain it
                       (u without them is 0.95 or more, and there may be slots for all), or only
                       others' use of the cores (likewise, and for at most half of the response)
    stood still        u is below 0.95, perhaps only within its interval (which pauses widen), and
                       the machine stood still in the part of the load that X describes:
                       inconclusive, unless pauses explain it and took at most half of the time
    nothing waits      at capacity if the connections reach the slots or, without slots, the knee
                       of an undisturbed series; else below capacity

If requests wait although slots are free, something else is the limit, or nothing is yet:

    more connections than slots: slots idle, as connections are distributed unevenly. Inconclusive
        if waiting for a core that others had explains that most slots idle; saturated if at least
        half of the requests are in the server, or a resource is full; else inconclusive, as the
        load tool may hold them
    fewer, and some level took all slots, so these are the limit: below capacity, but saturated if u
        is below 0.8 and no higher level serves more: something shared is the limit already here
    as many, and some level took all slots: at capacity if no higher level serves more, or if others
        had the cores
    enough slots for all idle while requests wait outside them, due to how connections are
        distributed: below capacity. Likewise with fewer connections than slots, if others had the
        cores, u without that is above half, and the class has no event loop
    the workers' cores are always busy, or their loops for more of the time than u: saturated
    others kept server or load tool waiting for a core: inconclusive, unless u without that is half
        or less, or more connections bring more anyway
    else by the other levels: saturated if more connections bring no more; below capacity if they
        do, or if this, the highest, still gained on a lower one. If no level shows it, or the gain
        may be chance: saturated if more than half of the time is waiting, in the server; else
        inconclusive

An earlier rule, X against min(N, C)/R0 alone, misjudged 11 of 35 cells with 4 to 16 connections on
4 slots, and called the highest level saturated because it was the highest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from workerlab.analysis import stall
from workerlab.analysis.breakdown import in_server, waited
from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.diagnosis.cpu import disturbance
from workerlab.analysis.diagnosis.loop import loops_in_use
from workerlab.analysis.facts import Facts
from workerlab.analysis.failures import shed_share
from workerlab.analysis.handshakes import drops, handshakes
from workerlab.analysis.knee import REACHED_SHARE
from workerlab.analysis.load_tool import INSIDE_SHARE, NearCeiling
from workerlab.analysis.series import HALF_SERVED, OVER_SLOTS_RATIO, Series
from workerlab.analysis.slots import FULL_OCCUPANCY, occupancy, uneven_dealing
from workerlab.analysis.stall import MachinePause, stalled, stood_still
from workerlab.finding import Finding
from workerlab.model import Verdict

REFUSED_SHARE = 0.05  # of the requests
MOSTLY_SHARE = 0.5  # of the response, or of the slots
MAX_LOST_SHARE = 0.9  # of the response, at most: the remainder would be too short to judge
BUSY_SHARE = 0.9  # share of the cores, or of a loop's time, from which on they are full
MIN_UNDISTURBED_SERVED = 0.8  # below it, other programs do not explain waiting
LONGER_SERVICE_RATIO = 1.5  # of R0: then distribution is not what keeps slots idle
UNEXPLAINED_IDLE_RATIO = 2.0  # idle slots / wait for a core; from here on it is not why


class FailedRequests(Finding):
    """{requests:# request} failed[[ ({causes:counts})]]"""

    requests: int
    causes: Mapping[str, int]


class Reason(Finding, kw_only=True):
    """Of a verdict. At its end stands what else happened meanwhile: handshakes that were dropped,
    requests that failed."""

    drops: Finding | None = None
    failures: FailedRequests | None = None

    def __str__(self) -> str:
        parts = (super().__str__(), self.drops, self.failures)
        return "; ".join(str(part) for part in parts if part)


class TrialInvalid(Reason):
    """{reasons:; }"""

    reasons: tuple[Finding, ...]


class GeneratorBound(Reason):
    """{tool} {certainty} the limit, not the server: {reasons:; }; the server can do at least
    {rps:number} requests/s"""

    tool: str
    certainty: Literal["is", "may be"]
    reasons: tuple[Finding, ...]
    rps: float


class RequestsRefused(Reason):
    """with {connections:# connection} the server refused {share:percent} of the requests"""

    connections: int
    share: float


class SlotsFilled(Reason):
    """{connections:# connection} {verb} {slots:# slot}, and {waited}"""

    connections: int
    verb: Literal["filled", "had"]
    slots: int
    waited: Finding


class SlotsFree(Reason):
    """{connections:# connection} used [[{used} of {slots:# slot}]][[{used:# slot} ({limit})]], and
    {waited}"""

    connections: int
    used: int
    slots: int | None
    limit: str | None
    waited: Finding


class KneeReached(Reason):
    """{connections:# connection} reached the knee, at {rps:number} requests/s"""

    connections: int
    rps: float


class WaitsHiddenByPause(Reason):
    """whether requests wait for each other is not known: {pause}; measure again"""

    pause: MachinePause


def of_closed(facts: Facts, series: Series) -> tuple[Verdict, Finding]:
    """The verdict of a valid cell, by the rules above."""
    n, slots, taken = facts.connections, facts.slots, occupancy(facts)
    if bound := series.bound.get(facts.key):
        return "generator-bound", generator_bound(facts, bound)
    if (share := shed_share(facts)) >= REFUSED_SHARE:
        return "saturated", RequestsRefused(n, share)
    if slots and taken is not None and taken >= FULL_OCCUPANCY:
        if n > OVER_SLOTS_RATIO * slots:
            return "saturated", why_waiting(facts, series)
        return "at capacity", SlotsFilled(n, "filled", slots, waited(facts))
    if handshakes(facts).dropped:
        return "saturated", why_waiting(facts, series)
    disturbed, lost, still = disturbance(facts), stood_still(facts), stall.noticeable(facts)
    paused = series.stood_still_alone(facts)
    if series.requests_wait(facts) and not paused and not (disturbed and _explains(facts, series)):
        return _unbound(facts, series, disturbed)
    slow = n > 1 and series.served_share(n) < REACHED_SHARE
    if still and lost and slow and not (paused and lost <= MOSTLY_SHARE):
        return "inconclusive", WaitsHiddenByPause(still)
    if slots and n >= REACHED_SHARE * slots:
        return "at capacity", SlotsFilled(n, "had", slots, waited(facts))
    knee = series.provisional_knee.connections
    if not slots and not series.disturbed and knee is not None and n >= REACHED_SHARE * knee:
        return "at capacity", KneeReached(n, facts.rps)
    return "below capacity", SlotsFree(
        connections=n,
        used=facts.open_at_once,
        slots=slots,
        limit=facts.no_limit,
        waited=waited(facts),
    )


def _explains(facts: Facts, series: Series) -> bool:
    """Whether requests wait only because others had the cores. Not if that cost most of the time:
    the remainder is too imprecise."""
    return _lost(facts) <= MOSTLY_SHARE and _undisturbed(facts, series) >= REACHED_SHARE


def _undisturbed(facts: Facts, series: Series) -> float:
    """u without the cost of waiting for a core that others had."""
    return min(1.0, series.served_share(facts.connections) / (1 - _lost(facts)))


def _lost(facts: Facts) -> float:
    """The share of the response in which other programs or virtual machines had the core."""
    wait = core_wait(facts)
    return min(wait.taken, MAX_LOST_SHARE) if wait else 0.0


def _waited(facts: Facts) -> float:
    """The share of the response spent waiting for a core, whatever used it: slots also idle while
    workers wait for each other."""
    wait = core_wait(facts)
    return min(wait.share, MAX_LOST_SHARE) if wait else 0.0


class SlotsTaken(Reason):
    """{connections:# connection} took {part} of the {slots} slots, and more connections took all"""

    connections: int
    part: Literal["all", "nearly all"]
    slots: int


class HeldOutside(Reason):
    """only {inside:number} of {connections:# connection} had a request in the server on average,
    although slots were free: {tool} may hold the others"""

    connections: int
    inside: float
    tool: str


class GrowthUnknown(Reason):
    """{waits}; {why}[[; add {add} or more]]"""

    waits: Reason
    why: str
    add: int | None = None  # connections


ONE_LEVEL = "one level cannot show whether more connections would bring more"
WITHIN_CHANCE = "whether other levels bring more is within chance: repeat with --trials"


def _unbound(facts: Facts, series: Series, disturbed: Finding | None) -> tuple[Verdict, Finding]:
    """The verdict if requests wait or are slowed down although slots are free."""
    n, slots = facts.connections, facts.slots
    waits = why_waiting(facts, series)
    if slots and n > OVER_SLOTS_RATIO * slots:
        return _crowded(facts, waits, disturbed)
    if slots and series.slots_filled and n < REACHED_SHARE * slots:
        shared = series.levels_off(n) and _undisturbed(facts, series) < MIN_UNDISTURBED_SERVED
        return "saturated" if shared else "below capacity", waits
    if slots and series.slots_filled and (disturbed or series.levels_off(n)):
        return "at capacity", SlotsTaken(n, "all" if n >= slots else "nearly all", slots)
    undisturbed = _undisturbed(facts, series)
    noise = bool(disturbed) and undisturbed > HALF_SERVED
    if _dealt(facts, series) or (
        noise and slots and n < slots and not facts.data.worker_class.loop
    ):
        return "below capacity", waits
    if _resource_full(facts, undisturbed):
        return "saturated", waits
    grows = series.grows(n)
    if disturbed and noise and grows is not True:
        by_chance = (
            grows is None and undisturbed < MIN_UNDISTURBED_SERVED and len(series.levels) > 1
        )
        return "inconclusive", GrowthUnknown(waits, WITHIN_CHANCE) if by_chance else disturbed
    return _by_levels(facts, series, waits)


def _crowded(facts: Facts, waits: Reason, disturbed: Finding | None) -> tuple[Verdict, Finding]:
    """More connections than slots. Requests that are not in the server do not wait for a slot."""
    n, inside, idle = facts.connections, in_server(facts), 1 - (occupancy(facts) or 0.0)
    if disturbed and idle > MOSTLY_SHARE and idle < UNEXPLAINED_IDLE_RATIO * _waited(facts):
        return "inconclusive", disturbed
    if inside is None or inside >= INSIDE_SHARE * n or _resource_full(facts, 1.0):
        return "saturated", waits
    return "inconclusive", HeldOutside(n, inside, facts.tool)


def _dealt(facts: Facts, series: Series) -> bool:
    """Whether slots idle although there are enough for all, more than waiting for a core explains.
    Never with event loops: there the loop holds up the requests outside its slots."""
    n, slots = facts.connections, facts.slots
    if not slots or facts.data.worker_class.loop or len(facts.record.worker_pids) < 2:
        return False
    if (inside := in_server(facts)) is not None and inside < INSIDE_SHARE * n:
        return False  # the load tool may hold them
    if (facts.service.mean or 0.0) >= LONGER_SERVICE_RATIO * series.r0.seconds:
        return False
    idle = 1 - (occupancy(facts) or 0.0) * slots / n
    return idle > 1 - REACHED_SHARE and idle >= UNEXPLAINED_IDLE_RATIO * _waited(facts)


def _by_levels(facts: Facts, series: Series, waits: Reason) -> tuple[Verdict, Reason]:
    n, inside = facts.connections, in_server(facts)
    grows = series.grows(n)
    if grows is not None:
        return "below capacity" if grows else "saturated", waits
    if inside is not None and inside < INSIDE_SHARE * n:
        return "inconclusive", HeldOutside(n, inside, facts.tool)
    if series.served_share(n) <= HALF_SERVED:
        return "saturated", waits
    if len(series.levels) == 1:
        return "inconclusive", GrowthUnknown(waits, ONE_LEVEL, add=2 * n)
    return "inconclusive", GrowthUnknown(waits, WITHIN_CHANCE)


def _resource_full(facts: Facts, served: float) -> bool:
    """Whether the workers' CPU, the machine's (used by server and load tool, not by others) or the
    loops are full. Loops count only with more connections than loops: fewer may have met on one by
    chance. If each request needs its loop for D, N* = R0/D connections get through without waiting;
    with U = X*D, the share of time the loop is in use, N > N* means u < U. `served`: u."""
    usage, workers = facts.usage, facts.workers
    cores = facts.seen.cores or workers
    server, tool = usage.server_cores or 0.0, usage.generator_cores or 0.0
    if facts.connections > OVER_SLOTS_RATIO * workers and loops_in_use(facts) > min(
        served, BUSY_SHARE
    ):
        return True
    return max(server / min(workers, facts.cores or workers), (server + tool) / cores) >= BUSY_SHARE


class SlotsIdled(Reason):
    """{connections:# connection} waited while slots stood idle for {idle_s:duration} of
    {load_s:duration}"""

    connections: int
    idle_s: float
    load_s: float


class SlowedDown(Reason):
    """with {connections:# connection} a request spends {service_s:duration} inside the app, a lone
    one {lone_s:duration}: requests slow each other down"""

    connections: int
    service_s: float
    lone_s: float


class SlotsShared(Reason):
    """{connections:# connection} share {slots:# slot}: once steady, each request spends
    {wait_s:duration} of {response_s:duration} waiting"""

    connections: int
    slots: int | None
    wait_s: float
    response_s: float


class DealtUnevenly(Finding):
    """because connections are distributed unevenly over the workers ({per_worker:, } requests per
    worker)"""

    per_worker: tuple[int, ...]


class MostInApp(Finding):
    """{although} {used:# request was/requests were} in the app at once[[, on {slots:# slot}]]
    [[ ({limit})]]"""

    although: Literal["where up to", "because at most", "although up to"]
    used: int
    slots: int | None = None
    limit: str | None = None


class BelowPossible(Reason):
    """{connections:# connection} reached {rps:number} of {possible_rps:number} requests/s, {why}:
    once steady, each request spends {wait_s:duration} of {response_s:duration} waiting"""

    connections: int
    rps: float
    possible_rps: float
    why: DealtUnevenly | MostInApp
    wait_s: float
    response_s: float


def why_waiting(facts: Facts, series: Series) -> Reason:
    """Why requests wait, and for how long once the load is steady: R = N/X (Little 1961)."""
    n, rps, slots, lone_s = facts.connections, facts.rps, facts.slots, series.r0.seconds
    response_s, service_s = n / rps, facts.service.mean or 0.0
    wait_s = max(0.0, response_s - service_s)
    possible_rps = facts.parallel / lone_s
    dropped = drops(handshakes(facts))
    if stall := stalled(facts):
        return SlotsIdled(n, stall.idle_s, stall.load_s, drops=dropped)
    slower = slots is None and service_s - lone_s > wait_s  # it is most of the extra time
    if slower or wait_s < (1 - REACHED_SHARE) * response_s:
        return SlowedDown(n, service_s, lone_s, drops=dropped)
    if slots is not None and rps >= REACHED_SHARE * possible_rps:
        return SlotsShared(n, slots, wait_s, response_s, drops=dropped)
    return BelowPossible(
        connections=n,
        rps=rps,
        possible_rps=possible_rps,
        why=why_below_possible(facts),
        wait_s=wait_s,
        response_s=response_s,
        drops=dropped,
    )


def why_below_possible(facts: Facts) -> DealtUnevenly | MostInApp:
    used, slots = facts.open_at_once, facts.slots
    if uneven_dealing(facts):
        return DealtUnevenly(tuple(sorted(facts.per_worker.values(), reverse=True)))
    if slots is None:
        return MostInApp("where up to", used, limit=facts.no_limit)
    few = used < REACHED_SHARE * facts.parallel
    return MostInApp("because at most" if few else "although up to", used, slots)


def generator_bound(facts: Facts, reasons: tuple[Finding, ...]) -> GeneratorBound:
    """Why the load tool was the limit, and the lower bound that follows for the server."""
    certain = not all(isinstance(reason, NearCeiling) for reason in reasons)
    return GeneratorBound(
        tool=facts.tool,
        certainty="is" if certain else "may be",
        reasons=reasons,
        rps=facts.rps,
    )
