"""The cores that trials may use together, over time. Pure.

To start a server takes CPU, too. Where loads are under way, that is spread over the next seconds,
and where it does not fit the next server waits.
"""

from collections.abc import Collection, Sequence

LANES = 10  # at most: one process looks on at all of them, by threads that share an interpreter
START_S, SPREAD_S = 0.9, 6.0  # CPU of start and stop of a server; over so long that is spread
STARTS_S = 0.5  # until it is up, and it is the turn of the next one; only for the prediction


class Room:
    """What of the cores is taken by the trials that run now. Moments are seconds of any clock."""

    def __init__(self, most_cores: float, jobs: int | None) -> None:
        self._most_cores, self._jobs = most_cores, jobs
        self._loads: dict[str, float] = {}
        self._starts: list[tuple[float, float]] = []  # until when, cores

    def fits(self, cores: float, at_s: float, *, loaded: bool) -> bool:
        """`loaded`: some load is under way, which the start of another server would disturb."""
        if not self._loads:
            return True
        if len(self._loads) >= min(self._jobs or LANES, LANES):
            return False
        taken = sum(self._loads.values()) + cores
        if loaded:
            starts = sum(used for until_s, used in self._starts if until_s > at_s)
            taken += starts + START_S / SPREAD_S
        return taken <= self._most_cores

    def enter(self, key: str, cores: float, at_s: float, *, loaded: bool) -> None:
        self._loads[key] = cores
        if loaded:
            self._starts.append((at_s + SPREAD_S, START_S / SPREAD_S))

    def leave(self, key: str) -> None:
        del self._loads[key]

    def later(self, at_s: float) -> list[float]:
        """Moments from which on there is more room, whoever leaves."""
        return [until_s for until_s, _ in self._starts if until_s > at_s]


def span_s(
    room: Room, todo: Sequence[tuple[str, float, float]], running: Collection[str] = ()
) -> float:
    """How long these trials take in it, begun in their order as soon as each fits: key, seconds and
    cores of each. `running`: of those that have started already."""
    waiting, ends, now_s = list(todo), dict[str, float](), 0.0
    while waiting or ends:
        loaded, begun = bool(ends), list[tuple[str, float, float]]()
        for one in waiting:
            key, _, cores = one
            if room.fits(cores, now_s, loaded=loaded):
                room.enter(key, cores, now_s, loaded=loaded)
                begun.append(one)
        waiting = [one for one in waiting if one not in begun]
        starts = [key for key, _, _ in begun if key not in running]
        up_s = STARTS_S * max(0, len(starts) - 1)  # the last of them
        for key, seconds, _ in begun:
            ends[key] = now_s + seconds + (up_s if key in starts else 0.0)
        now_s = min((*ends.values(), *(room.later(now_s) if waiting else ())))
        for key in [key for key, end_s in ends.items() if end_s <= now_s]:
            room.leave(key)
            del ends[key]
    return now_s
