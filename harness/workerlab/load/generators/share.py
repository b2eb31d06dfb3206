"""What the units of a load share: how many requests are left, when to stop, and the first body.
Units are tasks or threads of one process, or of several forked processes.

Requests are not divided in advance: a connection that is served slowly would still be sending its
share when all others are done.

Forked processes begin together, and their tallies are added up. All read from two pipes: a byte on
the first starts each process; end-of-file on the second means that the parent has exited.
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
BODY_SET = 1 << 63  # a bit that distinguishes an empty body from none
SLACK_S = 2.0  # for a process at its deadline to report


@dataclass
class Share:
    """`taken`, `body` and `origin` are numbers shared by all units, changed under `lock`, or before
    any unit begins."""

    words: Words
    lock: AbstractContextManager[Any] = field(default_factory=threading.Lock)
    taken: Any = field(default_factory=lambda: SimpleNamespace(value=0))
    body: Any = field(default_factory=lambda: SimpleNamespace(value=0))
    origin: Any = field(default_factory=lambda: SimpleNamespace(value=0))  # of the load
    until_ns: int | None = None
    _first: int | None = None  # a copy of `body`, once it is set

    def __post_init__(self) -> None:
        self._deadline_ns = time.monotonic_ns() + int(self.words.deadline_s * 1e9)

    def begin(self) -> None:
        """The load begins now, in this process."""
        if self.words.duration_s is not None:
            self.until_ns = time.monotonic_ns() + int(self.words.duration_s * 1e9)

    def left_s(self) -> float:
        """Seconds until the deadline; 0 once it has passed."""
        return max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)

    def wait_s(self, unit: int) -> float:
        """Seconds from the beginning until a unit sends its first request: the ramp."""
        return self.words.ramp_s * unit / self.words.concurrency

    def take(self) -> bool:
        """Whether to send another request; if so, the caller must send it."""
        if self.until_ns is not None:
            return time.monotonic_ns() < self.until_ns
        with self.lock:
            if self.taken.value >= (self.words.requests or 0):
                return False
            self.taken.value += 1
        return True

    @property
    def reference(self) -> tuple[int, int] | None:
        """(bytes, checksum) as set by `refer`; None if not set."""
        body = self.body.value
        return ((body >> 32) % (1 << 31), body % (1 << 32)) if body else None

    def refer(self, reference: tuple[int, int] | None) -> None:
        """Set the reference that all bodies must equal, in all processes."""
        if reference is not None:
            self.body.value = BODY_SET | (reference[0] % (1 << 31)) << 32 | reference[1]

    def judge(self, status: int | None, body: bytes) -> str | None:
        """The cause of failure of a complete answer, None for a success."""
        cause = self.words.judge(status)
        if cause is None and self.words.same_body:
            digest = BODY_SET | (len(body) % (1 << 31)) << 32 | zlib.crc32(body)
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


def always(_share: Share) -> bool:
    """Begin the load at once."""
    return True


def fork(words: Words, work: Work, before: Callable[[Share], bool] = always) -> Tally:
    """Run `work(share, units)` in each process, with the unit numbers divided among them. `before`
    is called in the parent once all processes are forked; they begin if it returns True. Raises
    OSError if a process dies or misses the deadline."""
    share, units = of_processes(words), range(words.concurrency)
    pipes = os.pipe(), os.pipe()
    children, results = [], []
    try:
        for number in range(words.processes):
            result, sender = FORK.Pipe(duplex=False)
            own_units = units[number :: words.processes]
            args = (share, work, own_units, sender, pipes)
            child = FORK.Process(target=_child, args=args, daemon=True)
            child.start()
            sender.close()
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
    share: Share, work: Work, units: Sequence[int], sender: Connection, pipes: tuple[Pipe, Pipe]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it; its exit ends us
    (starter, parents_end), (lifeline, other_end) = pipes
    os.close(parents_end)
    os.close(other_end)

    def follow() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    os.read(starter, 1)
    threading.Thread(target=follow, daemon=True).start()
    sender.send(work(share, units))


def _collect(share: Share, results: list[Connection]) -> Tally:
    tally, waiting = Tally(), list(results)
    while waiting:
        # Wait again after a timeout: all processes may have been suspended until then
        ready = wait(waiting, share.left_s() + SLACK_S) or wait(waiting, SLACK_S)
        if not ready:
            raise OSError(f"{len(waiting)} of {len(results)} processes did not keep the deadline")
        for result in ready:
            assert isinstance(result, Connection)
            try:
                tally.add(result.recv())
            except EOFError:
                raise OSError("a load process exited without reporting its results") from None
            waiting.remove(result)
    return tally
