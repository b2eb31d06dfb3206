"""The CPU budget that parallel trials share, over time. Pure.

Starting a server takes CPU too. While loads are running, its cost is spread over the next seconds,
and the next server waits if it does not fit.
"""

from collections.abc import Collection, Sequence

MAX_JOBS = 10  # one process observes all of them, in threads that share an interpreter
START_S, SPREAD_S = 0.9, 6.0  # CPU of starting and stopping a server; the time it is spread over
STARTS_S = 0.5  # until a server is up and the next may start; only for the prediction


class CpuBudget:
    """The cores taken by the trials that run now. Times are seconds of any one clock."""

    def __init__(self, most_cores: float, jobs: int | None) -> None:
        self._most_cores, self._jobs = most_cores, jobs
        self._loads: dict[str, float] = {}
        self._starts: list[tuple[float, float]] = []  # (until, cores)

    def fits(self, cores: float, at_s: float, *, loaded: bool) -> bool:
        """`loaded`: some load is running, which the start of another server would disturb."""
        if not self._loads:
            return True
        if len(self._loads) >= min(self._jobs or MAX_JOBS, MAX_JOBS):
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
        """Times after which more cores are free even if no trial ends."""
        return [until_s for until_s, _ in self._starts if until_s > at_s]


def span_s(
    room: CpuBudget, todo: Sequence[tuple[str, float, float]], running: Collection[str] = ()
) -> float:
    """Predicted time of these trials, begun in order as soon as each fits; seconds. `todo`: key,
    seconds and cores of each; `running`: keys of those that have started."""
    waiting, ends, now_s = list(todo), dict[str, float](), 0.0
    while waiting or ends:
        loaded, begun = bool(ends), list[tuple[str, float, float]]()
        for entry in waiting:
            key, _, cores = entry
            if room.fits(cores, now_s, loaded=loaded):
                room.enter(key, cores, now_s, loaded=loaded)
                begun.append(entry)
        waiting = [entry for entry in waiting if entry not in begun]
        starts = [key for key, _, _ in begun if key not in running]
        up_s = STARTS_S * max(0, len(starts) - 1)  # until the last of them is up
        for key, seconds, _ in begun:
            ends[key] = now_s + seconds + (up_s if key in starts else 0.0)
        now_s = min((*ends.values(), *(room.later(now_s) if waiting else ())))
        for key in [key for key, end_s in ends.items() if end_s <= now_s]:
            room.leave(key)
            del ends[key]
    return now_s
