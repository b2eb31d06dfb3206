"""Who waits for whom, where trials run side by side.

To start takes all the cores for a moment, so servers start one after the other, and those that
begin together are loaded when the last of them is up. They are measured from moments a little
apart: else all of them would be answered, and ask again, at once.

Whatever ends the lab ends all of them: their servers are killed, and what they wait for raises
Ended.
"""

import threading
import time
from collections.abc import Callable

from workerlab.server.process import Guarded
from workerlab.server.running import Turn

APART_S = 0.1


class Ended(BaseException):
    """The lab ends, and this trial with it. Not an Exception: nothing may swallow it."""


class Gate:
    """Who starts, and who is measured."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._announced: set[str] = set()  # they start, or will
        self._starting = ""
        self._measured: set[str] = set()
        self._up: dict[str, Guarded] = {}
        self._next_s = 0.0  # when the next one may be measured
        self.ended = False

    @property
    def loaded(self) -> bool:
        """Whether somebody is measured, whom the start of another one would disturb."""
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
        self.look()  # what comes up as all end was not among those that were ended

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
        """Whatever became of it."""
        with self._changed:
            self._done(key)
            self._measured.discard(key)
            self._up.pop(key, None)

    def look(self, *_: object) -> None:
        """Whether to go on: raises Ended where not."""
        if self.ended:
            raise Ended

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


class Place(Turn):
    """Of one trial at the gate."""

    def __init__(self, gate: Gate, key: str) -> None:
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
