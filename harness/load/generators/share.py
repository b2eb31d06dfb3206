"""What the units of a load have in common: how many requests are left, when to stop, and what the
first body was. Units are tasks of one thread, threads of one process, or processes that forked.

Which request a unit sends next is decided when it is free to send one, not beforehand: where one
connection is served more slowly than another, shares dealt in advance would leave it alone with
its rest at the end.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import zlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import RawValue
from typing import Any

from harness.load.generators.words import Words

FORK = multiprocessing.get_context("fork")  # the packages are imported once, for all processes
KNOWN = 1 << 63  # a bit that tells an empty body from none


@dataclass
class Local:
    """A number in the memory of one process."""

    value: int = 0


@dataclass
class Share:
    """`taken` and `body` are numbers that all units see, changed under `lock`."""

    words: Words
    lock: AbstractContextManager[Any]
    taken: Any = field(default_factory=Local)
    body: Any = field(default_factory=Local)
    deadline_ns: int = 0
    until_ns: int | None = None
    _first: int | None = None  # what `body` holds, once it is known here

    def __post_init__(self) -> None:
        self.deadline_ns = time.monotonic_ns() + int(self.words.deadline_s * 1e9)

    def begin(self) -> None:
        """The load begins now, in this process."""
        if self.words.duration_s is not None:
            self.until_ns = time.monotonic_ns() + int(self.words.duration_s * 1e9)

    def left_s(self) -> float:
        """Until the deadline; 0 when it has passed."""
        return max(0.0, (self.deadline_ns - time.monotonic_ns()) / 1e9)

    def wait_s(self, unit: int) -> float:
        """How long after the beginning a unit sends its first request: the ramp."""
        return self.words.ramp_s * unit / self.words.concurrency

    def take(self) -> bool:
        """Whether another request shall be sent; if so, the caller must send it."""
        if self.until_ns is not None:
            return time.monotonic_ns() < self.until_ns
        with self.lock:
            if self.taken.value >= (self.words.requests or 0):
                return False
            self.taken.value += 1
        return True

    def judge(self, status: int | None, body: bytes) -> str | None:
        """The cause of the failure that a complete answer is, None for a success."""
        cause = self.words.judge(status)
        if cause is None and self.words.same_body and not self._same(body):
            return "body"
        return cause

    def _same(self, body: bytes) -> bool:
        digest = KNOWN | (len(body) % (1 << 31)) << 32 | zlib.crc32(body)
        if self._first is None:
            with self.lock:
                self.body.value = self.body.value or digest
            self._first = self.body.value
        return digest == self._first


def of_tasks(words: Words) -> Share:
    """For the tasks of one event loop."""
    return Share(words, nullcontext())


def of_threads(words: Words) -> Share:
    """For the threads of one process."""
    return Share(words, threading.Lock())


def of_processes(words: Words) -> Share:
    """For processes that this one forks."""
    return Share(words, FORK.Lock(), RawValue("Q", 0), RawValue("Q", 0))
