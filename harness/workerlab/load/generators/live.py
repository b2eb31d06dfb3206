"""`live`: a load that can be changed while it runs, and reports each request's events immediately.
Uses the engine of `fast`; requests carry their numbers in the header X-Workerlab-Request.

    python -I -S harness/workerlab/load/generators live COMMANDS EVENTS         two named pipes

Each line on COMMANDS is a JSON object that sets the load from then on; end-of-file ends the load:

    url        target of new requests
    keepalive  whether connections are reused
    clients    closed model: the number of clients; each sends its next request when the previous
               one has ended, and surplus clients leave at that point
    rate       instead of clients: requests per second, Poisson arrivals; `seed`: of the arrivals
    patience   seconds after which a client gives up on a request (GAVE_UP) and closes its
               connection; if missing, clients wait indefinitely

Each line on EVENTS has a letter, a request's number, the time (nanoseconds of CLOCK_MONOTONIC), and
for a failure its cause.

    o  the number of open connections, instead of a request's number

    b  begins: connects, or is sent on a kept-alive connection
    c  its connection is established     k  was sent on a kept-alive connection
    e  succeeded                         f  failed
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from workerlab.load.generators.engine import NEVER_NS, NS, READ, Engine, LoadShare, Slot
from workerlab.load.generators.format import KEPT
from workerlab.load.generators.options import LoadOptions
from workerlab.load.generators.request import destination, single_kind

MAX_IN_FLIGHT = 1000  # requests, with a rate
MAX_QUEUED = 2000  # requests due while MAX_IN_FLIGHT are in flight; further ones fail as UNSENT
UNSENT, GAVE_UP = "unsent", "gave_up"
NO_DEADLINE_S = 1e9
MAX_BUFFERED_BYTES = 1 << 20  # of unread events; beyond that, new ones are dropped


class LiveEngine(Engine):
    """An engine that reads commands and writes events. `commands`, `events`: file descriptors of
    non-blocking pipes."""

    def __init__(self, url: str, commands: int, events: int) -> None:
        options = LoadOptions((url,), concurrency=1, deadline_s=NO_DEADLINE_S)
        self._destination = destination(options, url)
        share = LoadShare(
            options=options,
            destinations=(self._destination,),
            concurrency=0,
            requests=None,
            origin_ns=time.monotonic_ns(),
            rows=None,
        )
        super().__init__(share)
        self._fast_path = False  # the engine's hot loop reports no events
        self._commands, self._events = commands, events
        self._partial_line, self._outgoing_bytes, self._reported_connections = b"", bytearray(), 0
        self._clients = self._target_clients = 0
        self._random = random.Random()
        self._next_due_ns = NEVER_NS  # of the next request, with a rate
        self._patience_ns: int | None = None
        self._pending: deque[tuple[int, int, Slot]] = deque()  # (start, number, slot), by start
        self._poller.register(commands, READ)

    # --- commands --------------------------------------------------------------------------------

    def _handle_events(self, events: list[tuple[int, int]]) -> None:
        if any(fd == self._commands for fd, _ in events):
            self._read_commands()
        super()._handle_events(events)

    def _read_commands(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._commands, 1 << 16)
            if not data:
                raise EOFError
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            if lines:
                self.apply(json.loads(lines[-1]))

    def apply(self, command: Mapping[str, Any]) -> None:
        """Change the load to that of a command."""
        url, now = command["url"], time.monotonic_ns()
        self._options = LoadOptions(
            urls=(url,),
            concurrency=1,
            keepalive=command["keepalive"],
            deadline_s=NO_DEADLINE_S,
        )
        self._destination = destination(self._options, url)
        self._kind = single_kind(self._options, (self._destination,))
        self._rate_rps, self._target_clients = command.get("rate"), command.get("clients") or 0
        patience_s = command.get("patience")
        self._patience_ns = int(patience_s * NS) if patience_s else None
        busy = [slot for slot in self._open_slots.values() if slot.busy]
        pending = sorted((slot.start_ns, slot.number, slot) for slot in busy)
        self._pending = deque(pending if patience_s else ())
        if self._rate_rps:
            self._random = random.Random(command.get("seed"))
            self._next_due_ns = now + self._gap_ns()
            self._idle_slots += [slot for _, _, slot in self._start_heap]
            self._start_heap.clear()
            return
        self._due_ns.clear()
        idle, self._idle_slots = self._idle_slots, []
        for slot in idle:
            self._start_at(now, slot)
        while self._clients < self._target_clients:
            self._start_at(now, self._new_client())

    def _gap_ns(self) -> int:
        """A random time until the next arrival."""
        return int(self._random.expovariate(self._rate_rps or 1.0) * NS)

    def _new_client(self) -> Slot:
        self._clients += 1
        return Slot(
            kind=self._kind,
            destination=self._destination,
            recogniser=self._kind.recogniser,
            source=None,
        )

    # --- requests --------------------------------------------------------------------------------

    def _start_due(self, now: int) -> int:
        next_give_up_ns = self._give_up(now)
        due_ns = super()._start_due(now)
        self._flush()
        return min(due_ns, next_give_up_ns)

    def _give_up(self, now: int) -> int:
        """Fail requests that exceed the patience. Returns when the next one will exceed it."""
        while self._patience_ns is not None and self._pending:
            start_ns, number, slot = self._pending[0]
            if (give_up_ns := start_ns + self._patience_ns) > now:
                return give_up_ns
            self._pending.popleft()
            if slot.busy and slot.number == number:
                self._fail(slot, GAVE_UP, now)
        return NEVER_NS

    def _start_arrivals(self, now: int) -> int:
        while self._next_due_ns <= now:
            if len(self._due_ns) < MAX_QUEUED:
                self._due_ns.append(self._next_due_ns)
            else:
                self._emit("b", self._next_number, self._next_due_ns)
                self._emit("f", self._next_number, self._next_due_ns, UNSENT)
                self._next_number += 1
            self._next_due_ns += self._gap_ns()
        while self._due_ns and (self._idle_slots or self._clients < MAX_IN_FLIGHT):
            slot = self._idle_slots.pop() if self._idle_slots else self._new_client()
            self._start(slot, self._due_ns.popleft())
        return self._next_due_ns

    def _start(self, slot: Slot, start_ns: int) -> None:
        if not self._rate_rps and self._clients > self._target_clients:
            self._clients -= 1
            self._close(slot)
            return
        slot.kind, slot.destination = self._kind, self._destination
        slot.recogniser = self._kind.recogniser
        self._emit("b", self._next_number, start_ns)
        super()._start(slot, start_ns)
        if slot.busy and self._patience_ns is not None:
            self._pending.append((start_ns, slot.number, slot))
        if slot.busy and slot.reused == KEPT:
            self._emit("k", slot.number, start_ns)

    def _request_bytes(self, slot: Slot) -> bytes:
        return slot.destination.numbered(slot.number)

    def _send_unsent(self, slot: Slot) -> None:
        previous_ns = slot.connect_ns
        super()._send_unsent(slot)
        if previous_ns is None and slot.connect_ns is not None:
            self._emit("c", slot.number, slot.connect_ns)

    def _end_request(
        self, slot: Slot, *, end_ns: int | None, status: int | None, cause: str | None
    ) -> None:
        at_ns = end_ns or time.monotonic_ns()
        if cause:
            self._emit("f", slot.number, at_ns, cause)
        else:
            self._emit("e", slot.number, at_ns)
        super()._end_request(slot, end_ns=end_ns, status=status, cause=cause)

    # --- events ----------------------------------------------------------------------------------

    def _emit(self, kind: str, number: int, at_ns: int, cause: str = "") -> None:
        if len(self._outgoing_bytes) < MAX_BUFFERED_BYTES:
            self._outgoing_bytes += f"{kind} {number} {at_ns} {cause}\n".encode("ascii")

    def _flush(self) -> None:
        """Write as many events as the pipe accepts; the rest stay buffered."""
        if len(self._open_slots) != self._reported_connections:
            self._reported_connections = len(self._open_slots)
            self._emit("o", self._reported_connections, time.monotonic_ns())
        with contextlib.suppress(BlockingIOError):
            while self._outgoing_bytes:
                del self._outgoing_bytes[: os.write(self._events, self._outgoing_bytes)]


def main(argv: list[str]) -> int:
    """Run until COMMANDS is closed, or EVENTS has no reader. Returns the exit code."""
    commands_path, events_path = argv
    while not os.path.exists(events_path):  # the parent creates both pipes after it starts us
        time.sleep(0.001)
    commands = os.open(commands_path, os.O_RDONLY)  # blocks until the parent opens the other end
    events = os.open(events_path, os.O_WRONLY)
    with os.fdopen(os.dup(commands), "rb", buffering=0) as pipe_end:
        line = pipe_end.readline()
    if not line:
        return 0
    command = json.loads(line)
    for pipe in (commands, events):
        os.set_blocking(pipe, False)
    engine = LiveEngine(command["url"], commands, events)
    engine.apply(command)
    with contextlib.suppress(EOFError, BrokenPipeError):
        engine.run()
    return 0
