"""The cache inside a worker: bounded, the longest unused goes first, each entry until its time.

No other worker can take anything out of it, so that an entry's time is the only promise: whatever
was edited elsewhere, nobody is shown it for longer. That time is counted from before the value was
asked for, since it may have been edited while it was on its way.

Well before that time one reader is told that it is missing, and fetches it anew while the others
are still served: else all that arrive together would ask the storage together, once per expiry.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")

RENEW = 0.5  # of an entry's time: a busy event loop may take as long again to fetch it


@dataclass
class _Entry(Generic[V]):
    """`renew_s`, `until_s`: moments of the clock."""

    value: V
    revision: int
    renew_s: float
    until_s: float


class LocalCache(Generic[V]):
    """At most `most` entries. Threads may share it. `clock`: seconds, never set back."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._most = most
        self._entries: OrderedDict[str, _Entry[V]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> V | None:
        now_s = self.clock()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if now_s >= entry.until_s:
                del self._entries[key]
                return None
            if now_s >= entry.renew_s:
                entry.renew_s = entry.until_s  # the others need not
                return None
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: str, value: V, revision: int, asked_s: float, expiry_s: float) -> None:
        """`asked_s`: the moment of the clock before the value was asked for. What came in meanwhile
        stays where its revision is newer, or the same and asked for later."""
        until_s = asked_s + expiry_s
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.until_s <= self.clock():
                entry = None
            if entry is not None and (entry.revision, entry.until_s) > (revision, until_s):
                return
            self._entries[key] = _Entry(value, revision, asked_s + RENEW * expiry_s, until_s)
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
