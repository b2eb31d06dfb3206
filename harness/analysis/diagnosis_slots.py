"""Cells that are held up by their slots: too few, idle, or behind a full accept queue."""

from harness.analysis.facts import Facts
from harness.analysis.handshakes import drops, growth, handshakes, steps
from harness.analysis.knee import REACHED
from harness.model import CellResult, Finding

PLACE = 0.1  # of the waiting that a place must explain to be named
STAYS_S = 0.005  # below, connecting is as fast as ever


def waits(facts: Facts, cell: CellResult) -> bool:
    """Requests take longer than a lone one does, and there is someone to wait for."""
    n = facts.connections
    return n > 1 and facts.rps * (cell.lone_s or 0.0) / n < REACHED


def possible_rps(facts: Facts, cell: CellResult) -> float:
    return facts.possible_rps(cell.lone_s or 1.0)


def service_s(cell: CellResult) -> float:
    return cell.breakdown.service_s or cell.service.mean or 0.0


def _waited_s(facts: Facts, cell: CellResult) -> float:
    return max(0.0, facts.connections / facts.rps - service_s(cell))


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
    """Slots idle while requests wait in other workers: what the kernel's dealing costs, more than
    5 % by the measurement or by what the connections per worker allow."""
    kept = cell.connections_per_worker
    dealt = tuple(sorted((kept or cell.requests_per_worker).values(), reverse=True))
    if not facts.data.worker_class.accepts_first or len(set(dealt)) < 2:
        return None
    predicted, bound, possible = (
        cell.split_prediction_rps,
        cell.bound_rps,
        facts.possible_rps(cell.lone_s or 1.0),
    )
    by_split = predicted is not None and bound is not None and predicted < REACHED * bound
    if facts.slots is None or not (by_split or facts.rps < REACHED * possible):
        return None
    return Finding(
        "diagnosis.uneven",
        {
            "connections": facts.connections,
            "rps": facts.rps,
            "possible_rps": possible,
            "wait_s": _waited_s(facts, cell),
            "connections_per_worker": dealt if kept is not None else None,
            "requests_per_worker": dealt if kept is None else None,
            "predicted_rps": predicted,
            "advice": _deal_evenly(facts),
        },
    )


def _deal_evenly(facts: Facts) -> tuple[Finding, ...]:
    server = facts.cell.server
    if facts.data.worker_class.slots != "threads":
        return (Finding("advice.class_that_deals_evenly"),)
    if server.worker_connections <= server.threads:
        return (_more_slots(facts),)
    as_threads = Finding("advice.worker_connections_as_threads", {"threads": server.threads})
    return (as_threads, Finding("advice.ends_keepalive")) if facts.cell.keepalive else (as_threads,)


def waiting(facts: Facts, cell: CellResult) -> Finding | None:
    """More requests than slots, by the place where the rest waits. The time to connect is named
    where it shows that the client does not see the accept queue."""
    if _waited_s(facts, cell) < (1 - REACHED) * (facts.connections / facts.rps):
        return None
    connect_s = cell.breakdown.connect_s
    if not cell.breakdown.accept_queue_s or (connect_s or 0.0) >= STAYS_S:
        connect_s = None
    found = {"sharing": _sharing(facts), "waiting": _waiting(facts, cell), "connect_s": connect_s}
    return Finding("diagnosis.waiting", {**found, "advice": (_more_slots(facts),)})


def _sharing(facts: Facts) -> Finding:
    """Who shares how many slots, and how few of them were used, where that is fewer."""
    n, used = facts.connections, facts.open_at_once
    if facts.slots is None:
        limit = {"used": used, "limit": facts.no_limit}
        return Finding("diagnosis.sharing_no_limit", {"connections": n, **limit})
    few = used < REACHED * facts.parallel
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
    others = facts.connections - facts.usable_slots
    return Finding(
        "diagnosis.others_wait" if others > 0 else "diagnosis.requests_wait",
        {"others": others, "places": named or (Finding("waits.unknown", {"wait_s": waited_s}),)},
    )


def nothing_waits(facts: Facts, cell: CellResult) -> Finding:
    what = "all_slots_busy" if cell.verdict == "at capacity" else "nothing_waits"
    used = {"used": facts.open_at_once, "slots": facts.slots, "limit": facts.no_limit}
    return Finding(f"diagnosis.{what}", {"connections": facts.connections, **used, "advice": ()})
