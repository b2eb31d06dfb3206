"""The knee: how many requests the server takes before more of them only wait.

In a closed loop with N connections X(N) <= min(N/R0, C/R0) (Denning & Buzen 1978, the asymptotic
bounds); the two meet at N* = Xmax * R0. That is a number only where throughput has been seen to
stop growing. Where nothing waits yet at the highest level, or the last doubling still gains, the
answer is a lower limit with its reason. Kneedle and the Universal Scalability Law were rejected: on
a sharp knee they are off by up to half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.model import Finding

BUSY = 0.95  # X*R0/N from which on nothing waits
FLAT = 1.05  # gain up to which throughput has stopped growing


@dataclass(frozen=True)
class Knee:
    """`connections` None: not reached, or not shown; `note` says which.

    `levels`: throughput by concurrency, from which it was read.
    """

    connections: float | None
    note: Finding
    levels: Mapping[int, float] = field(default_factory=dict)

    def above(self, concurrency: int) -> float:
        """The highest throughput seen with more connections; 0 where there was none."""
        return max((x for n, x in self.levels.items() if n > concurrency), default=0.0)


def knee(levels: Mapping[int, float], lone_s: float | None, slots: int | None) -> Knee:
    """Where throughput stops growing.

    levels: throughput in requests/s by concurrency, one figure a level (the median of its
    trials). lone_s: R0, response of a lone request, seconds. slots: configured, None unlimited.
    """
    if not levels or not lone_s:
        return Knee(None, Finding("knee.no_cell"))
    highest = max(levels)
    if levels[highest] * lone_s / highest >= BUSY:
        return Knee(None, _not_reached(highest, slots), levels)
    most = max(levels.values()) * lone_s
    below = _half(levels, highest)
    if below is not None and levels[highest] <= FLAT * levels[below]:
        gain = max(0.0, levels[highest] / levels[below] - 1) if levels[below] else 0.0
        step = {"below": below, "highest": highest, "gain": gain}
        return Knee(most, Finding("knee.levels_off", step), levels)
    # Not seen to be flat. But slots that are all busy give no more (X <= C/R0), and where half
    # of the connections wait it is not the connections that are too few. A doubling that gains
    # is believed rather than the settings.
    doubled = below is not None and highest <= 2 * below
    if slots and not doubled and most >= BUSY * slots and highest >= 2 * most / FLAT:
        busy = Finding("knee.all_slots_busy", {"highest": highest, "slots": slots})
        return Knee(most, busy, levels)
    return Knee(None, _still_gains(levels, below, highest, most), levels)


def _still_gains(
    levels: Mapping[int, float], below: int | None, highest: int, least: float
) -> Finding:
    """Why the highest throughput seen need not be the limit, and what to do."""
    known = {"least": least, "add": 2 * highest}
    if below is None:
        return Finding("knee.one_level", known)
    gain = levels[highest] / levels[below] - 1 if levels[below] > 0 else None
    return Finding("knee.still_gains", {**known, "below": below, "highest": highest, "gain": gain})


def _half(levels: Mapping[int, float], highest: int) -> int | None:
    """The largest level of at most half the highest, else the lowest; None if it is the only."""
    halves = [level for level in levels if level <= highest / 2]
    rest = [level for level in levels if level < highest]
    return max(halves) if halves else min(rest, default=None)


def _not_reached(highest: int, slots: int | None) -> Finding:
    """Nothing waits at the highest level. The settings may still say that it ends there: then
    "more than" would be false, and the number would be the settings' and not a measured one."""
    if slots is None:
        return Finding("knee.no_limit", {"highest": highest})
    if highest == slots:
        return Finding("knee.no_wait_with_all_slots", {"highest": highest, "add": 2 * highest})
    if highest > slots:
        return Finding("knee.above_slots", {"highest": highest, "slots": slots})
    return Finding("knee.above", {"highest": highest})
