"""The verdict of a valid cell, and its reason.

`verdict_of_closed` judges a closed loop, in which each of N connections waits for its response. It
uses the share of time in which a connection is served rather than waiting, u = X*R0/N. A
disturbance is the use of cores by other programs or machines. The first rule that applies decides:

    generator-bound    the load tool was the limit
    refused            at least 5 % of the requests got a 503 or 429: saturated, by the server's
                       own responses
    slots taken        measured occupancy is 0.95 or more: saturated if there are more connections
                       than slots, else at capacity. This needs no estimate of R0, and is valid
                       however service times vary and whatever else runs on the machine
    accept queue full  the kernel dropped handshakes: saturated
    disturbed          a disturbance cost over a tenth of the response, with more than one
                       connection: inconclusive. Without it the server might serve all requests;
                       and if they seem not to wait, lone requests may have been slow for the same
                       reason
    requests wait      u is below 0.95 beyond its interval: see below. The rule does not apply if
                       pauses alone explain it (u without them is 0.95 or more, and there may be
                       slots for all), or if a disturbance alone does
    paused             u is below 0.95, perhaps only within its interval (which pauses widen), and
                       the machine was paused in the part of the load that X describes:
                       inconclusive, unless pauses explain it and took at most half of the time
    nothing waits      at capacity if the connections reach the slots or, without slots, the knee
                       of an undisturbed series (`apply_knee`); else below capacity

If requests wait although slots are free, something else is the limit, or nothing is yet:

    more connections than slots: slots idle because connections are distributed unevenly.
        Inconclusive if a disturbance explains that most slots idle; saturated if at least half of
        the requests are in the server, or a resource is full; else inconclusive, because the load
        tool may hold the requests
    fewer, and some level took all slots, so these are the limit: below capacity, but saturated if u
        is below 0.8 and no higher level serves more: something shared limits even this level
    as many, and some level took all slots: at capacity if no higher level serves more, or if there
        was a disturbance
    enough slots for all idle while requests wait outside them, due to how connections are
        distributed: below capacity. The same applies with fewer connections than slots, if there
        was a disturbance, u without it is above half, and the class has no event loop
    the workers' cores are always busy, or their loops for more of the time than u: saturated
    a disturbance kept server or load tool waiting for a core: inconclusive, unless u without it is
        half or less, or more connections bring more throughput anyway
    else by the other levels: saturated if more connections bring no more throughput; below capacity
        if they do, or if this level is the highest and still gained on a lower one. If no level
        shows it, or the gain may be chance: saturated if requests wait in the server for more than
        half of the time; else inconclusive

An earlier rule, which only compared X with min(N, C)/R0, misjudged 11 of 35 cells with 4 to 16
connections on 4 slots, and called the highest level saturated because it was the highest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from workerlab.analysis import stall
from workerlab.analysis.breakdown import mean_in_server, slot_use, wait_finding
from workerlab.analysis.core_wait import core_wait, core_wait_share
from workerlab.analysis.diagnosis.cpu import disturbance
from workerlab.analysis.diagnosis.failing import shed_share
from workerlab.analysis.diagnosis.loop import loop_busy_share
from workerlab.analysis.diagnosis.slots import LONGER_SERVICE_RATIO
from workerlab.analysis.facts import Facts, TrialFault
from workerlab.analysis.handshakes import drops_finding, handshakes
from workerlab.analysis.load_tool import (
    INSIDE_SHARE,
    Certainty,
    OtherToolFaster,
    tool_certainty,
)
from workerlab.analysis.series import HALF_SERVED, OVER_SLOTS_RATIO, REACHED_SHARE, Series
from workerlab.analysis.slots import all_slots_taken, occupancy, uneven_distribution
from workerlab.analysis.stall import MachinePause, paused_share, stalled
from workerlab.finding import Finding, Findings
from workerlab.model.result import TrialResult, ValidVerdict

REFUSED_SHARE = 0.05  # of the requests
MOSTLY_SHARE = 0.5  # of the response, or of the slots
MAX_CORE_WAIT_SHARE = 0.9  # of the response; above it, the remainder is too short to judge
BUSY_SHARE = 0.9  # of the cores, or of a loop's time; at or above it, these count as full
MIN_UNDISTURBED_SERVED = 0.8  # of u without the disturbance; below it, waiting has another cause
UNEXPLAINED_IDLE_RATIO = 2.0  # idle share / core wait; above it, slots idle for another reason


class FailedRequests(Finding):
    """{requests:# request} failed[[ ({causes:counts})]]"""

    requests: int
    causes: Mapping[str, int]


class Reason(Finding, kw_only=True):
    """The reason for a verdict. Its sentence ends with dropped handshakes and failed requests."""

    drops: Finding | None = None
    failures: FailedRequests | None = None

    def __str__(self) -> str:
        parts = (super().__str__(), self.drops, self.failures)
        return "; ".join(str(part) for part in parts if part)


class TrialInvalid(Reason):
    """{reasons:; }"""

    reasons: Findings


def was_left_out(cell: TrialResult) -> bool:
    """Whether the cell was not measured because its server is unavailable here."""
    reasons = cell.reason.reasons if isinstance(cell.reason, TrialInvalid) else ()
    return any(
        isinstance(reason, TrialFault) and reason.kind == "unavailable" for reason in reasons
    )


class GeneratorBound(Reason):
    """{tool} {certainty} the limit, not the server: {reasons:; }; the server can serve at least
    {rps:number} requests/s"""

    tool: str
    certainty: Certainty
    reasons: Findings
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
    """it is unknown whether requests wait for each other: {pause}; measure again"""

    pause: MachinePause


Judgement = tuple[ValidVerdict, Finding]  # a verdict and its reason
Judgements = Mapping[str, Judgement]  # by key of the trial


def verdict_of_closed(facts: Facts, series: Series) -> Judgement:
    """The verdict of a valid cell by the rules above, except for the one that needs the knee."""
    n, slots = facts.connections, facts.slots
    if reasons := series.tool_limits.get(facts.key):
        return "generator-bound", generator_bound(facts, series, reasons)
    if (share := shed_share(facts)) >= REFUSED_SHARE:
        return "saturated", RequestsRefused(n, share)
    if slots and all_slots_taken(facts):
        if n > OVER_SLOTS_RATIO * slots:
            return "saturated", why_waiting(facts, series)
        return "at capacity", SlotsFilled(n, "filled", slots, wait_finding(facts))
    if handshakes(facts).dropped:
        return "saturated", why_waiting(facts, series)
    noise, lost_share = disturbance(facts), paused_share(facts)
    if noise and noise.wait.precludes_verdict and n > 1:
        return "inconclusive", noise
    by_pauses = series.explained_by_pauses(facts)
    by_noise = noise and _undisturbed_served_share(facts, series) >= REACHED_SHARE
    if series.requests_wait(facts) and not by_pauses and not by_noise:
        return _waiting_with_free_slots(facts, series, noise)
    slow = n > 1 and series.served_share(n) < REACHED_SHARE
    pause = stall.noticeable_pauses(facts)
    if pause and lost_share and slow and not (by_pauses and lost_share <= MOSTLY_SHARE):
        return "inconclusive", WaitsHiddenByPause(pause)
    return _nothing_waits(facts)


def _nothing_waits(facts: Facts) -> Judgement:
    n, slots = facts.connections, facts.slots
    if slots and n >= REACHED_SHARE * slots:
        return "at capacity", SlotsFilled(n, "had", slots, wait_finding(facts))
    return "below capacity", SlotsFree(**slot_use(facts))


def knee_decides(series: Series, judgement: Judgement) -> bool:
    """Whether nothing waits, so only the knee can show that the cell is at capacity."""
    return not series.slots and not series.disturbed and isinstance(judgement[1], SlotsFree)


def apply_knee(series: Series, judgements: Judgements, knee: float | None) -> Judgements:
    """The judgements, given the knee: cells that reach it are at capacity."""
    reached: dict[str, Judgement] = {
        facts.key: ("at capacity", KneeReached(facts.connections, facts.rps))
        for facts in series.closed
        if knee is not None and facts.connections >= REACHED_SHARE * knee
        and knee_decides(series, judgements[facts.key])
    }  # fmt: skip
    return {**judgements, **reached}


def _undisturbed_served_share(facts: Facts, series: Series) -> float:
    """u without the time lost to a disturbance."""
    wait = core_wait(facts)
    lost_share = min(wait.share_lost, MAX_CORE_WAIT_SHARE) if wait else 0.0
    return min(1.0, series.served_share(facts.connections) / (1 - lost_share))


class SlotsTaken(Reason):
    """{connections:# connection} can fill {part} of the {slots} slots; another trial filled all"""

    connections: int
    part: Literal["all", "nearly all"]
    slots: int


class HeldOutside(Reason):
    """only {inside:number} of {connections:# connection} had a request in the server on average,
    although slots were free: {tool} may hold the rest"""

    connections: int
    inside: float
    tool: str


class GrowthUnknown(Reason):
    """{waits}; {why}[[; add {add} or more]]"""

    waits: Reason
    why: str
    add: int | None = None  # connections


ONE_LEVEL = "a single valid level cannot show whether more connections raise the throughput"
NOT_SIGNIFICANT = "differences from other levels may be chance: repeat with --trials"


def _waiting_with_free_slots(facts: Facts, series: Series, noise: Finding | None) -> Judgement:
    """The verdict if requests wait or are slowed down although slots are free."""
    n, slots = facts.connections, facts.slots
    waits = why_waiting(facts, series)
    if slots and n > OVER_SLOTS_RATIO * slots:
        return _more_connections_than_slots(facts, waits, noise)
    served = _undisturbed_served_share(facts, series)
    if slots and series.slots_filled and n < REACHED_SHARE * slots:
        shared = series.levels_off(n) and served < MIN_UNDISTURBED_SERVED
        return "saturated" if shared else "below capacity", waits
    if slots and series.slots_filled and (noise or series.levels_off(n)):
        return "at capacity", SlotsTaken(n, "all" if n >= slots else "nearly all", slots)
    noise_matters = bool(noise) and served > HALF_SERVED
    if _idle_by_distribution(facts, series) or (
        noise_matters and slots and n < slots and not facts.worker_class.loop
    ):
        return "below capacity", waits
    if _resource_full(facts, served):
        return "saturated", waits
    grows = series.grows(n)
    if noise and noise_matters and grows is not True:
        by_chance = grows is None and served < MIN_UNDISTURBED_SERVED and len(series.levels) > 1
        return "inconclusive", GrowthUnknown(waits, NOT_SIGNIFICANT) if by_chance else noise
    return _verdict_by_levels(facts, series, waits)


def _more_connections_than_slots(facts: Facts, waits: Reason, noise: Finding | None) -> Judgement:
    """The verdict if some connections must wait although slots are free on average."""
    n, inside, idle = facts.connections, mean_in_server(facts), 1 - (occupancy(facts) or 0.0)
    # The wait for any reason: slots also idle while workers wait for each other
    if noise and MOSTLY_SHARE < idle < UNEXPLAINED_IDLE_RATIO * core_wait_share(facts):
        return "inconclusive", noise
    if inside is None or inside >= INSIDE_SHARE * n or _resource_full(facts, 1.0):
        return "saturated", waits
    return "inconclusive", HeldOutside(n, inside, facts.tool)


def _idle_by_distribution(facts: Facts, series: Series) -> bool:
    """Whether slots idle although there are enough for all, and for longer than waiting for a core
    explains. Never with event loops: the loop itself delays requests outside its slots."""
    n, slots = facts.connections, facts.slots
    if not slots or facts.worker_class.loop or len(facts.record.worker_pids) < 2:
        return False
    if (inside := mean_in_server(facts)) is not None and inside < INSIDE_SHARE * n:
        return False  # the load tool may hold them
    if (facts.service.mean or 0.0) >= LONGER_SERVICE_RATIO * series.r0.seconds:
        return False  # slots idle for another reason than distribution
    idle = 1 - (occupancy(facts) or 0.0) * slots / n
    return idle > 1 - REACHED_SHARE and idle >= UNEXPLAINED_IDLE_RATIO * core_wait_share(facts)


def _verdict_by_levels(facts: Facts, series: Series, waits: Reason) -> Judgement:
    """The verdict by the throughput that more connections bring."""
    n, inside = facts.connections, mean_in_server(facts)
    grows = series.grows(n)
    if grows is not None:
        return "below capacity" if grows else "saturated", waits
    if inside is not None and inside < INSIDE_SHARE * n:
        return "inconclusive", HeldOutside(n, inside, facts.tool)
    if series.served_share(n) <= HALF_SERVED:
        return "saturated", waits
    if len(series.levels) == 1:
        return "inconclusive", GrowthUnknown(waits, ONE_LEVEL, add=2 * n)
    return "inconclusive", GrowthUnknown(waits, NOT_SIGNIFICANT)


def _resource_full(facts: Facts, served: float) -> bool:
    """Whether the workers' CPU, the machine's (used by server and load tool, not by other programs)
    or the loops are full. Loops count only with more connections than loops: fewer may share one by
    chance. If each request needs its loop for D, N* = R0/D connections are served without waiting;
    with U = X*D, the share of time the loop is in use, N > N* means u < U. `served`: u."""
    usage, workers = facts.usage, facts.workers
    used = (usage.server_cores or 0.0) + (usage.generator_cores or 0.0)
    machine_busy = used / (facts.observations.cores or workers)
    loops_busy = loop_busy_share(facts) > min(served, BUSY_SHARE)
    return (facts.connections > OVER_SLOTS_RATIO * workers and loops_busy) or max(
        facts.workers_busy, machine_busy
    ) >= BUSY_SHARE


class SlotsIdled(Reason):
    """{connections:# connection} waited while slots were idle for {idle_s:duration} of
    {load_s:duration}"""

    connections: int
    idle_s: float
    load_s: float


class SlowedDown(Reason):
    """with {connections:# connection} a request spends {service_s:duration} inside the app, a lone
    request {lone_s:duration}: requests slow each other down"""

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
    """Why requests wait, and how long in the steady window: R = N/X (Little 1961)."""
    n, rps, slots, lone_s = facts.connections, facts.rps, facts.slots, series.r0.seconds
    response_s, service_s = n / rps, facts.service.mean or 0.0
    wait_s = max(0.0, response_s - service_s)
    possible_rps = facts.max_parallel / lone_s
    dropped = drops_finding(facts)
    if load_stall := stalled(facts):
        return SlotsIdled(n, load_stall.idle_s, load_stall.load_s, drops=dropped)
    slower = slots is None and service_s - lone_s > wait_s  # by more than the wait
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
    used, slots = facts.max_in_app, facts.slots
    if uneven_distribution(facts):
        return DealtUnevenly(tuple(sorted(facts.requests_per_worker.values(), reverse=True)))
    if slots is None:
        return MostInApp("where up to", used, limit=facts.limit_note)
    few = used < REACHED_SHARE * facts.max_parallel
    return MostInApp("because at most" if few else "although up to", used, slots)


def generator_bound(facts: Facts, series: Series, reasons: Findings) -> GeneratorBound:
    """Why the load tool was the limit, and the resulting lower bound for the server: the highest
    throughput of any level or of another tool."""
    by_other_tools = (reason.rps for reason in reasons if isinstance(reason, OtherToolFaster))
    return GeneratorBound(
        tool=facts.tool,
        certainty=tool_certainty([reasons]),
        reasons=reasons,
        rps=max(facts.rps, *series.levels.values(), *by_other_tools),
    )
