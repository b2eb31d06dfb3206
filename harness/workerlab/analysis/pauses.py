"""What it does to a load that the whole machine stands still meanwhile: nothing runs, and the
clocks go on. Requests that are due in a pause of P seconds are sent when it ends, P/2 late on
average; in a load of T seconds they are P/T of all.
"""

from collections.abc import Sequence

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS
from workerlab.analysis.window import Window
from workerlab.finding import Finding
from workerlab.model import Pause

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
