"""The whole load compared with its steady window; stalls; pauses of the whole machine.

In a stall, slots idle while clients have requests in flight. The steady window ends when fewer than
N requests are in flight, because after that the queue usually empties. It does not if the kernel
dropped handshakes: clients repeat a SYN or their data after ever longer intervals, and the server
idles meanwhile. The window does not show this, so the whole load is compared with it. A slot is
idle because of the network if

    min(slots, requests in flight) > in the app + accepted by a worker whose slots are taken

Requests accepted by a full worker are a sign of uneven distribution, and requests still in the app
of a heavy tail; neither is a stall. A worker that has accepted a request and has a free slot for it
waits for the client's bytes: if the last packet of a handshake was dropped, they come seconds
later. While the whole machine is paused, no slot counts as idle. On kept-alive connections it is
unknown when a worker has a request, and with unlimited slots how many are idle; in these cases,
only moments without any request in the server count.

A closed-loop load stalled if its throughput is over 10 % below that of its steady window, idle
moments account for at least half of the extra time, and there is evidence of dropped handshakes
(`handshakes`): a queue that overflowed or, without counters, slow connects. Without evidence the
limit is 0.7 of the steady throughput. Throughput excludes the time in which the machine was paused:
slots behind a blocked loop are always idle, so a pause would be mistaken for a stall. If the load
stalled, the cell reports the whole load.

Rejected: a limit of 0.7, or a response above 3 * p95, in all cases. Under ab, one request in twenty
waited 20 s, which then is the p95, and the whole load reached 0.82 of the steady throughput: a
clear stall. FIFO servers reach 0.99 and uneven ones 0.75 or more.

Requests in flight are known if the client timed them; otherwise they are min(N, unanswered
requests), as in a closed loop.

While the whole machine is paused, only the clocks run. Requests that are due in a pause of P
seconds are sent when it ends, on average P/2 late; in a load of T seconds, P/T of all requests are
due in the pause.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.handshakes import handshakes
from workerlab.analysis.samples import NS, Change, Intervals, Period, Window, states
from workerlab.analysis.slots import SlotKey, slot_changes, slot_keys
from workerlab.finding import Finding, Findings
from workerlab.model.evidence import Observations

UNSEEN_PAUSE_S = 0.1  # added to each pause, which may begin this long before the observer is due
# By chance, up to this multiple of the mean number of requests is due in a pause or queues after it
CHANCE_RATIO = 2.0
NOTICEABLE_SHARE = 0.01  # of the load


def pauses_of(observations: Observations) -> Intervals:
    return Intervals([(pause.from_ns, pause.to_ns) for pause in observations.pauses])


def pause_lengths_s(facts: Facts, part: Period | None = None) -> tuple[float, ...]:
    """Upper bounds of the seconds of each pause in `part`; None: in the load, as planned or as run,
    whichever is longer."""
    if part is None:
        planned_ns = round((facts.record.planned_duration_s or 0.0) * NS)
        part = Period(facts.started_ns, max(facts.ended_ns, facts.started_ns + planned_ns))
    lengths_ns = pauses_of(facts.observations).lengths_ns(part)
    return tuple(length_ns / NS + UNSEEN_PAUSE_S for length_ns in lengths_ns)


def machine_paused(observations: Observations, begins_ns: int, ends_ns: int) -> bool:
    """Whether the machine was paused during this period."""
    return any(pauses_of(observations).lengths_ns(Period(begins_ns, ends_ns)))


def max_mean_delay_s(pauses_s: Sequence[float], load_s: float) -> float:
    """Upper bound of the mean delay of scheduled requests by these pauses."""
    if load_s <= 0:
        return 0.0
    return CHANCE_RATIO * sum(pause_s * pause_s / 2 for pause_s in pauses_s) / load_s


def max_paused_share(pauses_s: Sequence[float], load_s: float) -> float:
    """Upper bound of the share of requests that were due in these pauses; 0 to 1."""
    return min(1.0, CHANCE_RATIO * sum(pauses_s) / load_s) if load_s > 0 else 0.0


class MachinePause(Finding):
    """this machine, or the lab, was paused for up to {paused_s:duration} of {load_s:duration}
    ({longest_s:duration} at a stretch)"""

    paused_s: float
    load_s: float
    longest_s: float


class PauseDuringLoad(Finding):
    """{pause}: the lab did not run although it was not waiting for a core, as if a host had
    suspended its guests; the figures include that time"""

    pause: MachinePause


def machine_pause(pauses_s: Sequence[float], load_s: float) -> MachinePause:
    """The pauses, at least one, limited to the load: a pause at its end may outlast it."""
    return MachinePause(
        paused_s=min(sum(pauses_s), load_s), load_s=load_s, longest_s=min(max(pauses_s), load_s)
    )


def noticeable_pauses(facts: Facts) -> MachinePause | None:
    """The pauses during the load; None if they are less than NOTICEABLE_SHARE of it."""
    pauses_s = pause_lengths_s(facts)
    if not pauses_s or sum(pauses_s) < NOTICEABLE_SHARE * facts.load_s:
        return None
    return machine_pause(pauses_s, facts.load_s)


# Throughput of the whole load / of its steady part
SLOWER_RATIO = 0.9  # below it, a note; or a stall, with evidence of dropped handshakes
STALLED_RATIO = 0.7  # below it, possibly a stall even without evidence
MIN_SUCCESS_SHARE = 0.95  # below it, the rate is that of the whole load
MAX_PAUSED_SHARE = 0.9  # limit of `paused_share`; above it, the rest is too short to judge
MIN_EXPLAINED_SHARE = 0.5  # of the load's extra time
SLOT_GAP_NS = 50_000_000  # after a request, a slot may seem idle: accepting, parsing, a slow client


class Stall(Struct, frozen=True):
    """Seconds of a load in which slots idled while clients waited outside."""

    idle_s: float
    still_s: float  # the part of `idle_s` without any request in the server
    longest_s: float | None  # longest part of `still_s` at a stretch; None: none
    load_s: float


# --- the whole load ---------------------------------------------------------------------------


@once
def whole_load(facts: Facts) -> Window | None:
    """The load from the first request that is not alone, or the end of the ramp-up, to its end.
    `rps`: completions per second, of any status. None if nothing was completed."""
    spans = facts.under_load
    if not spans:
        return None
    opens_ns = max(spans[0].start_ns, facts.started_ns + round(facts.data.ramp_s * NS))
    load = Period(opens_ns, _load_end_ns(facts))
    if load.length_s <= 0:
        return None
    whole = Window.counting(Intervals.of(spans).last(facts.tail_ns), load)
    return whole if whole.rps else None


def _load_end_ns(facts: Facts) -> int:
    """The end of the load, usually the last response. The client waits for unanswered requests to
    the end. A closed loop of fixed duration keeps all connections busy until it stops; at a rate,
    responses come later."""
    last_ns = max(span.end_ns or 0 for span in facts.under_load)
    if facts.data.fixed_count:
        return facts.ended_ns if facts.outcome.unanswered else last_ns
    if facts.open_model or facts.planned_stop_ns is None:
        return min(facts.ended_ns, last_ns)
    return min(facts.ended_ns, facts.planned_stop_ns)


@once
def whole_rps(facts: Facts) -> float | None:
    """Successes per second of the whole load; None if nothing was completed."""
    whole = whole_load(facts)
    return None if whole is None else _successes_rps(facts, whole)


@once
def reported_rps(facts: Facts) -> float:
    """Successes per second of the part of the load that the cell reports."""
    return _successes_rps(facts, reported_part(facts))


def _successes_rps(facts: Facts, window: Window) -> float:
    """Successes per second, by successful spans if these are known, else by the share of successes
    in the whole load. If that share is low, the rate is also of the whole load, because the share
    may vary over time."""
    spans, success_share = facts.success_spans, facts.outcome.success_share
    if spans is None or not facts.outcome.failed:
        whole = whole_load(facts) if success_share < MIN_SUCCESS_SHARE else None
        return (whole or window).rps * success_share
    return Intervals.of(spans).last(facts.tail_ns).per_second(window)


@once
def reported_part(facts: Facts) -> Window:
    """The part of the load that a cell's throughput and breakdown describe."""
    return (whole_load(facts) if stalled(facts) else None) or facts.steady_part


def paused_share(facts: Facts) -> float:
    """The share of the reported part in which the machine was paused; 0 if not noticeable."""
    window = reported_part(facts)
    if noticeable_pauses(facts) is None:
        return 0.0
    return min(MAX_PAUSED_SHARE, sum(pause_lengths_s(facts, window)) / window.length_s)


class SlowerAsAWhole(Finding):
    """over the whole load, including its end, {whole_rps:number} requests/s succeeded;
    {steady_rps:number} in its steady part, while all connections were busy"""

    whole_rps: float | None
    steady_rps: float


def slower_as_a_whole(facts: Facts) -> Findings:
    """A note if the whole load's throughput is over 10 % below its steady part's."""
    whole = whole_load(facts)
    if whole is None or stalled(facts) or whole.rps >= SLOWER_RATIO * facts.rps:
        return ()
    return (SlowerAsAWhole(whole_rps(facts), reported_rps(facts)),)


# --- stalls -----------------------------------------------------------------------------------


@once
def stalled(facts: Facts) -> Stall | None:
    """The stall of a closed loop; None if it did not stall."""
    whole, steady = whole_load(facts), facts.steady_part
    if facts.open_model or whole is None:
        return None
    observed = handshakes(facts)
    evidence = observed.dropped or observed.drops_suspected  # kernel counters, or connect times
    max_ratio = SLOWER_RATIO if evidence else STALLED_RATIO
    whole_s, whole_rps = _unpaused_s_and_rps(facts, whole)
    steady_s, steady_rps = _unpaused_s_and_rps(facts, steady)
    if min(whole_s, steady_s) <= 0 or whole_rps >= max_ratio * steady_rps:
        return None
    stall, extra_s = idle_time(facts, whole), whole_s * (1 - whole_rps / steady_rps)
    return stall if stall.idle_s >= MIN_EXPLAINED_SHARE * extra_s else None


def _unpaused_s_and_rps(facts: Facts, window: Window) -> tuple[float, float]:
    """Seconds of the window in which the machine ran, and completions per such second."""
    ran_s = window.length_s - pauses_of(facts.observations).inside_s(window)
    return ran_s, window.completed / ran_s if ran_s > 0 else 0.0


def idle_time(facts: Facts, window: Window) -> Stall:
    """The time in which slots were idle because of the network."""
    slots = 1 if facts.slots is None or facts.cell.keepalive else facts.slots
    per_worker, workers = facts.slots_per_worker or 1, slot_keys(facts)
    idle_ns = still_ns = longest_ns = stretch_ns = 0
    for length_ns, numbers in states(_changes(facts, window.closes_ns), window):
        if numbers["pauses"]:
            continue
        in_flight, inside = numbers["in flight"], 0
        for taken, queued in workers:  # accepted requests count if all slots are taken
            inside += numbers[taken] + (numbers[queued] if numbers[taken] >= per_worker else 0)
        stretch_ns = stretch_ns + length_ns if in_flight and not inside else 0
        still_ns += length_ns if stretch_ns else 0
        longest_ns = max(longest_ns, stretch_ns)
        idle_ns += length_ns if inside < min(slots, in_flight) else 0
    return Stall(idle_ns / NS, still_ns / NS, longest_ns / NS or None, window.length_s)


def _changes(facts: Facts, closes_ns: int) -> Iterator[Change[str | SlotKey]]:
    yield from requests_in_flight(facts).changes("in flight")
    yield from pauses_of(facts.observations).changes("pauses")
    yield from slot_changes(facts, closes_ns=closes_ns, held_after_ns=SLOT_GAP_NS)


def requests_in_flight(facts: Facts) -> Intervals:
    """The intervals from each request to its response, as timed by the client; otherwise as in a
    closed loop, where each response starts the next request on its connection."""
    timed = [(sent, end) for _, sent, end in facts.timed_requests() if end is not None]
    spans = facts.under_load
    if timed or not spans:
        return Intervals(timed)
    last_ns = _load_end_ns(facts)
    ends_ns = sorted(span.end_ns or last_ns for span in spans)
    ends_ns += [last_ns] * (facts.measurement.requests - len(facts.spans))  # seen by no worker
    starts_ns = [spans[0].start_ns] * facts.connections + ends_ns
    return Intervals(list(zip(starts_ns, ends_ns, strict=False)))
