"""The whole load compared with its steady window; stalls; pauses of the whole machine.

In a stall, slots idle while clients have requests under way. The steady window ends when fewer than
N requests are under way, since the rest is mostly the emptying of a queue. That is not so if the
kernel dropped handshakes: clients repeat a SYN or their data after ever longer pauses, and the
server idles meanwhile. The window does not show this, so the whole load is compared with it. A slot
is idle because of the network if

    min(slots, requests under way) > in the app + accepted by a worker whose slots are taken

Requests accepted by a full worker show uneven distribution, and requests that the app still works
on show a heavy tail; neither is a stall. A worker that has accepted a request and has a free slot
for it waits for the client's bytes: if the last packet of a handshake was dropped, they come
seconds later. While the whole machine stands still, no slot counts as idle. On kept-alive
connections it is unknown when a worker has a request, and with unlimited slots how many are idle;
there only moments count in which nothing at all is in the server.

A closed-loop load stalled if its throughput is over 10 % below that of its steady window, idle
moments account for at least half of the extra time, and there is evidence of dropped handshakes
(`handshakes`): a queue that overflowed or, without counters, slow connects. Without evidence the
limit is 0.7 of the steady throughput. Throughput is per second in which the machine ran: with a
loop that blocks, slots idle all the time, and a pause would be taken for a stall. If the load
stalled, the cell reports the whole load.

Rejected: a limit of 0.7, or a response above 3 * p95, in all cases. Under ab, one request in twenty
waited 20 s, which then is the p95, and the whole load reached 0.82 of the steady throughput: a
clear stall. FIFO servers reach 0.99 and uneven ones 0.75 or more.

Requests under way are those the client timed; if the tool does not time them, min(N, unanswered
requests), as in a closed loop.

While the whole machine stands still, nothing runs but the clocks. Requests that are due in a pause
of P seconds are sent when it ends, on average P/2 late; in a load of T seconds they are P/T of all.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.failures import success_spans
from workerlab.analysis.handshakes import handshakes
from workerlab.analysis.samples import NS, Window, completions, ended
from workerlab.analysis.slots import slot_changes
from workerlab.finding import Finding
from workerlab.model import Pause, Span

UNSEEN_PAUSE_S = 0.1  # added to each pause: until the observer was due to wake up
CHANCE_RATIO = 2.0  # up to so many times the mean are due in a pause by chance, or queue behind it
NOTICEABLE_SHARE = 0.01  # of the load


def lengths_s(facts: Facts, part: Window | None = None) -> tuple[float, ...]:
    """Upper bound of the length of each pause in `part`, seconds; None: in the load, as planned or
    as run, whichever is longer."""
    planned_ns = round((facts.record.planned_duration_s or 0.0) * NS)
    from_ns, until_ns = facts.started_ns, max(facts.ended_ns, facts.started_ns + planned_ns)
    if part is not None:
        from_ns, until_ns = part.opens_ns, part.closes_ns
    inside_s = (_inside_s(pause, from_ns, until_ns) for pause in facts.seen.pauses)
    return tuple(length_s + UNSEEN_PAUSE_S for length_s in inside_s if length_s > 0)


def paused(facts: Facts, begins_ns: int, ends_ns: int) -> bool:
    return any(_inside_s(pause, begins_ns, ends_ns) > 0 for pause in facts.seen.pauses)


def running_s(facts: Facts, begins_ns: int, ends_ns: int) -> float:
    """How many seconds the machine ran between two moments."""
    return (ends_ns - begins_ns) / NS - sum(
        _inside_s(pause, begins_ns, ends_ns) for pause in facts.seen.pauses
    )


def late_s(pauses_s: Sequence[float], load_s: float) -> float:
    """Upper bound of how late requests of a schedule were sent on average due to these pauses."""
    return (
        CHANCE_RATIO * sum(pause * pause / 2 for pause in pauses_s) / load_s if load_s > 0 else 0.0
    )


def part(pauses_s: Sequence[float], load_s: float) -> float:
    """Upper bound of the share of requests that were due in these pauses; 0 to 1."""
    return min(1.0, CHANCE_RATIO * sum(pauses_s) / load_s) if load_s > 0 else 0.0


class MachinePause(Finding):
    """this machine stood still, or the lab was stopped, for up to {paused_s:duration} of
    {load_s:duration} ({longest_s:duration} at once)"""

    paused_s: float
    load_s: float
    longest_s: float


class PauseDuringLoad(Finding):
    """{pause}: as when a host suspends its guests, the lab itself was not run, though it waited for
    no core; the figures contain that time"""

    pause: MachinePause


def pause_of(pauses_s: Sequence[float], load_s: float) -> MachinePause:
    """Limited to the load, since a pause at its end may outlast it."""
    return MachinePause(
        paused_s=min(sum(pauses_s), load_s), load_s=load_s, longest_s=min(max(pauses_s), load_s)
    )


def noticeable(facts: Facts) -> MachinePause | None:
    """The pauses during the load; None if they are less than NOTICEABLE_SHARE of it."""
    pauses_s = lengths_s(facts)
    if not pauses_s or sum(pauses_s) < NOTICEABLE_SHARE * facts.load_s:
        return None
    return pause_of(pauses_s, facts.load_s)


def _inside_s(pause: Pause, begins_ns: int, ends_ns: int) -> float:
    return max(0, min(pause.to_ns, ends_ns) - max(pause.from_ns, begins_ns)) / NS


APART_RATIO = 0.9  # of the steady throughput: a lower one of the whole load is noted
STALLED_RATIO = 0.7  # likewise: below, it is a stall even without evidence of dropped handshakes
MIN_SUCCESS_SHARE = 0.95  # share of successes: with fewer, only the whole load's rate is known
MAX_STILL_SHARE = 0.9  # of the time, at most: the remainder would be too short to judge
MIN_EXPLAINED_SHARE = 0.5  # of the extra time of the load
SLOT_GAP_NS = 50_000_000  # after a request a slot may seem idle: accepting, parsing, a slow client


class Stall(Struct, frozen=True):
    """Seconds of the whole load in which slots idled while clients waited outside (`idle_s`), those
    in which nothing at all was in the server (`still_s`), and the longest run of the latter."""

    idle_s: float
    still_s: float
    longest_s: float | None  # None: at no time
    load_s: float


# --- the whole load ---------------------------------------------------------------------------


@once
def whole_load(facts: Facts) -> Window | None:
    """From the first request that is not alone to the last answer; for a closed loop of fixed
    duration, until the tool stops. `rps`: completions per second, whatever their status."""
    spans = _together(facts)
    if not spans:
        return None
    opens = max(spans[0].start_ns, _begun_ns(facts))
    closes = _last_ns(facts, spans)
    if closes <= opens:
        return None
    completed = completions(ended(spans, facts.counted_ns), opens, closes)
    return Window(opens, closes, completed * NS / (closes - opens)) if completed else None


def _together(facts: Facts) -> Sequence[Span]:
    """The spans without the lone first one."""
    return facts.spans[1:] if facts.data.lone_first else facts.spans


def _begun_ns(facts: Facts) -> int:
    return facts.started_ns + round(facts.data.ramp_s * NS)


def _last_ns(facts: Facts, spans: Sequence[Span]) -> int:
    """When the load ends. With unanswered requests, the client waited for them to the end. A closed
    loop of fixed duration keeps all connections busy until it stops; at a rate, requests that have
    arrived by then are answered later."""
    last_ns = max(span.end_ns or 0 for span in spans)
    if facts.data.counted:
        return facts.ended_ns if facts.outcome.unanswered else last_ns
    planned_s, origin_ns = facts.record.planned_duration_s, facts.measurement.origin_ns
    if facts.open_model or planned_s is None or origin_ns is None:
        return min(facts.ended_ns, last_ns)
    return min(facts.ended_ns, origin_ns + round(planned_s * NS))


@once
def whole_rps(facts: Facts) -> float | None:
    """Successes per second of the whole load."""
    whole = whole_load(facts)
    return None if whole is None else _successes_rps(facts, whole)


@once
def headline_rps(facts: Facts) -> float:
    """Successes per second of the part of the load that the cell reports; 0 if there is none."""
    window = headline(facts)
    return 0.0 if window is None else _successes_rps(facts, window)


def _successes_rps(facts: Facts, window: Window) -> float:
    """Successful spans are counted if it is known which they are. If not, the share of successes is
    that of the whole load; if it is low, so is the rate, since the share may vary over the load."""
    spans, share_of_all = success_spans(facts), facts.outcome.success
    if spans is None or not facts.outcome.failed:
        whole = whole_load(facts)
        few = share_of_all < MIN_SUCCESS_SHARE and whole is not None
        return (whole if few and whole else window).rps * share_of_all
    counted = ended(spans, facts.counted_ns)
    return completions(counted, window.opens_ns, window.closes_ns) / window.length_s


@once
def headline(facts: Facts) -> Window | None:
    """The part of the load that a cell's throughput and breakdown describe."""
    return whole_load(facts) if stalled(facts) else facts.window


def stood_still(facts: Facts) -> float:
    """The share of the headline's time in which the machine stood still; 0 if not noticeable."""
    window = headline(facts)
    if window is None or noticeable(facts) is None:
        return 0.0
    return min(MAX_STILL_SHARE, sum(lengths_s(facts, window)) / window.length_s)


class SlowerAsAWhole(Finding):
    """over the whole load, its end included, {whole_rps:number} requests/s succeeded;
    {steady_rps:number} in its steady part, while all connections were busy"""

    whole_rps: float | None
    steady_rps: float


def apart(facts: Facts) -> tuple[Finding, ...]:
    """A note if the whole load's throughput is over 10 % below its steady part's."""
    whole, steady = whole_load(facts), facts.window
    if whole is None or steady is None or stalled(facts) or whole.rps >= APART_RATIO * steady.rps:
        return ()
    return (SlowerAsAWhole(whole_rps(facts), headline_rps(facts)),)


# --- stalls -----------------------------------------------------------------------------------


@once
def stalled(facts: Facts) -> Stall | None:
    """The stall of a closed loop; None if it did not stall, or has no steady part."""
    whole, steady = whole_load(facts), facts.window
    if facts.open_model or whole is None or steady is None:
        return None
    shakes = handshakes(facts)
    dropped = shakes.dropped or shakes.suspected  # by kernel counters, or by connect times
    limit = APART_RATIO if dropped else STALLED_RATIO
    (whole_s, whole_rps), (steady_s, steady_rps) = _running(facts, whole), _running(facts, steady)
    if min(whole_s, steady_s) <= 0 or whole_rps >= limit * steady_rps:
        return None
    stall, extra_s = idle(facts, whole), whole_s * (1 - whole_rps / steady_rps)
    return stall if stall.idle_s >= MIN_EXPLAINED_SHARE * extra_s else None


def _running(facts: Facts, window: Window) -> tuple[float, float]:
    """Seconds that the machine ran in the window, and completions per second of these."""
    ran_s = running_s(facts, window.opens_ns, window.closes_ns)
    return ran_s, window.rps * window.length_s / ran_s if ran_s > 0 else 0.0


def idle(facts: Facts, window: Window) -> Stall:
    """How long slots were idle because of the network."""
    slots = 1 if facts.slots is None or facts.cell.keepalive else facts.slots
    waited = still = longest = stretch = 0
    for length, requests, inside in _moments(facts, window):
        stretch = stretch + length if requests and not inside else 0
        still += length if stretch else 0
        longest = max(longest, stretch)
        waited += length if inside < min(slots, requests) else 0
    return Stall(waited / NS, still / NS, longest / NS or None, window.length_s)


def under_way(facts: Facts) -> Iterable[tuple[int, int]]:
    """When each request began and ended, in nanoseconds, as the client timed it; if it did not, as
    in a closed loop, where each answer starts the next request on its connection."""
    origin_ns = facts.measurement.origin_ns
    timings = facts.measurement.timings
    if origin_ns is not None and timings:
        for timing in timings:
            begins = origin_ns + round(timing.start_s * NS)
            if timing.end_s is not None:
                yield begins, begins + round(timing.end_s * NS)
        return
    spans = _together(facts)
    if not spans:
        return
    last = _last_ns(facts, spans)
    ends = sorted(span.end_ns or last for span in spans)
    ends += [last] * (facts.measurement.requests - len(facts.spans))  # requests that no worker saw
    since = [spans[0].start_ns] * facts.connections + ends
    yield from zip(since, ends, strict=False)


def in_flight_s(facts: Facts, window: Window) -> float:
    """The integral of the requests under way over a window: their mean number * its length."""
    return window.inside_s(under_way(facts))


def _moments(facts: Facts, window: Window) -> Iterator[tuple[int, int, int]]:
    """Each state of the window while the machine ran: its length in nanoseconds, the requests under
    way, and how many are in the app or accepted by a worker whose slots are taken."""
    each = facts.data.worker_class.slots_per_worker(facts.cell.server) or 1
    begun, queued = defaultdict[int, int](int), defaultdict[int, int](int)
    requests = inside = paused = 0
    since = window.opens_ns
    for at, simultaneous in groupby(sorted(_changes(facts, window.closes_ns)), itemgetter(0)):
        if (until := min(at, window.closes_ns)) > since:
            if not paused:
                yield until - since, requests, inside
            since = until
        for _, pid, began, accepted, more_requests, more_pauses in simultaneous:
            requests += more_requests
            paused += more_pauses
            inside -= begun[pid] + (queued[pid] if begun[pid] >= each else 0)
            begun[pid] += began
            queued[pid] += accepted
            inside += begun[pid] + (queued[pid] if begun[pid] >= each else 0)


def _changes(facts: Facts, closes_ns: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """As `slot_changes`, with the changes in requests under way and in pauses."""
    for begins, ends in under_way(facts):
        yield begins, 0, 0, 0, 1, 0
        yield ends, 0, 0, 0, -1, 0
    for pause in facts.seen.pauses:
        yield pause.from_ns, 0, 0, 0, 0, 1
        yield pause.to_ns, 0, 0, 0, 0, -1
    for change in slot_changes(facts, closes_ns=closes_ns, beside_ns=SLOT_GAP_NS):
        yield *change, 0, 0
