"""Slots that idle in one worker while requests wait in another: what the dealing costs.

Some classes accept more than they serve, and chance, or a kept connection, decides whose queue a
request stands in. Asked is what was seen, not what follows from R0: how many slots on average stood
idle in workers that had nothing to begin, while requests waited in workers whose slots were taken.
It is uneven where that is a twentieth of the slots in use or more, at whatever throughput. Or no
slot idles, and yet twice as many kept connections share the slots of one worker as of another and
have to wait: of eight on two loops that are blocked, seven take turns and one is served at once.

    each request on its own connection   moment by moment: accepted and not begun, per worker
    kept connections                     on average: connections of a worker beyond its slots, and
                                         slots idle beside those of the busiest worker

A slot counts as taken until what a lone request takes beside its span has passed: accepting and
parsing are no idleness. Kept connections are compared by averages since they stay where they are,
and since it is not known which of them has a request at a moment; in a closed loop each has one. A
loop that serves one request at a time has one slot. A sync worker accepts nothing before it has
answered, and where requests wait in the kernel's queue (gevent, too) nothing is found.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.keepalive import kept_connections
from workerlab.analysis.occupancy import overhead_s, slot_changes
from workerlab.analysis.samples import NS
from workerlab.analysis.window import Window

UNEVEN = 0.05  # of the slots that could be in use
WAIT, TIMES = 2, 2.0  # connections beyond the slots of the fullest worker; times the emptiest's
TAKEN = 0.9  # of the busiest worker's slots: below, a worker had room


class Dealing(Struct, frozen=True):
    """Over the steady window, `taken` by worker pid: the part of its slots that was in use.
    `idle`: slots that idled while requests waited in other workers, on average; `times`: as many
    kept connections in the fullest worker as in the emptiest. None where that is even, or
    slots idle."""

    taken: Mapping[int, float]
    slots: int  # that could be in use: of all workers, or as many as there are connections
    idle: float | None = None
    times: float | None = None


@once
def uneven_dealing(facts: Facts) -> Dealing | None:
    """None where it is even, or where it was not seen."""
    window, each = facts.window, _slots_each(facts)
    pids = facts.record.worker_pids
    row = facts.data.worker_class
    if (
        window is None
        or each is None
        or len(pids) < 2
        or (row.slots == "one" and not row.accepts_first)
    ):
        return None
    kept = kept_connections(facts)
    if facts.cell.keepalive and kept is None:
        return None
    held = _held(facts, window)
    slots = min(facts.connections, each * len(pids))
    if facts.cell.keepalive and kept is not None:
        idle, times = _on_average(kept, held, each), _times(kept, each)
    else:
        idle, times = _at_once(facts, window, each), None
    if idle < UNEVEN * slots and times is None:
        return None
    taken = {pid: min(1.0, held.get(pid, 0.0) / each) for pid in pids}
    if idle >= UNEVEN * slots:
        return Dealing(taken, slots, idle=idle)
    return Dealing(taken, slots, times=times)


def _slots_each(facts: Facts) -> int | None:
    """Requests that one worker serves at once: by the settings, or one where its loop was never
    seen to serve two."""
    each = facts.data.worker_class.slots_per_worker(facts.cell.server)
    if each is not None and not facts.data.worker_class.loop:
        return each
    return each if facts.two_at_once else 1


def _held(facts: Facts, window: Window) -> Mapping[int, float]:
    """Mean number of requests in the app of each worker, and what each takes beside it."""
    beside_ns, closes_ns = round(overhead_s(facts) * NS), window.closes_ns
    return {
        pid: window.inside_s(
            (span.start_ns, (span.end_ns or closes_ns) + beside_ns) for span in spans
        )
        / window.length_s
        for pid, spans in facts.spans_by_worker.items()
    }


def _on_average(kept: Mapping[int, int], held: Mapping[int, float], each: int) -> float:
    busiest = max((min(each, held.get(pid, 0.0)) for pid in kept), default=0.0)
    idle = sum(max(0.0, busiest - held.get(pid, 0.0)) for pid in kept)
    full = [pid for pid in kept if held.get(pid, 0.0) >= TAKEN * busiest]
    waiting = sum(max(0.0, kept[pid] - max(each, held.get(pid, 0.0))) for pid in full)
    return min(idle, waiting)


def _times(kept: Mapping[int, int], each: int) -> float | None:
    """How many times as many connections share the slots of the fullest worker; None where that is
    less than twice, or hardly any of them waits."""
    most, least = max(kept.values()), min(kept.values())
    apart = most >= each + WAIT and most >= TIMES * max(1, least)
    return most / max(1, least) if apart else None


def _at_once(facts: Facts, window: Window, each: int) -> float:
    """Idle slots and requests waiting elsewhere, the fewer of both, at every moment."""
    taken, queued = Counter(dict.fromkeys(facts.record.worker_pids, 0)), Counter[int]()
    lost, since = 0, window.opens_ns
    changes = slot_changes(
        facts, closes_ns=window.closes_ns, beside_ns=round(overhead_s(facts) * NS)
    )
    for at, together in groupby(sorted(changes), itemgetter(0)):
        if (until := min(at, window.closes_ns)) > since:
            waiting = sum(queued[pid] for pid, count in taken.items() if count >= each)
            if waiting:
                lost += (until - since) * min(waiting, _room(taken, queued, each))
            since = until
        for _, pid, began, accepted in together:
            taken[pid] += began
            queued[pid] += accepted
    return lost / (window.closes_ns - window.opens_ns)


def _room(taken: Mapping[int, int], queued: Mapping[int, int], each: int) -> int:
    """Slots for which their worker has no request."""
    return sum(max(0, each - count - queued[pid]) for pid, count in taken.items())
