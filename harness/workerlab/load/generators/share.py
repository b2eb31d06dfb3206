"""State that the units of a load share: the requests left, when to stop, and the first body.
A unit is a task or thread that sends one request at a time. Units may be in multiple forked
processes.

Requests are not divided in advance: otherwise a connection that is served slowly would still be
sending its share after all other connections are done.

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
from workerlab.load.generators.options import LoadOptions

FORK = multiprocessing.get_context("fork")  # so packages are imported only once
BODY_SET = 1 << 63  # a bit that distinguishes an empty body from no body
REPORT_SLACK_S = 2.0  # time for a process to report after its deadline


@dataclass
class SharedState:
    """`claimed`, `body` and `origin` are shared numbers that change only under `lock` or before any
    unit begins. `body` encodes the size and checksum of the first body, 0 if there is none."""

    options: LoadOptions
    lock: AbstractContextManager[Any] = field(default_factory=threading.Lock)
    claimed: Any = field(default_factory=lambda: SimpleNamespace(value=0))
    body: Any = field(default_factory=lambda: SimpleNamespace(value=0))
    origin: Any = field(default_factory=lambda: SimpleNamespace(value=0))  # of the load
    end_ns: int | None = None
    _first_body: int | None = None  # a copy of `body`, once it is set

    def __post_init__(self) -> None:
        self._deadline_ns = time.monotonic_ns() + int(self.options.deadline_s * 1e9)

    def begin(self) -> None:
        """Begin the load in this process."""
        if self.options.duration_s is not None:
            self.end_ns = time.monotonic_ns() + int(self.options.duration_s * 1e9)

    def remaining_s(self) -> float:
        """Seconds until the deadline; 0 once it has passed."""
        return max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)

    def wait_s(self, unit: int) -> float:
        """Seconds from the beginning until the ramp lets a unit send its first request."""
        return self.options.ramp_s * unit / self.options.concurrency

    def claim(self) -> bool:
        """Claim a request, which the caller must send. Returns False once there are no more."""
        if self.end_ns is not None:
            return time.monotonic_ns() < self.end_ns
        with self.lock:
            if self.claimed.value >= (self.options.requests or 0):
                return False
            self.claimed.value += 1
        return True

    @property
    def reference(self) -> tuple[int, int] | None:
        """(bytes, checksum) that all bodies must match; None if not set."""
        body = self.body.value
        return ((body >> 32) % (1 << 31), body % (1 << 32)) if body else None

    def set_reference(self, reference: tuple[int, int] | None) -> None:
        """Set the reference for the bodies in all processes."""
        if reference is not None:
            self.body.value = BODY_SET | (reference[0] % (1 << 31)) << 32 | reference[1]

    def failure_cause(self, status: int | None, body: bytes) -> str | None:
        """Why a complete response is a failure; None for a success."""
        cause = self.options.failure_cause(status)
        if cause is None and self.options.same_body:
            fingerprint = BODY_SET | (len(body) % (1 << 31)) << 32 | zlib.crc32(body)
            if self._first_body is None:
                with self.lock:
                    self.body.value = self.body.value or fingerprint
                self._first_body = self.body.value
            return None if fingerprint == self._first_body else "body"
        return cause


Work = Callable[[SharedState, Sequence[int]], Tally]
Pipe = tuple[int, int]


def shared_by_processes(options: LoadOptions) -> SharedState:
    return SharedState(options, FORK.Lock(), *(RawValue("Q", 0) for _ in range(3)))


def start_at_once(_shared: SharedState) -> bool:
    """Begin the load immediately."""
    return True


def fork(
    options: LoadOptions, work: Work, before_start: Callable[[SharedState], bool] = start_at_once
) -> Tally:
    """Run `work(shared, units)` in each process, with the unit numbers divided among them. Once all
    processes are forked, the parent calls `before_start`; they begin if it returns True. Raises
    OSError if a process dies or misses the deadline."""
    shared, units = shared_by_processes(options), range(options.concurrency)
    pipes = os.pipe(), os.pipe()
    children, receivers = [], []
    try:
        for number in range(options.processes):
            receiver, sender = FORK.Pipe(duplex=False)
            own_units = units[number :: options.processes]
            args = (shared, work, own_units, sender, pipes)
            child = FORK.Process(target=_child, args=args, daemon=True)
            child.start()
            sender.close()
            children.append(child)
            receivers.append(receiver)
        tally = Tally()
        if before_start(shared):
            os.write(pipes[0][1], bytes(options.processes))
            tally = _collect(shared, receivers)
        return tally
    finally:
        for child in children:
            child.kill()
            child.join()
        for end in (*pipes[0], *pipes[1]):
            os.close(end)


def _child(
    shared: SharedState,
    work: Work,
    units: Sequence[int],
    sender: Connection,
    pipes: tuple[Pipe, Pipe],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends this process
    (start_reader, start_writer), (lifeline_reader, lifeline_writer) = pipes
    os.close(start_writer)
    os.close(lifeline_writer)

    def exit_with_parent() -> None:
        os.read(lifeline_reader, 1)
        os._exit(1)

    os.read(start_reader, 1)
    threading.Thread(target=exit_with_parent, daemon=True).start()
    sender.send(work(shared, units))


def _collect(shared: SharedState, receivers: list[Connection]) -> Tally:
    tally, pending = Tally(), list(receivers)
    while pending:
        # Wait again after a timeout, as all processes may have been suspended
        timeout_s = shared.remaining_s() + REPORT_SLACK_S
        ready = wait(pending, timeout_s) or wait(pending, REPORT_SLACK_S)
        if not ready:
            raise OSError(f"{len(pending)} of {len(receivers)} processes missed the deadline")
        for receiver in ready:
            assert isinstance(receiver, Connection)
            try:
                tally.add(receiver.recv())
            except EOFError:
                raise OSError("a load process exited without reporting its results") from None
            pending.remove(receiver)
    return tally
