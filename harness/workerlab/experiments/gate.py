"""Coordinates trials that run in parallel.

Starting a server takes all cores for a moment. So servers start one at a time, and those that begin
together are loaded once the last of them is up, a little apart: otherwise all would answer, and be
asked again, at the same moment.

If one trial ends the lab, all end: their servers are killed, and whatever they wait for raises
Cancelled.
"""

import threading
import time
from collections.abc import Callable

from workerlab.server.process import Guarded
from workerlab.server.running import Turn

APART_S = 0.1


class Cancelled(BaseException):
    """The lab ends. Not an Exception, so that no handler swallows it."""


class StartupBarrier:
    """Which trials start, and which are measured."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._announced: set[str] = set()  # start now or later
        self._starting = ""
        self._measured: set[str] = set()
        self._up: dict[str, Guarded] = {}
        self._next_s = 0.0  # when the next trial may be measured
        self.ended = False

    @property
    def loaded(self) -> bool:
        """Whether a trial is being measured, which another start would disturb."""
        return bool(self._measured)

    def announce(self, key: str) -> None:
        with self._changed:
            self._announced.add(key)

    def begin(self, key: str) -> None:
        with self._changed:
            self._wait(lambda: not self._starting)
            self._starting = key

    def started(self, key: str, process: Guarded) -> None:
        with self._changed:
            self._up[key] = process
        self.look()  # a server that comes up during `end` was not abandoned there

    def calm(self, key: str) -> None:
        with self._changed:
            self._done(key)
            self._wait(lambda: not self._announced)
            now_s = time.monotonic()
            self._next_s = max(now_s, self._next_s) + APART_S
            pause_s = self._next_s - APART_S - now_s
            self._measured.add(key)
            self._changed.wait_for(lambda: self.ended, pause_s)
            self.look()

    def leave(self, key: str) -> None:
        """The trial has ended, successfully or not."""
        with self._changed:
            self._done(key)
            self._measured.discard(key)
            self._up.pop(key, None)

    def look(self, *_: object) -> None:
        """Raises Cancelled if the lab has ended."""
        if self.ended:
            raise Cancelled

    def end(self) -> None:
        with self._changed:
            self.ended = True
            for process in self._up.values():
                process.abandon()
            self._changed.notify_all()

    def _done(self, key: str) -> None:
        self._announced.discard(key)
        self._starting = "" if self._starting == key else self._starting
        self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.ended or condition())
        self.look()


class JobSlot(Turn):
    """The turn of one trial at the barrier."""

    def __init__(self, gate: StartupBarrier, key: str) -> None:
        self._gate, self._key = gate, key

    def begin(self) -> None:
        self._gate.begin(self._key)

    def started(self, process: Guarded) -> None:
        self._gate.started(self._key, process)

    def look(self) -> None:
        self._gate.look()

    def calm(self) -> float:
        began = time.monotonic()
        self._gate.calm(self._key)
        return time.monotonic() - began
