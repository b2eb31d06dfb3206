"""Whether this process was run all the time while something was timed.

A server, and Gunicorn's own timers, cannot be told from a machine that stands still: a worker looks
as if it had not reported, a connection as if it had been closed late. What was seen then is seen
again, and where that never succeeds nothing is said of it.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from workerlab.server.running import Faulty

TICK_S = 0.05
STILL_S = 0.25  # far more than a thread waits for a core that others want, too
TRIES = 8

T = TypeVar("T")


class StoodStill(Faulty):
    """In each try: nothing was shown."""

    def __init__(self) -> None:
        super().__init__("server", "the machine stood still each time that this was tried")


class Stillness:
    """As a context manager: a thread that notes how late it is run."""

    def __init__(self) -> None:
        self._ticked = time.monotonic()
        self._gaps: list[tuple[float, float]] = []  # when they ended, how long they were
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
        """Of the gaps that ended after `since`. Its thread may not have noted the last one yet."""
        noted = [length_s for ended, length_s in tuple(self._gaps) if ended > since]
        return max([*noted, now - self._ticked])


def undisturbed(
    measure: Callable[[], T],
    still_s: Callable[[float], float],
    certain: Callable[[T], bool] = lambda _: False,
    tries: int = TRIES,
) -> T:
    """What `measure` gives where nothing stood still meanwhile, or it is `certain` nevertheless.
    `still_s(since)`: for how long something did. Raises StoodStill."""
    for _ in range(tries):
        began = time.monotonic()
        outcome = measure()
        if certain(outcome) or still_s(began) < STILL_S:
            return outcome
    raise StoodStill
