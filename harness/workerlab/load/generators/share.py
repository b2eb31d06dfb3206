"""What the units of a load have in common: how many requests are left, when to stop, and what the
first body was. Units are tasks or threads of one process, or of several that are forked.

Requests are not dealt in advance: a connection that is served more slowly than the others would be
left alone with its rest at the end.

Forked processes begin together, and what they saw is added up. Two pipes lead to all of them: a
byte in the one starts each; the end of the other says that this process is gone, however it ended.
"""

import multiprocessing
import os
import signal
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawValue
from types import SimpleNamespace
from typing import Any

from workerlab.load.generators.document import Tally
from workerlab.load.generators.words import Words

FORK = multiprocessing.get_context("fork")  # the packages are imported once, for all processes
KNOWN = 1 << 63  # a bit that tells an empty body from none
SLACK_S = 2.0  # a process that has met its deadline needs a moment to say so


@dataclass
class Share:
    """`taken`, `body` and `origin` are numbers that all units see, changed under `lock`, or before
    any of them begins."""

    words: Words
    lock: AbstractContextManager[Any] = field(default_factory=threading.Lock)
    taken: Any = field(default_factory=lambda: SimpleNamespace(value=0))
    body: Any = field(default_factory=lambda: SimpleNamespace(value=0))
    origin: Any = field(default_factory=lambda: SimpleNamespace(value=0))  # of the load
    until_ns: int | None = None
    _first: int | None = None  # what `body` holds, once it is known here

    def __post_init__(self) -> None:
        self._deadline_ns = time.monotonic_ns() + int(self.words.deadline_s * 1e9)

    def begin(self) -> None:
        """The load begins now, in this process."""
        if self.words.duration_s is not None:
            self.until_ns = time.monotonic_ns() + int(self.words.duration_s * 1e9)

    def left_s(self) -> float:
        """Until the deadline; 0 when it has passed."""
        return max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)

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

    @property
    def reference(self) -> tuple[int, int] | None:
        """(bytes, checksum) that `refer` put down; None: nothing."""
        body = self.body.value
        return ((body >> 32) % (1 << 31), body % (1 << 32)) if body else None

    def refer(self, reference: tuple[int, int] | None) -> None:
        """What every body must be, for all processes."""
        if reference is not None:
            self.body.value = KNOWN | (reference[0] % (1 << 31)) << 32 | reference[1]

    def judge(self, status: int | None, body: bytes) -> str | None:
        """The cause of the failure that a complete answer is, None for a success."""
        cause = self.words.judge(status)
        if cause is None and self.words.same_body:
            digest = KNOWN | (len(body) % (1 << 31)) << 32 | zlib.crc32(body)
            if self._first is None:
                with self.lock:
                    self.body.value = self.body.value or digest
                self._first = self.body.value
            return None if digest == self._first else "body"
        return cause


Work = Callable[[Share, Sequence[int]], Tally]
Pipe = tuple[int, int]


def of_processes(words: Words) -> Share:
    return Share(words, FORK.Lock(), *(RawValue("Q", 0) for _ in range(3)))


def anyhow(_share: Share) -> bool:
    """Nothing comes before the load."""
    return True


def fork(words: Words, work: Work, before: Callable[[Share], bool] = anyhow) -> Tally:
    """`work(share, units)` in each process, the numbers of the units dealt among them. `before` is
    called here, when all processes are ready to begin; False: they need not. Raises OSError where a
    process died."""
    share, units = of_processes(words), range(words.concurrency)
    pipes = os.pipe(), os.pipe()
    children, results = [], []
    try:
        for number in range(words.processes):
            result, told = FORK.Pipe(duplex=False)
            mine = units[number :: words.processes]
            child = FORK.Process(target=_child, args=(share, work, mine, told, pipes), daemon=True)
            child.start()
            told.close()
            children.append(child)
            results.append(result)
        tally = Tally()
        if before(share):
            os.write(pipes[0][1], bytes(words.processes))
            tally = _collect(share, results)
        return tally
    finally:
        for child in children:
            child.kill()
            child.join()
        for end in (*pipes[0], *pipes[1]):
            os.close(end)


def _child(
    share: Share, work: Work, units: Sequence[int], told: Connection, pipes: tuple[Pipe, Pipe]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, whose end ends us
    (pistol, parents_end), (lifeline, other_end) = pipes
    os.close(parents_end)
    os.close(other_end)

    def follow() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    os.read(pistol, 1)
    threading.Thread(target=follow, daemon=True).start()
    told.send(work(share, units))


def _collect(share: Share, results: list[Connection]) -> Tally:
    tally, waiting = Tally(), list(results)
    while waiting:
        # Again, as all of them may have stood still together until the time was over
        ready = wait(waiting, share.left_s() + SLACK_S) or wait(waiting, SLACK_S)
        if not ready:
            raise OSError(f"{len(waiting)} of {len(results)} processes did not keep the deadline")
        for one in ready:
            assert isinstance(one, Connection)
            try:
                tally.add(one.recv())
            except EOFError:
                raise OSError("a process of the load ended without a word") from None
            waiting.remove(one)
    return tally
