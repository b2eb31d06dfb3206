"""Cells that are held up by their slots: too few, idle, or behind a full accept queue.

More slots are advised only where all were taken (an occupancy of 0.95, `occupancy`). Where a place
is named in which requests wait, it was measured: connections that only the client has are part of
the accept queue where the kernel counted overflows and both ends were looked at, nowhere else.
"""

from workerlab.analysis.breakdown import waited
from workerlab.analysis.facts import Facts
from workerlab.analysis.handshakes import counted, drops, growth, handshakes, steps
from workerlab.analysis.knee import REACHED
from workerlab.analysis.occupancy import FULL, occupancy
from workerlab.analysis.stall import stalled, whole_rps
from workerlab.analysis.uneven import uneven_dealing
from workerlab.model import CellResult, Finding

PLACE = 0.1  # of the waiting that a place must explain to be named
STAYS_S = 0.005  # below, connecting is as fast as ever
LONGER = 1.5  # times


def waits(facts: Facts, cell: CellResult) -> bool:
    """Requests take longer than a lone one does, and there is someone to wait for."""
    n = facts.connections
    return n > 1 and facts.rps * (cell.lone_s or 0.0) / n < REACHED


def service_s(cell: CellResult) -> float:
    return cell.breakdown.service_s or cell.service.mean or 0.0


def full(facts: Facts) -> bool:
    """All slots were taken, once the load was steady."""
    return (occupancy(facts) or 0.0) >= FULL


def stall(facts: Facts, cell: CellResult) -> Finding | None:
    """Slots stood idle while clients waited: how long, and what shows why."""
    if (found := stalled(facts)) is None:
        return None
    seen, room = handshakes(facts), facts.cell.server.backlog >= facts.connections
    longer_backlog = Finding("advice.longer_backlog", {"connections": facts.connections})
    return Finding(
        "diagnosis.stall",
        {
            "idle_s": found.idle_s,
            "still_s": found.still_s or None,
            "longest_s": found.longest_s or None,
            "load_s": found.load_s,
            "whole_rps": whole_rps(facts),
            "steady_rps": facts.throughput_rps,
            "response_s": facts.measurement.response.max,
            "counters": growth(seen.counters) if seen.dropped else None,
            "overtaken": _overtaken(facts, cell) if seen.dropped else None,
            "half_open": (seen.half_open or None) if seen.dropped else None,
            "steps": steps(seen),
            "never_accepted": seen.never_accepted or None,
            "advice": () if room else (longer_backlog,),
        },
    )


def full_queue(facts: Facts, cell: CellResult) -> Finding | None:
    """Handshakes dropped: measured, or likely where the kernel was not asked."""
    found = handshakes(facts)
    if not found.dropped and not (found.suspected and waits(facts, cell)):
        return None
    steadily = full(facts) and not stalled(facts)  # else they idled for want of a longer queue
    advice = (_for_queue(facts, full=steadily), *([_more_slots(facts)] if full(facts) else []))
    known = {"sharing": _sharing(facts), "waiting": _waiting(facts, cell), "advice": advice}
    if not found.dropped:
        return Finding("diagnosis.full_queue_likely", {**known, "drops": drops(found)})
    return Finding(
        "diagnosis.full_queue",
        {
            **known,
            "longest": cell.accept_queue_max if found.full else None,
            "limit": cell.accept_queue_limit if found.full else None,
            **counted(found.counters),
            "half_open": found.half_open or None,
            "steps": steps(found),
            "never_accepted": found.never_accepted or None,
            "response_s": facts.measurement.response.max,
            "overtaken": _overtaken(facts, cell),
        },
    )


def _overtaken(facts: Facts, cell: CellResult) -> Finding | None:
    """Where the median is so much below the mean that it would make a short queue look faster than
    a long one, in which nobody overtakes."""
    p50_s, mean_s = facts.measurement.response.p50, cell.breakdown.response_s
    if p50_s is None or mean_s is None or p50_s > REACHED * mean_s:
        return None
    return Finding("diagnosis.overtaken", {"p50_s": p50_s, "mean_s": mean_s})


def _for_queue(facts: Facts, *, full: bool) -> Finding:
    """A longer queue helps against a burst, not against too few slots."""
    if full or facts.slots is None:
        return Finding("advice.backlog_hides")
    return Finding("advice.longer_backlog", {"connections": facts.connections})


def uneven(facts: Facts, cell: CellResult) -> Finding | None:
    """Slots idle while requests wait in other workers: what the kernel's dealing costs."""
    if (found := uneven_dealing(facts)) is None:
        return None
    kept = cell.connections_per_worker
    dealt = kept or cell.requests_per_worker
    order = sorted(found.taken, key=lambda pid: (dealt.get(pid, 0), found.taken[pid]), reverse=True)
    counts = tuple(dealt.get(pid, 0) for pid in order)
    waited_s = cell.breakdown.in_worker_s or 0.0  # of kept connections not always known
    return Finding(
        "diagnosis.uneven",
        {
            "connections": facts.connections,
            "rps": facts.throughput_rps,
            "idle": found.idle,
            "times": None if found.idle else found.times,
            "slots": found.slots,
            "taken": tuple(found.taken[pid] for pid in order),
            "wait_s": waited_s if waited_s >= STAYS_S else None,
            "connections_per_worker": counts if kept is not None else None,
            "requests_per_worker": counts if kept is None else None,
            "predicted_rps": cell.split_prediction_rps if kept is not None else None,
            "advice": _deal_evenly(facts),
        },
    )


def _deal_evenly(facts: Facts) -> tuple[Finding, ...]:
    server = facts.cell.server
    if facts.data.worker_class.asgi:
        return ()  # no class that deals otherwise runs an ASGI app
    if facts.data.worker_class.slots != "threads":
        return (Finding("advice.class_that_deals_evenly"),)
    if server.worker_connections <= server.threads:
        return ()
    as_threads = Finding("advice.worker_connections_as_threads", {"threads": server.threads})
    return (as_threads, Finding("advice.ends_keepalive")) if facts.cell.keepalive else (as_threads,)


def waiting(facts: Facts, cell: CellResult) -> Finding | None:
    """More requests than slots, all of which are taken, by the place where the rest waits. The time
    to connect is named where it shows that the client does not see the accept queue."""
    response_s = _response_s(facts, cell)
    if not full(facts) or facts.slots is None or facts.connections <= facts.slots:
        return None
    if _waited_s(facts, cell) < (1 - REACHED) * response_s:
        return None
    connect_s = cell.breakdown.connect_s
    if not cell.breakdown.accept_queue_s or (connect_s or 0.0) >= STAYS_S:
        connect_s = None
    found = {"sharing": _sharing(facts), "waiting": _waiting(facts, cell), "connect_s": connect_s}
    known = {**found, "occupancy": cell.occupancy}
    advice = () if _held_for_longer(facts, cell) else (_more_slots(facts),)
    return Finding("diagnosis.waiting", {**known, "advice": advice})


def _held_for_longer(facts: Facts, cell: CellResult) -> bool:
    """Whether slots are held for much longer than by a lone request, whether for want of a core or
    for what nobody measured: more slots may then bring nothing."""
    return bool(cell.lone_s) and service_s(cell) >= LONGER * (cell.lone_s or 0.0)


def _more_slots(facts: Facts) -> Finding:
    return Finding(facts.data.worker_class.advice)


def _response_s(facts: Facts, cell: CellResult) -> float:
    """As the breakdown has it; else by the response time law, N/X."""
    return cell.breakdown.response_s or facts.connections / facts.rps


def _waited_s(facts: Facts, cell: CellResult) -> float:
    return max(0.0, _response_s(facts, cell) - service_s(cell))


def _sharing(facts: Facts) -> Finding:
    """Who shares how many slots, and how few of them were used, where that is fewer."""
    n, used = facts.connections, facts.open_at_once
    if facts.slots is None:
        limit = {"used": used, "limit": facts.no_limit}
        return Finding("diagnosis.sharing_no_limit", {"connections": n, **limit})
    if n <= facts.slots:
        return Finding("diagnosis.slots_enough", {"connections": n, "slots": facts.slots})
    few = used < REACHED * facts.parallel
    return Finding(
        "diagnosis.sharing",
        {"connections": n, "slots": facts.slots, "used": used if few else None},
    )


def _waiting(facts: Facts, cell: CellResult) -> Finding:
    """How many wait and in which places, the longest wait first, none that hardly counts."""
    parts, waited_s, seen = cell.breakdown, _waited_s(facts, cell), handshakes(facts)
    both = seen.half_open and seen.dropped
    places = {
        "connect": parts.connect_s,
        "accept_queue_or_client" if both else "accept_queue": parts.accept_queue_s,
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
    others = facts.connections - (facts.slots or facts.connections)
    return Finding(
        "diagnosis.others_wait" if others > 0 else "diagnosis.requests_wait",
        {"others": others, "places": named or (Finding("waits.unknown", {"wait_s": waited_s}),)},
    )


def without_cause(facts: Facts, cell: CellResult, *, waits: bool) -> Finding:
    """Where nothing holds it up, or nothing that was measured shows what does. `waits`: requests
    take longer than a lone one, beyond what chance explains."""
    n = facts.connections
    if waits:
        return Finding("diagnosis.unexplained", {**_longer(facts, cell), "advice": ()})
    taken = cell.verdict == "at capacity" and facts.slots is not None and n >= REACHED * facts.slots
    what = "all_slots_busy" if taken else "nothing_waits"
    used = {"used": facts.open_at_once, "slots": facts.slots, "limit": facts.no_limit}
    used |= {"waited": waited(facts)}
    busy = {"busy": cell.occupancy} if taken and not full(facts) else {}
    return Finding(f"diagnosis.{what}", {"connections": n, **used, **busy, "advice": ()})


def _longer(facts: Facts, cell: CellResult) -> dict[str, object]:
    """A response and a lone one, and where the difference is: inside the app, or before and after
    it; not told where that is hardly any of it."""
    lone_s, response_s, inside_s = cell.lone_s or 0.0, _response_s(facts, cell), service_s(cell)
    least_s = PLACE * (response_s - lone_s)
    return {
        "connections": facts.connections,
        "response_s": response_s,
        "lone_s": cell.lone_s,
        "service_s": inside_s if inside_s - lone_s >= least_s else None,
        "waiting": _waiting(facts, cell) if _waited_s(facts, cell) >= least_s else None,
    }
