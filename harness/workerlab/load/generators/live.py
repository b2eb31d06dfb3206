"""`live`: a load that can be changed while it runs, and reports each request's events immediately.
Uses the engine of `fast`; requests carry their numbers in the header X-Workerlab-Request.

    python -I -S harness/workerlab/load/generators live COMMANDS EVENTS         two named pipes

Each line on COMMANDS is a JSON object that sets the load from then on; end-of-file ends the load:

    url        target of new requests
    keepalive  whether connections are reused
    clients    closed loop: the number of clients, each of which sends a request when its last one
               has ended; surplus clients leave at that point
    rate       instead of clients: requests per second, Poisson arrivals; `seed`: of the arrivals
    patience   seconds after which a client abandons an unanswered request (GAVE_UP) and closes its
               connection; without it, clients wait indefinitely

Each line on EVENTS has a letter, a request's number, the time (nanoseconds of CLOCK_MONOTONIC), and
for a failure its cause.

    o  the number of open connections, instead of a request's number

    b  begins: connects, or is sent on a kept connection
    c  its connection is established     k  was sent on a kept connection
    e  was answered as expected          f  failed
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

from workerlab.load.generators.document import KEPT
from workerlab.load.generators.engine import FOREVER, NS, READ, Engine, LoadShare, Slot
from workerlab.load.generators.request import destination, only
from workerlab.load.generators.words import Words

MAX_IN_FLIGHT = 1000  # with a rate
MAX_WAITING = 2000  # due requests queued while MAX_IN_FLIGHT are in flight; others fail as UNSENT
UNSENT, GAVE_UP = "unsent", "gave_up"
NEVER_S = 1e9
MAX_UNREAD_BYTES = 1 << 20  # of buffered events; when it is full, new events are dropped


class LiveEngine(Engine):
    """`commands`, `events`: file descriptors of non-blocking pipes."""

    def __init__(self, url: str, commands: int, events: int) -> None:
        words = Words((url,), concurrency=1, deadline_s=NEVER_S)
        to = (destination(words, url),)
        super().__init__(LoadShare(words, to, 0, None, time.monotonic_ns(), None))
        self._plain = False  # the engine's hot loop reports no events
        self._commands, self._events = commands, events
        self._partial_line, self._outgoing, self._reported_open = b"", bytearray(), 0
        self._to = to[0]
        self._alive = self._wanted = 0  # clients, current and wanted
        self._random = random.Random()
        self._next_ns = FOREVER  # with a rate: when the next request is due
        self._patience_ns: int | None = None
        self._unanswered: deque[tuple[int, int, Slot]] = deque()  # (start, number), by start
        self._poll.register(commands, READ)

    # --- commands --------------------------------------------------------------------------------

    def _serve(self, events: list[tuple[int, int]]) -> None:
        if any(fd == self._commands for fd, _ in events):
            self._listen()
        super()._serve(events)

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._commands, 1 << 16)
            if not data:
                raise EOFError
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            if lines:
                self.obey(json.loads(lines[-1]))

    def obey(self, command: Mapping[str, Any]) -> None:
        url, now = command["url"], time.monotonic_ns()
        self._words = Words((url,), 1, keepalive=command["keepalive"], deadline_s=NEVER_S)
        self._to = destination(self._words, url)
        self._kind = only(self._words, (self._to,))
        self._rate, self._wanted = command.get("rate"), command.get("clients") or 0
        patience_s = command.get("patience")
        self._patience_ns = int(patience_s * NS) if patience_s else None
        busy = [(slot.start_ns, slot.number, slot) for slot in self._open.values() if slot.busy]
        self._unanswered = deque(sorted(busy) if patience_s else ())
        if self._rate:
            self._random = random.Random(command.get("seed"))
            self._next_ns = now + self._gap_ns()
            self._idle += [slot for _, _, slot in self._later]
            self._later.clear()
            return
        self._due.clear()
        idle, self._idle = self._idle, []
        for slot in idle:
            self._begin_at(now, slot)
        while self._alive < self._wanted:
            self._begin_at(now, self._client())

    def _gap_ns(self) -> int:
        return int(self._random.expovariate(self._rate or 1.0) * NS)

    def _client(self) -> Slot:
        self._alive += 1
        return Slot(self._kind, self._to, self._kind.answers, None)

    # --- requests --------------------------------------------------------------------------------

    def _begin_due(self, now: int) -> int:
        next_ns = self._give_up(now)
        due_ns = super()._begin_due(now)
        self._flush()
        return min(due_ns, next_ns)

    def _give_up(self, now: int) -> int:
        """Fail requests that exceed the patience. Returns when the next one will exceed it."""
        while self._patience_ns is not None and self._unanswered:
            start_ns, number, slot = self._unanswered[0]
            if (until_ns := start_ns + self._patience_ns) > now:
                return until_ns
            self._unanswered.popleft()
            if slot.busy and slot.number == number:
                self._failed(slot, GAVE_UP, now)
        return FOREVER

    def _arrive(self, now: int) -> int:
        while self._next_ns <= now:
            if len(self._due) < MAX_WAITING:
                self._due.append(self._next_ns)
            else:
                self._tell("b", self._number, self._next_ns)
                self._tell("f", self._number, self._next_ns, UNSENT)
                self._number += 1
            self._next_ns += self._gap_ns()
        while self._due and (self._idle or self._alive < MAX_IN_FLIGHT):
            slot = self._idle.pop() if self._idle else self._client()
            self._begin(slot, self._due.popleft())
        return self._next_ns

    def _begin(self, slot: Slot, start_ns: int) -> None:
        if not self._rate and self._alive > self._wanted:
            self._alive -= 1
            self._close(slot)
            return
        slot.kind, slot.to, slot.answers = self._kind, self._to, self._kind.answers
        self._tell("b", self._number, start_ns)
        super()._begin(slot, start_ns)
        if slot.busy and self._patience_ns is not None:
            self._unanswered.append((start_ns, slot.number, slot))
        if slot.busy and slot.reused == KEPT:
            self._tell("k", slot.number, start_ns)

    def _request(self, slot: Slot) -> bytes:
        return slot.to.named(slot.number)

    def _push(self, slot: Slot) -> None:
        before = slot.connect_ns
        super()._push(slot)
        if before is None and slot.connect_ns is not None:
            self._tell("c", slot.number, slot.connect_ns)

    def _ended(self, slot: Slot, end_ns: int | None, status: int | None, cause: str | None) -> None:
        at_ns = end_ns or time.monotonic_ns()
        if cause:
            self._tell("f", slot.number, at_ns, cause)
        else:
            self._tell("e", slot.number, at_ns)
        super()._ended(slot, end_ns, status, cause)

    # --- events ----------------------------------------------------------------------------------

    def _tell(self, kind: str, number: int, at_ns: int, cause: str = "") -> None:
        if len(self._outgoing) < MAX_UNREAD_BYTES:
            self._outgoing += f"{kind} {number} {at_ns} {cause}\n".encode("ascii")

    def _flush(self) -> None:
        """Write as many events as the pipe accepts; the others stay buffered."""
        if len(self._open) != self._reported_open:
            self._reported_open = len(self._open)
            self._tell("o", self._reported_open, time.monotonic_ns())
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                del self._outgoing[: os.write(self._events, self._outgoing)]


def main(argv: list[str]) -> int:
    """Run until COMMANDS is closed, or EVENTS has no reader. Returns the exit code."""
    commands_path, events_path = argv
    while not os.path.exists(events_path):  # the parent creates both pipes after starting us
        time.sleep(0.001)
    commands = os.open(commands_path, os.O_RDONLY)  # waits for the other end
    events = os.open(events_path, os.O_WRONLY)
    with os.fdopen(os.dup(commands), "rb", buffering=0) as first:
        line = first.readline()
    if not line:
        return 0
    command = json.loads(line)
    for pipe in (commands, events):
        os.set_blocking(pipe, False)
    engine = LiveEngine(command["url"], commands, events)
    engine.obey(command)
    with contextlib.suppress(EOFError, BrokenPipeError):
        engine.run()
    return 0
