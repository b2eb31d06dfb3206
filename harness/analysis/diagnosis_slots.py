"""Cells that are held up by their slots: too few, idle, or behind a full accept queue."""

from __future__ import annotations

from harness.analysis.facts import Facts
from harness.analysis.handshakes import drops, growth, handshakes, steps
from harness.analysis.knee import BUSY
from harness.analysis.r0 import parallel
from harness.analysis.verdict import no_limit
from harness.model import CellResult, Finding

PLACE = 0.1  # of the waiting that a place must explain to be named
STAYS_S = 0.005  # below, connecting is as fast as ever


def waits(facts: Facts, cell: CellResult) -> bool:
    """Requests take longer than a lone one does, and there is someone to wait for."""
    n = facts.connections
    return n > 1 and facts.rps * (cell.lone_s or 0.0) / n < BUSY


def slots(facts: Facts) -> int:
    """Those worth naming: of the settings, or what was used where these tell no limit."""
    return facts.open_at_once if facts.slots is None else facts.slots


def possible_rps(facts: Facts, cell: CellResult) -> float:
    return parallel(facts.connections, slots(facts)) / (cell.lone_s or 1.0)


def service_s(cell: CellResult) -> float:
    return cell.breakdown.service_s or cell.service.mean or 0.0


def _response_s(facts: Facts) -> float:
    return facts.connections / facts.rps


def _waited_s(facts: Facts, cell: CellResult) -> float:
    return max(0.0, _response_s(facts) - service_s(cell))


def _more_slots(facts: Facts) -> Finding:
    return Finding(facts.data.worker_class.advice)


def full_queue(facts: Facts, cell: CellResult) -> Finding | None:
    """Handshakes dropped: measured, or likely where the kernel was not asked."""
    found = handshakes(facts)
    if not found.dropped and not (found.suspected and waits(facts, cell)):
        return None
    advice = (Finding("advice.backlog_hides"), _more_slots(facts))
    known = {"sharing": _sharing(facts), "waiting": _waiting(facts, cell), "advice": advice}
    if not found.dropped:
        return Finding("diagnosis.full_queue_likely", {**known, "drops": drops(found)})
    return Finding(
        "diagnosis.full_queue",
        {
            **known,
            "longest": cell.accept_queue_max if found.full else None,
            "limit": cell.accept_queue_limit if found.full else None,
            "counters": growth(found.counters),
            "half_open": found.half_open or None,
            "steps": steps(found),
            "never_accepted": found.never_accepted or None,
        },
    )


def uneven(facts: Facts, cell: CellResult) -> Finding | None:
    """Slots idle while requests wait in other workers: what the kernel's dealing costs."""
    kept = cell.connections_per_worker
    dealt = sorted((kept or cell.requests_per_worker).values(), reverse=True)
    if not waits(facts, cell) or not facts.data.worker_class.accepts_first or len(set(dealt)) < 2:
        return None
    if facts.slots is None or not _dealing_costs(facts, cell):
        return None
    return Finding(
        "diagnosis.uneven",
        {
            "connections": facts.connections,
            "rps": facts.rps,
            "possible_rps": possible_rps(facts, cell),
            "wait_s": _waited_s(facts, cell),
            "connections_per_worker": tuple(dealt) if kept is not None else None,
            "requests_per_worker": tuple(dealt) if kept is None else None,
            "predicted_rps": cell.split_prediction_rps,
            "advice": _deal_evenly(facts),
        },
    )


def _dealing_costs(facts: Facts, cell: CellResult) -> bool:
    """More than 5 %, by the measurement or by what the connections per worker allow."""
    predicted, bound = cell.split_prediction_rps, cell.bound_rps
    if predicted is not None and bound is not None and predicted < BUSY * bound:
        return True
    return facts.rps < BUSY * possible_rps(facts, cell)


def _deal_evenly(facts: Facts) -> tuple[Finding, ...]:
    server = facts.cell.server
    if facts.data.worker_class.slots != "threads":
        return (Finding("advice.class_that_deals_evenly"),)
    if server.worker_connections <= server.threads:
        return (_more_slots(facts),)
    as_threads = Finding("advice.worker_connections_as_threads", {"threads": server.threads})
    return (as_threads, Finding("advice.ends_keepalive")) if facts.cell.keepalive else (as_threads,)


def waiting(facts: Facts, cell: CellResult) -> Finding | None:
    """More requests than slots, by the place where the rest waits."""
    if not waits(facts, cell) or _waited_s(facts, cell) < (1 - BUSY) * _response_s(facts):
        return None
    return Finding(
        "diagnosis.waiting",
        {
            "sharing": _sharing(facts),
            "waiting": _waiting(facts, cell),
            "connect_s": _connect_s(cell),
            "advice": (_more_slots(facts),),
        },
    )


def _sharing(facts: Facts) -> Finding:
    """Who shares how many slots, and how few of them were used, where that is fewer."""
    n, used = facts.connections, facts.open_at_once
    if facts.slots is None:
        limit = {"used": used, "limit": no_limit(facts)}
        return Finding("diagnosis.sharing_no_limit", {"connections": n, **limit})
    few = used < BUSY * parallel(n, facts.slots)
    shared = {"slots": facts.slots, "used": used if few else None}
    return Finding("diagnosis.sharing", {"connections": n, **shared})


def _waiting(facts: Facts, cell: CellResult) -> Finding:
    """How many wait and in which places, the longest wait first, none that hardly counts."""
    parts, waited_s = cell.breakdown, _waited_s(facts, cell)
    half_open = handshakes(facts).half_open
    places = {
        "connect": parts.connect_s,
        "accept_queue_or_client" if half_open else "accept_queue": parts.accept_queue_s,
        "in_worker": parts.in_worker_s,
        "transfer": parts.transfer_s,
        "unattributed": parts.unattributed_s,
    }
    known = sorted(((time_s or 0.0, place) for place, time_s in places.items()), reverse=True)
    named = tuple(
        Finding(f"waits.{place}", {"wait_s": time_s})
        for time_s, place in known
        if time_s >= PLACE * waited_s
    )
    others = facts.connections - slots(facts)
    return Finding(
        "diagnosis.others_wait" if others > 0 else "diagnosis.requests_wait",
        {"others": others, "places": named or (Finding("waits.unknown", {"wait_s": waited_s}),)},
    )


def _connect_s(cell: CellResult) -> float | None:
    """Where the client does not see the accept queue as a slow connect."""
    connect_s = cell.breakdown.connect_s
    if connect_s is None or connect_s >= STAYS_S or not cell.breakdown.accept_queue_s:
        return None
    return connect_s


def nothing_waits(facts: Facts, cell: CellResult) -> Finding:
    full = cell.verdict == "at capacity"
    return Finding(
        "diagnosis.all_slots_busy" if full else "diagnosis.nothing_waits",
        {
            "connections": facts.connections,
            "used": facts.open_at_once,
            "slots": facts.slots,
            "limit": no_limit(facts),
            "advice": (),
        },
    )
