"""Detects that the machine stood still during a measurement.

From outside, a slow server cannot be told from a machine that stands still: a worker seems not to
have reported, a connection to have been closed late. Such a measurement is repeated; if it never
succeeds, it is reported as failed.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from workerlab.server.running import Faulty

TICK_S = 0.05
STILL_S = 0.25  # far longer than a thread waits for a busy core
TRIES = 8

T = TypeVar("T")


class StoodStill(Faulty):
    """The machine stood still in each attempt."""

    def __init__(self) -> None:
        super().__init__("server", "the machine stood still each time that this was tried")


class Stillness:
    """Context manager with a thread that records how late it runs."""

    def __init__(self) -> None:
        self._ticked = time.monotonic()
        self._gaps: list[tuple[float, float]] = []  # (end, length), seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Stillness":
        self._ticked = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        if now - self._ticked >= STILL_S:
            self._gaps.append((now, now - self._ticked))
        self._ticked = now

    def longest_s(self, since: float, now: float) -> float:
        """The longest gap that ended after `since`, including one not yet recorded."""
        noted = [length_s for ended, length_s in tuple(self._gaps) if ended > since]
        return max([*noted, now - self._ticked])


def undisturbed(
    measure: Callable[[], T],
    still_s: Callable[[float], float],
    certain: Callable[[T], bool] = lambda _: False,
    tries: int = TRIES,
) -> T:
    """The result of `measure` from an attempt in which nothing stood still, or whose result is
    `certain` anyway. `still_s(since)`: the longest gap. Raises StoodStill."""
    for _ in range(tries):
        began = time.monotonic()
        outcome = measure()
        if certain(outcome) or still_s(began) < STILL_S:
            return outcome
    raise StoodStill
