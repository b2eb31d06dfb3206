"""The cache inside a worker: a bounded LRU cache whose entries expire.

Other workers cannot invalidate its entries, so the expiry alone bounds how long an old value is
served after an edit elsewhere. It counts from before the value was requested, because the value may
be edited while it is in transit.

Halfway to the expiry, one reader gets a miss and fetches the value again, while other readers are
served from the cache. Otherwise all concurrent readers would query the storage at each expiry.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")

RENEWAL_SHARE = 0.5  # of the expiry: a busy event loop may need the other half to fetch the value


@dataclass
class _Entry(Generic[V]):
    """`renew_s`, `until_s`: times of the clock, in seconds."""

    value: V
    revision: int
    renew_s: float
    until_s: float


class LocalCache(Generic[V]):
    """At most `max_entries`. Thread-safe. `clock`: seconds, monotonic."""

    def __init__(self, max_entries: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._max_entries = max_entries
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
                entry.renew_s = entry.until_s  # no other reader renews it
                return None
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: str, value: V, revision: int, requested_s: float, expiry_s: float) -> None:
        """`requested_s`: the clock's time before the value was requested. An entry that was put in
        the meantime stays if its revision is newer, or the same and requested later."""
        until_s = requested_s + expiry_s
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.until_s <= self.clock():
                entry = None
            if entry is not None and (entry.revision, entry.until_s) > (revision, until_s):
                return
            renew_s = requested_s + RENEWAL_SHARE * expiry_s
            self._entries[key] = _Entry(value, revision, renew_s, until_s)
            self._entries.move_to_end(key)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
