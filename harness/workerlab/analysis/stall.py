"""The whole load, beside its steady window; and stalls, in which slots stand idle while clients
have requests under way.

The steady window ends when fewer than N requests are under way, since what comes then is mostly the
emptying of a queue. Where the kernel dropped handshakes it is not: clients repeat a SYN or their
data after ever longer pauses, and the server stands still meanwhile. Inside the window nothing
shows it, so the two are compared. A slot stands idle for the network where

    min(slots, requests under way) > in the app + accepted by a worker whose slots are taken

What a full worker has accepted is not that but dealt unevenly; what the app still works on (a heavy
tail) is neither. A worker that has accepted a request and has a slot free for it waits for the
client's bytes: where the last packet of a handshake was dropped, they come seconds later. While
the whole machine stands still no slot is idle for the network. On kept
connections nobody knows when a worker has a request, and where slots are unlimited not how many are
idle: there it counts only when nothing at all is in the server.

It is a stall where the whole load's throughput (per second in which the machine ran: a loop that
blocks leaves slots idle all the time, and a pause must not make that the reason) is a tenth below
the steady one, such moments last for half of the time that this took or more, and the kernel shows
why (repeated SYNs, half-open connections, overflows); without that, where it is below 0.7. Then the
whole load is what a cell reports. Rejected: a limit of 0.7, or a response above 3 * p95, for all.
Under ab one request of twenty waited 20 s, which then is the p95, and the whole load reached 0.82
of the steady throughput: a stall for whoever watched it. FIFO servers reach 0.99 and uneven ones
0.75 or more.

Requests under way are those the client timed; of a tool that does not tell, min(N, requests that
are not answered yet), as in a closed loop.

While the whole machine stands still nothing runs, and the clocks go on. Requests that are due in a
pause of P seconds are sent when it ends, P/2 late on average; in a load of T seconds they are P/T
of all."""

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

UNSEEN_S = 0.1  # of each: before the observer was due
CHANCE = 2.0  # times as many may be due in it by chance, or wait for those that were
NOTICEABLE_SHARE = 0.01  # of the load


def lengths_s(facts: Facts, part: Window | None = None) -> tuple[float, ...]:
    """How long each pause was at most, of those during this part of the load; else during the load,
    as it was planned or as it was."""
    planned_ns = round((facts.record.planned_duration_s or 0.0) * NS)
    from_ns, until_ns = facts.started_ns, max(facts.ended_ns, facts.started_ns + planned_ns)
    if part is not None:
        from_ns, until_ns = part.opens_ns, part.closes_ns
    seen = (_inside_s(one, from_ns, until_ns) for one in facts.seen.pauses)
    return tuple(length_s + UNSEEN_S for length_s in seen if length_s > 0)


def paused(facts: Facts, begins_ns: int, ends_ns: int) -> bool:
    return any(_inside_s(one, begins_ns, ends_ns) > 0 for one in facts.seen.pauses)


def running_s(facts: Facts, begins_ns: int, ends_ns: int) -> float:
    """How long the machine ran between two moments."""
    return (ends_ns - begins_ns) / NS - sum(
        _inside_s(one, begins_ns, ends_ns) for one in facts.seen.pauses
    )


def late_s(pauses_s: Sequence[float], load_s: float) -> float:
    """How late requests of a schedule were sent on average for these pauses, at most."""
    return CHANCE * sum(one_s * one_s / 2 for one_s in pauses_s) / load_s if load_s > 0 else 0.0


def part(pauses_s: Sequence[float], load_s: float) -> float:
    """Of all requests, those that were due in these pauses, at most; 0 to 1."""
    return min(1.0, CHANCE * sum(pauses_s) / load_s) if load_s > 0 else 0.0


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
    """A pause at the end of a load may outlast it."""
    return MachinePause(
        paused_s=min(sum(pauses_s), load_s), load_s=load_s, longest_s=min(max(pauses_s), load_s)
    )


def noticeable(facts: Facts) -> MachinePause | None:
    """None where it hardly stood still."""
    pauses_s = lengths_s(facts)
    if not pauses_s or sum(pauses_s) < NOTICEABLE_SHARE * facts.load_s:
        return None
    return pause_of(pauses_s, facts.load_s)


def _inside_s(pause: Pause, begins_ns: int, ends_ns: int) -> float:
    return max(0, min(pause.to_ns, ends_ns) - max(pause.from_ns, begins_ns)) / NS


APART = 0.9  # of the steady throughput: below, the whole load's is noted
STALLED = 0.7  # of the same: below, it is a stall without the kernel's evidence, too
MOSTLY = 0.95  # of the requests are successes
MOST_STILL = 0.9  # of the time: what is left of it then says nothing
EXPLAINS = 0.5  # of the time that the load took longer
PAUSE_NS = 50_000_000  # after a request a slot may seem idle: accepting, parsing, a slow client


class Stall(Struct, frozen=True):
    """Seconds of the whole load in which slots stood idle while clients waited outside; `still_s`:
    those of them in which nothing at all was in the server, `longest_s`: at one go."""

    idle_s: float
    still_s: float
    longest_s: float | None  # None: at no time
    load_s: float


# --- the whole load ---------------------------------------------------------------------------


@once
def whole_load(facts: Facts) -> Window | None:
    """From the first request that is not alone to the last answer; of a closed loop that runs for a
    time, until it stops. `rps`: completions per second in it, whatever their status."""
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
    """Without the lone first one."""
    return facts.spans[1:] if facts.data.lone_first else facts.spans


def _begun_ns(facts: Facts) -> int:
    return facts.started_ns + round(facts.data.ramp_s * NS)


def _last_ns(facts: Facts, spans: Sequence[Span]) -> int:
    """The client waited to the end for what was never answered. A closed loop that runs for a
    time keeps all its connections busy until it stops; at a rate nothing does, and what has
    arrived by then is answered after it."""
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
    """Successes per second of the part of the load that the cell reports; 0 where there is none."""
    window = headline(facts)
    return 0.0 if window is None else _successes_rps(facts, window)


def _successes_rps(facts: Facts, window: Window) -> float:
    """Counted where it is known which spans are successes. Where it is not, their share is that of
    the whole load, and so is the rate where they are few: a part of the load may have others."""
    spans, share_of_all = success_spans(facts), facts.outcome.success
    if spans is None or not facts.outcome.failed:
        whole = whole_load(facts)
        few = share_of_all < MOSTLY and whole is not None
        return (whole if few and whole else window).rps * share_of_all
    counted = ended(spans, facts.counted_ns)
    return completions(counted, window.opens_ns, window.closes_ns) / window.length_s


@once
def headline(facts: Facts) -> Window | None:
    """The part of the load that a cell's throughput and breakdown are of."""
    return whole_load(facts) if stalled(facts) else facts.window


def stood_still(facts: Facts) -> float:
    """The part of that time in which the machine did, where that is told; less than 1."""
    part = headline(facts)
    if part is None or noticeable(facts) is None:
        return 0.0
    return min(MOST_STILL, sum(lengths_s(facts, part)) / part.length_s)


class SlowerAsAWhole(Finding):
    """over the whole load, its end included, {whole_rps:number} requests/s succeeded;
    {steady_rps:number} in its steady part, while all connections were busy"""

    whole_rps: float | None
    steady_rps: float


def apart(facts: Facts) -> tuple[Finding, ...]:
    """A note where the whole load came to a tenth less than its steady part."""
    whole, steady = whole_load(facts), facts.window
    if whole is None or steady is None or stalled(facts) or whole.rps >= APART * steady.rps:
        return ()
    return (SlowerAsAWhole(whole_rps(facts), headline_rps(facts)),)


# --- what was lost ----------------------------------------------------------------------------


@once
def stalled(facts: Facts) -> Stall | None:
    whole, steady = whole_load(facts), facts.window
    if facts.open_model or whole is None or steady is None:
        return None
    shakes = handshakes(facts)
    dropped = shakes.dropped or shakes.suspected  # as the kernel, or times to connect, show it
    least = APART if dropped else STALLED
    (whole_s, whole_rps), (steady_s, steady_rps) = _running(facts, whole), _running(facts, steady)
    if min(whole_s, steady_s) <= 0 or whole_rps >= least * steady_rps:
        return None
    stall, longer_s = idle(facts, whole), whole_s * (1 - whole_rps / steady_rps)
    return stall if stall.idle_s >= EXPLAINS * longer_s else None


def _running(facts: Facts, window: Window) -> tuple[float, float]:
    """How long the machine ran in it, and completions per second of that."""
    ran_s = running_s(facts, window.opens_ns, window.closes_ns)
    return ran_s, window.rps * window.length_s / ran_s if ran_s > 0 else 0.0


def idle(facts: Facts, window: Window) -> Stall:
    """How long slots stood idle for the network, moment by moment."""
    slots = 1 if facts.slots is None or facts.cell.keepalive else facts.slots
    waited = still = longest = stretch = 0
    for length, requests, inside in _moments(facts, window):
        stretch = stretch + length if requests and not inside else 0
        still += length if stretch else 0
        longest = max(longest, stretch)
        waited += length if inside < min(slots, requests) else 0
    return Stall(waited / NS, still / NS, longest / NS or None, window.length_s)


def under_way(facts: Facts) -> Iterable[tuple[int, int]]:
    """From when to when each request was under way, by the client; where it does not tell, such
    stretches as a closed loop has at every moment: of N connections each begins the next request
    when one is answered, until none are left."""
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
    ends += [last] * (facts.measurement.requests - len(facts.spans))  # that no worker has seen
    # The request that takes the place of number i begins when that is answered
    since = [spans[0].start_ns] * facts.connections + ends
    yield from zip(since, ends, strict=False)


def in_flight_s(facts: Facts, window: Window) -> float:
    """The requests under way, added up over a part of the load: mean number * its length."""
    return window.inside_s(under_way(facts))


def _moments(facts: Facts, window: Window) -> Iterator[tuple[int, int, int]]:
    """Each state of the window in which the machine ran: nanoseconds that it lasts, requests under
    way, and those of them that are in the app or accepted by a worker whose slots are taken."""
    each = facts.data.worker_class.slots_per_worker(facts.cell.server) or 1
    begun, queued = defaultdict[int, int](int), defaultdict[int, int](int)
    requests = inside = paused = 0
    since = window.opens_ns
    for at, together in groupby(sorted(_changes(facts, window.closes_ns)), itemgetter(0)):
        if (until := min(at, window.closes_ns)) > since:
            if not paused:
                yield until - since, requests, inside
            since = until
        for _, pid, began, accepted, more_requests, more_pauses in together:
            requests += more_requests
            paused += more_pauses
            inside -= begun[pid] + (queued[pid] if begun[pid] >= each else 0)
            begun[pid] += began
            queued[pid] += accepted
            inside += begun[pid] + (queued[pid] if begun[pid] >= each else 0)


def _changes(facts: Facts, closes_ns: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """As `slot_changes`, and by how many more requests are under way, and pauses last."""
    for begins, ends in under_way(facts):
        yield begins, 0, 0, 0, 1, 0
        yield ends, 0, 0, 0, -1, 0
    for pause in facts.seen.pauses:
        yield pause.from_ns, 0, 0, 0, 0, 1
        yield pause.to_ns, 0, 0, 0, 0, -1
    for change in slot_changes(facts, closes_ns=closes_ns, beside_ns=PAUSE_NS):
        yield *change, 0, 0
