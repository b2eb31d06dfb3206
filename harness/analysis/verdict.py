"""The verdict of a cell that is believed, and the sentence a colleague would say.

u = X*R0/N is the part of their time that N connections spend being served rather than waiting
(1 where nothing waits). Below 0.95 the cell is saturated, unless more connections were seen to
bring more (gthread deals 4 connections unevenly to 4 workers, and 8 still gain) or there is only
one, which has nobody to wait for. Where the kernel dropped handshakes it is saturated whatever more
connections brought: the accept queue was full. Otherwise it is at capacity where the connections
reach the knee or the slots, else below it.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.knee import BUSY, FLAT
from harness.model import Verdict
from harness.numbers.words import number, plural, seconds


@dataclass(frozen=True)
class Seen:
    """What the verdict looks at. Rates in requests/s whatever the status, times in seconds."""

    connections: int
    rps: float
    lone_s: float
    service_s: float
    slots: int | None
    slots_known: bool
    open_at_once: int
    per_worker: tuple[int, ...]  # requests
    deals: bool  # the workers accept more than they serve: the kernel's dealing decides
    knee: float | None
    above_rps: float  # the most that more connections were seen to bring
    dropped: bool = False  # handshakes, by a full accept queue
    late: str = ""  # what to add where connections came up late


def verdict(seen: Seen) -> tuple[Verdict, str]:
    """One of below capacity, at capacity, saturated; and why, with numbers."""
    n = seen.connections
    if seen.rps * seen.lone_s / n < BUSY:
        gains = not seen.dropped and (n == 1 or seen.above_rps > FLAT * seen.rps)
        return "below capacity" if gains else "saturated", _waits(seen) + seen.late
    full = seen.slots is not None and n >= BUSY * seen.slots
    if full:
        who = f"{plural(n, 'connection')} keep{'s' * (n == 1)} all {seen.slots} slots busy"
        return "at capacity", f"{who}, and no request waits"
    if seen.knee is not None and n >= BUSY * seen.knee:
        stop = f"more than {number(seen.rps)} requests/s will hardly come out"
        return "at capacity", f"{plural(n, 'connection')} reach{'es' * (n == 1)} the knee: {stop}"
    use = f"{plural(n, 'connection')} use{'s' * (n == 1)} {seen.open_at_once} of"
    if not seen.slots_known:
        return "below capacity", f"{use.removesuffix(' of')} slots, and no request waits"
    slots = "an unlimited number of slots" if seen.slots is None else f"{seen.slots} slots"
    return "below capacity", f"{use} {slots}, and no request waits"


def _waits(seen: Seen) -> str:
    """Who shares what, and how long it takes once the load is steady: R = N/X (Little 1961)."""
    n = seen.connections
    response_s = n / seen.rps
    wait_s = max(0.0, response_s - seen.service_s)
    each = f"once steady, each request waits {seconds(wait_s)} of {seconds(response_s)}"
    sharing = plural(n, "connection")
    limit = seen.open_at_once if seen.slots is None else seen.slots
    possible = min(n, limit) / seen.lone_s
    if wait_s < (1 - BUSY) * response_s:
        slower = f"{seconds(seen.service_s)} inside the app, a lone one {seconds(seen.lone_s)}"
        return f"with {sharing} a request spends {slower}: they slow each other down"
    if seen.rps < BUSY * possible:
        return f"{_idle(seen, possible)}: {each}"
    if seen.slots is None:
        settings = "unlimited by the settings" if seen.slots_known else "how many is not known"
        return f"{sharing} share {plural(limit, 'slot')} ({settings}): {each}"
    return f"{sharing} share {plural(limit, 'slot')}: {each}"


def _idle(seen: Seen, possible: float) -> str:
    """Slots stood idle while requests waited: by the dealing, or because few were ever used."""
    got = f"{plural(seen.connections, 'connection')} got {number(seen.rps)}"
    got = f"{got} of {number(possible)} requests/s"
    if seen.deals and len(set(seen.per_worker)) > 1:
        dealt = ", ".join(map(str, sorted(seen.per_worker, reverse=True)))
        return f"{got}, as they are dealt unevenly to the workers (requests per worker: {dealt})"
    if seen.slots is not None and seen.open_at_once < BUSY * min(seen.connections, seen.slots):
        return f"{got}: at most {seen.open_at_once} of {seen.slots} slots were in use at once"
    return f"{got}, although {seen.open_at_once} slots were in use"
