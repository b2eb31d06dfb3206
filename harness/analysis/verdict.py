"""The verdict of a valid cell of the closed loop, and its reason.

u = X*R0/N is the part of their time that N connections spend being served rather than waiting
(1 where nothing waits). Below 0.95 the cell is saturated, unless more connections were seen to
bring more (gthread deals 4 connections unevenly to 4 workers, and 8 still gain) or there is only
one, which has nobody to wait for. Where the kernel dropped handshakes it is saturated whatever more
connections brought: the accept queue was full. Otherwise it is at capacity where the connections
reach the knee or the slots, else below it.
"""

from __future__ import annotations

from harness.analysis.facts import Facts
from harness.analysis.handshakes import drops, handshakes
from harness.analysis.knee import FLAT, REACHED
from harness.analysis.series import Series
from harness.model import Finding, Verdict


def verdict(facts: Facts, lone_s: float, series: Series) -> tuple[Verdict, Finding]:
    """One of below capacity, at capacity, saturated; and why, with numbers."""
    n, slots, knee = facts.connections, facts.slots, series.knee.connections
    if facts.rps * lone_s / n < REACHED:
        more = [rps for level, rps in series.levels.items() if level > n]
        gains = n == 1 or any(rps > FLAT * facts.rps for rps in more)
        below_capacity = gains and not handshakes(facts).dropped
        return "below capacity" if below_capacity else "saturated", _waits(facts, lone_s)
    if slots is not None and n >= REACHED * slots:
        return "at capacity", _finding("all_slots_busy", connections=n, slots=slots)
    if knee is not None and n >= REACHED * knee:
        return "at capacity", _finding("at_knee", connections=n, rps=facts.rps)
    used = {"used": facts.open_at_once, "slots": slots, "limit": facts.no_limit}
    return "below capacity", _finding("slots_free", connections=n, **used)


def _finding(code: str, **values: object) -> Finding:
    return Finding(f"verdict.{code}", values)


def _waits(facts: Facts, lone_s: float) -> Finding:
    """Who shares what, and how long it takes once the load is steady: R = N/X (Little 1961)."""
    n, rps, slots = facts.connections, facts.rps, facts.slots
    response_s, service_s = n / rps, facts.service.mean or 0.0
    wait_s = max(0.0, response_s - service_s)
    possible_rps = facts.possible_rps(lone_s)
    common: dict[str, object] = {"connections": n, "drops": drops(handshakes(facts))}
    if wait_s < (1 - REACHED) * response_s:
        return _finding("slowed", **common, service_s=service_s, lone_s=lone_s)
    common |= {"wait_s": wait_s, "response_s": response_s}
    if rps >= REACHED * possible_rps:
        return _finding("slots_shared", **common, slots=facts.usable_slots, limit=facts.no_limit)
    common |= {"rps": rps, "possible_rps": possible_rps, "used": facts.open_at_once}
    per_worker = tuple(sorted(facts.per_worker.values(), reverse=True))
    if facts.data.worker_class.accepts_first and len(set(per_worker)) > 1:
        return _finding("uneven", **common, per_worker=per_worker)
    if slots is not None and facts.open_at_once < REACHED * facts.parallel:
        return _finding("slots_unused", **common, slots=slots)
    return _finding("slots_idle", **common)
