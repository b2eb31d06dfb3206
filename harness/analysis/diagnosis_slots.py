"""Cells that are held up by their slots: too few, idle, or behind a full accept queue."""

from __future__ import annotations

from harness.analysis.case import Case, sharing
from harness.analysis.handshakes import NAMESPACE, at_which_steps, what_was_counted
from harness.analysis.knee import BUSY
from harness.numbers.words import number, plural, seconds

PLACE = 0.1  # of the waiting that a place must explain to be named
STAYS_S = 0.005  # below, connecting is as fast as ever


def full_queue(case: Case) -> str | None:
    """Handshakes dropped: measured, or likely where the kernel was not asked."""
    shook, cell = case.handshakes, case.cell
    if not shook.dropped and not (shook.suspected and case.waits):
        return None
    shares = f"{sharing(case)}; {_others(case)} {_where(case)}"
    if not shook.dropped:
        late = seconds(shook.longest_s or 0.0)
        cause = "likely because the accept queue was full and the kernel dropped handshakes"
        return f"{shares}; connecting took up to {late}, {cause}. {_hides(case)}"
    seen = f" (up to {cell.accept_queue_max}, its limit is {cell.accept_queue_limit})"
    queue = f"the accept queue was full{seen if shook.full else ''} and the kernel dropped"
    parts = [f"{shares}; {queue} handshakes: {what_was_counted(shook)} ({NAMESPACE})"]
    if shook.half_open:
        parts.append(
            f"up to {plural(shook.half_open, 'connection')} existed for the client alone, as the"
            " last packet of the handshake was dropped"
        )
    if steps := at_which_steps(shook):
        parts.append(steps)
    if shook.never_accepted:
        parts.append(f"{plural(shook.never_accepted, 'request')} never reached a worker")
    return f"{'; '.join(parts)}. {_hides(case)}"


def _hides(case: Case) -> str:
    return f"A longer --backlog only hides it, in a longer queue. {case.more_slots}"


def uneven(case: Case) -> str | None:
    """Slots idle while requests wait in other workers: what the kernel's dealing costs."""
    cell = case.cell
    dealt = cell.connections_per_worker or cell.requests_per_worker
    if not case.waits or not case.worker_class.accepts_first or len(set(dealt.values())) < 2:
        return None
    if cell.slots_configured is None or not _split_costs(case):
        return None
    kept = cell.connections_per_worker is not None
    what = "connections" if kept else "requests"
    counts = ", ".join(str(count) for count in sorted(dealt.values(), reverse=True))
    predicted = cell.split_prediction_rps
    proof = f"; that split allows {number(predicted)}" if predicted is not None else ""
    return (
        f"{plural(case.connections, 'connection')} got {number(case.rps)} of"
        f" {number(case.possible_rps)} requests/s: they are dealt unevenly, and slots idle in one"
        f" worker while requests wait {seconds(case.waited_s)} in another ({what} per worker:"
        f" {counts}{proof}). {_deal_evenly(case)}"
    )


def _split_costs(case: Case) -> bool:
    """More than 5 %, by the measurement or by what the connections per worker allow."""
    predicted, bound = case.cell.split_prediction_rps, case.cell.bound_rps
    if predicted is not None and bound is not None and predicted < BUSY * bound:
        return True
    return case.rps < BUSY * case.possible_rps


def _deal_evenly(case: Case) -> str:
    server = case.server
    if case.worker_class.slots != "threads":
        return "A class that accepts only what it can serve (sync, gevent) shares them evenly."
    if server.worker_connections <= server.threads:
        return case.more_slots
    closes = (
        " It also ends keep-alive: no connection stays." if case.cell.trial.cell.keepalive else ""
    )
    return (
        f"--worker-connections {server.threads}, as many as threads, leaves what a worker cannot"
        f" serve in the accept queue for the next that can.{closes}"
    )


def waiting(case: Case) -> str | None:
    """More requests than slots, by the place where the rest waits."""
    if not case.waits or case.waited_s < (1 - BUSY) * case.response_s:
        return None
    return f"{sharing(case)}; {_others(case)} {_where(case)}{_connects(case)}. {case.more_slots}"


def _others(case: Case) -> str:
    others = case.connections - case.slots
    return f"the other {others} wait" if others > 0 else "requests wait"


def _where(case: Case) -> str:
    """'1.0 s in the accept queue', the longest wait first, none that hardly counts."""
    parts = case.cell.breakdown
    alone = " or as connections of the client alone" if case.handshakes.half_open else ""
    queued = f"in the accept queue{alone}"
    places = {
        "to connect": parts.connect_s,
        queued: parts.accept_queue_s,
        "inside the workers, accepted and not begun": parts.in_worker_s,
        "after the app, until the answer is through": parts.transfer_s,
        "where no witness saw": parts.unattributed_s,
    }
    known = sorted(((time_s or 0.0, place) for place, time_s in places.items()), reverse=True)
    said = [f"{seconds(s)} {place}" for s, place in known if s >= PLACE * case.waited_s]
    return " and ".join(said) or f"{seconds(case.waited_s)}, nobody knows where"


def _connects(case: Case) -> str:
    """That the client does not see the accept queue as a slow connect."""
    connect_s = case.cell.breakdown.connect_s
    if connect_s is None or connect_s >= STAYS_S or not case.cell.breakdown.accept_queue_s:
        return ""
    return f", connect stays {1e3 * connect_s:.0f} ms"


def nothing_waits(case: Case) -> str | None:
    n, slots = case.connections, case.cell.slots_configured
    use = f"{plural(n, 'connection')} use{'s' * (n == 1)}"
    if case.cell.verdict == "at capacity":
        return f"{use} {case.cell.slots_measured} slots and nothing waits; more connections will."
    if slots is None and not case.worker_class.slots_known:
        return f"{use} {plural(case.cell.slots_measured or 0, 'slot')} and nothing waits."
    of = "an unlimited number of" if slots is None else str(slots)
    return f"{use} {case.cell.slots_measured} of {of} slots and nothing waits."
