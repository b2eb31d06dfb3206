"""The engine of `fast`: one thread, one poll loop, no objects created per request.

A request costs its system calls (poll, recv, send) and as little Python as possible. A response
that arrives whole is compared with verified ones (http1.py). Any other is parsed, and a success
becomes a verified one. Rows are written in batches of a few hundred responses, and response times
are counted in larger batches, while the next requests are in flight.

A slot is a client, with one connection and one request at a time. In the closed model it sends its
next request as soon as the previous one ends. In the open model requests have due times and go to
any free slot; if no slot is free, a request waits, and is timed from its due time. Requests not
sent by the end are `unsent`.

Rejected: asyncio and uvloop with a protocol per connection (0.5 to 0.9 of this throughput); polling
for writability before the first byte of a request is sent (on loopback a connection is established
when connect() returns; otherwise an immediate send fails harmlessly).
"""

import contextlib
import errno
import heapq
import itertools
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from workerlab.load.generators.document import Tally
from workerlab.load.generators.format import KEPT, NEW, RESENT, cause_of_errno
from workerlab.load.generators.http1 import (
    MalformedResponse,
    ParsedResponse,
    Recogniser,
    ResponseParser,
)
from workerlab.load.generators.options import LoadOptions
from workerlab.load.generators.request import (
    Destination,
    RequestKind,
    kinds_of_mix,
    mix_order,
    single_kind,
)
from workerlab.numbers.histogram import Histogram

READ, WRITE = select.POLLIN, select.POLLOUT  # epoll uses the same values
RECV_BYTES = 65_536  # per recv(); above 128 KiB, malloc maps and unmaps memory for each call
MAX_BUFFERED_VALUES = 2_000  # values of rows; writing them takes 0.1 ms
MAX_UNCOUNTED_TIMES = 20_000  # response times buffered before they are counted
MAX_LINGERING_CONNECTIONS = 1_000  # beyond that, the oldest is closed
SMALL_SEND_BYTES = 4_096  # bytes that an idle connection always accepts in one send
DEADLINE_CHECK_NS = 250_000_000  # between checks of the deadline
FAILURE_PAUSE_NS = 10_000_000  # how long a slot pauses after a failed request, in a timed run
NEVER_NS = UNLIMITED = 1 << 62
NS = 1_000_000_000
# A row of format.COLUMNS: a success on a kept-alive connection
ROW_FORMAT = f"%d,0,%d,%d,%d,,%d,{KEPT}\n"
MIX_ROW_FORMAT = f"{ROW_FORMAT.rstrip()},%d\n"
IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h: choose the port at connect()
IP_LOCAL_PORT_RANGE = 51  # linux/in.h, 6.3


@dataclass(frozen=True)
class LoadShare:
    """The part of a load that one process sends: requests `first`, `first + step`, ... With a rate,
    they are due at `due_offsets_ns` after the origin. `claim` returns further request numbers for
    this process, or an empty range once all are claimed."""

    options: LoadOptions
    destinations: tuple[Destination, ...]
    concurrency: int
    requests: int | None
    origin_ns: int  # start of the run, CLOCK_MONOTONIC
    rows: str | None  # path of the file to write a row per request to
    first: int = 1
    step: int = 1
    offset: int = 0  # index of the process, for the ramp
    due_offsets_ns: Sequence[int] = ()  # ascending
    mix: tuple[tuple[Destination, ...], ...] = ()  # `destinations` for each of options.mix
    reference: tuple[int, int] | None = None  # (bytes, checksum) that every body must match
    claim: Callable[[], range] | None = None


@dataclass(slots=True, eq=False)
class Slot:
    """A client. Times are absolute nanoseconds."""

    kind: RequestKind  # of the current request
    destination: Destination
    recogniser: Recogniser  # for its kind
    source: str | None
    sock: socket.socket | None = None
    fd: int = -1
    recv: Callable[[int], bytes] = field(init=False)
    send: Callable[[bytes | memoryview], int] = field(init=False)
    start_ns: int = 0  # start of the request; with a rate, its due time
    attempt_ns: int = 0  # when the request was last sent, or connect() was called
    connect_ns: int | None = None  # when its connection was established
    first_byte_ns: int = 0  # when the response began; 0: not yet
    number: int = 0
    url_index: int = 0  # index of its destination
    reused: int = NEW
    parser: ResponseParser | None = None  # of the response being read
    busy: bool = False  # a request is in flight
    fast_path: bool = False  # busy on a kept-alive connection, with its request completely sent
    wants_write: bool = False  # connecting, or has more to send
    unsent: bytes | memoryview = b""  # the rest of the request


class Poller:
    """Waits for ready sockets, with epoll if available, else with poll()."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._poll = self._epoll or select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify
        self.unregister = self._poll.unregister

    def wait(self, timeout_s: float, *, precise: bool) -> list[tuple[int, int]]:
        """(fd, events) of ready sockets, after at most `timeout_s`. `precise`: accurate to 1 us."""
        if self._epoll is None:
            return self._poll.poll(timeout_s * 1000)
        if precise:  # unlike epoll, select() does not round up to milliseconds
            select.select([self._epoll.fileno()], [], [], timeout_s)
            timeout_s = 0
        return self._epoll.poll(timeout_s)

    def unregister_closed(self, fd: int) -> None:
        """Unregister a closed file. Only poll() needs this: epoll drops closed files by itself."""
        if self._epoll is None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()


class Engine:
    """Sends a share of a load. `tally`: results; `rows`: the file to write a row per request to."""

    def __init__(self, share: LoadShare, rows: TextIO | None = None) -> None:
        self.tally = Tally(origin_ns=share.origin_ns)
        self._share, self._options, self._rows = share, share.options, rows
        self._rate_rps = share.options.rate_rps
        self._poller = Poller()
        self._open_slots: dict[int, Slot] = {}
        self._total = self._remaining = UNLIMITED if share.requests is None else share.requests
        self._next_number, self._step, self._origin_ns = share.first, share.step, share.origin_ns
        self._claim, self._order_number = share.claim, share.first
        options = share.options
        self._kind = single_kind(options, share.destinations)
        self._kind.recogniser.reference = share.reference
        self._mix_kinds = kinds_of_mix(options, share.mix, self.tally)
        self._mix_order = mix_order(options, share.first, share.step)
        # Whether slots can use the fast path: with keep-alive, if each request fits into one send
        self._fast_path = options.keepalive and all(
            len(destination.request) <= SMALL_SEND_BYTES for destination in share.destinations
        )
        # Times not yet counted; _parsed_ns: (first byte, response)
        self._recognised_ns: list[int] = []
        self._parsed_ns: list[tuple[int, int]] = []
        self._lags_ns: list[int] = []
        self._row_values: list[int] = []  # values for ROW_FORMAT, row after row, not yet written
        self._start_heap: list[tuple[int, int, Slot]] = []  # heap of (start, tie-breaker, slot)
        self._tie_breakers = itertools.count()
        self._idle_slots: list[Slot] = []
        self._linger_queue: deque[tuple[int, socket.socket]] = deque()  # (closing time, socket)
        self._due_ns: deque[int] = deque()  # due times of requests that wait for a free slot
        self._next_arrival = 0
        self._in_flight = 0
        self._sending_first = False
        duration_s = options.duration_s
        self._end_ns = NEVER_NS if duration_s is None else share.origin_ns + int(duration_s * NS)
        self._deadline_ns = share.origin_ns + int(options.deadline_s * NS)

    @property
    def reference(self) -> tuple[int, int] | None:
        """(bytes, checksum) of the first body, if the others are compared with it."""
        return self._kind.recogniser.reference

    def run(self, *, first_alone: bool = False) -> None:
        """Run until the last request has ended, or until the deadline. `first_alone`: send the
        first request alone, before the others."""
        share, destinations = self._share, self._share.destinations
        sources = self._options.sources or (None,)
        slots = [
            Slot(
                kind=self._kind,
                destination=destinations[i % len(destinations)],
                recogniser=self._kind.recogniser,
                source=sources[i % len(sources)],
                url_index=i % len(destinations),
            )
            for i in range(share.concurrency)
        ]
        try:
            if first_alone and not self._send_first_alone(slots[0]):
                return
            if self._rate_rps:
                self._idle_slots = slots[::-1]
            else:
                interval_ns = self._options.ramp_s * NS / self._options.concurrency
                for index, slot in enumerate(slots):
                    delay_ns = int(interval_ns * (index * share.step + share.offset))
                    self._start_at(share.origin_ns + delay_ns, slot)
            self._loop()
        finally:
            self._count_times()
            self.tally.sent = self._total - self._remaining
            # Requests that wait for a free slot are not in flight
            self.tally.in_flight_ns -= self.tally.lag.sum
            for slot in list(self._open_slots.values()):
                self._close(slot)
            self._close_lingering(NEVER_NS)
            self._poller.close()
            self._write_rows()

    def _send_first_alone(self, slot: Slot) -> bool:
        """Send one request. Its connection may be reused. Returns False if the deadline passed."""
        remaining, self._remaining, self._sending_first = self._remaining - 1, 1, True
        self._start_at(0, slot)
        is_in_time = self._loop()
        self._remaining, self._sending_first = remaining, False
        self._count_times()
        if self.tally.complete and not self.tally.errors:
            self.tally.lone_ns = self.tally.response.most
        self._start_heap.clear()
        return is_in_time

    def _loop(self) -> bool:
        """Run until nothing is left to do. Returns False if the deadline passed."""
        next_check_ns = 0
        while True:
            now = time.monotonic_ns()
            if now >= next_check_ns:
                if now >= self._deadline_ns:
                    self._stop_at_deadline(now)
                    return False
                next_check_ns = now + DEADLINE_CHECK_NS
                self._close_lingering(now)
            if now >= self._end_ns:
                self._stop_sending(now)
            wake_ns = min(next_check_ns, self._start_due(now), self._end_ns)
            if not self._remaining and not self._in_flight:
                return True
            timeout_s = max(0, wake_ns - time.monotonic_ns()) / NS
            self._handle_events(self._poller.wait(timeout_s, precise=self._rate_rps is not None))

    def _start_at(self, when_ns: int, slot: Slot) -> None:
        heapq.heappush(self._start_heap, (when_ns, next(self._tie_breakers), slot))

    def _start_due(self, now: int) -> int:
        """Send the requests that are due. Returns when the next one is due, if known."""
        if not self._has_more():
            return NEVER_NS
        if self._rate_rps:
            return self._start_arrivals(now)
        heap = self._start_heap
        while heap and heap[0][0] <= now and self._has_more():
            self._start(heapq.heappop(heap)[2], time.monotonic_ns())
        return heap[0][0] if heap else NEVER_NS

    def _has_more(self) -> bool:
        """Whether there is another request to send. Requests are not divided in advance: otherwise
        a process served more slowly would still be sending after the others are done."""
        if self._remaining or self._claim is None:
            return self._remaining > 0
        numbers = self._claim()
        if not numbers:
            self._claim = None
            return False
        self._remaining = len(numbers)
        self._total += self._remaining
        self._next_number = numbers.start
        return True

    def _start_arrivals(self, now: int) -> int:
        offsets_ns, origin_ns, due_ns = self._share.due_offsets_ns, self._share.origin_ns, NEVER_NS
        while self._next_arrival < len(offsets_ns):
            due_ns = origin_ns + offsets_ns[self._next_arrival]
            if due_ns > now:
                break
            self._next_arrival += 1
            self._due_ns.append(due_ns)
        while self._due_ns and self._idle_slots:
            self._start(self._idle_slots.pop(), self._due_ns.popleft())
        return due_ns

    def _continue(self, slot: Slot, now: int) -> None:
        """Continue with a slot whose request has ended."""
        if self._sending_first:
            return
        if not self._has_more():
            self._close(slot)
        elif not self._rate_rps:
            self._start(slot, now)
        elif self._due_ns:
            self._start(slot, self._due_ns.popleft())
        else:
            self._idle_slots.append(slot)

    def _stop_sending(self, now: int) -> None:
        """Stop at the end of the duration. Requests that are due but not sent become `unsent`."""
        if self._rate_rps:
            self._start_arrivals(now)
        self._total, self._remaining, self._end_ns = self._total - self._remaining, 0, NEVER_NS
        self._claim = None
        self.tally.unsent += len(self._due_ns)
        self._due_ns.clear()
        for slot in self._idle_slots:
            self._close(slot)

    def _start(self, slot: Slot, start_ns: int) -> None:
        """Send a request that was due at `start_ns`."""
        self._remaining -= 1
        slot.number, self._next_number = self._next_number, self._next_number + self._share.step
        slot.start_ns = slot.attempt_ns = start_ns
        slot.busy, slot.first_byte_ns = True, 0
        self._in_flight += 1
        if self._mix_kinds:
            self._choose_kind(slot)
        if self._rate_rps:
            slot.attempt_ns = time.monotonic_ns()
            self._lags_ns.append(slot.attempt_ns - start_ns)
            if len(self._lags_ns) >= MAX_UNCOUNTED_TIMES:
                self._count_times()
        if slot.sock is not None:
            slot.reused, slot.connect_ns = KEPT, start_ns
            self._send(slot)
        else:
            slot.reused = NEW
            self._connect(slot)

    def _choose_kind(self, slot: Slot) -> None:
        """Choose the kind of this slot's request from the mix."""
        for _ in range(self._order_number, slot.number, self._step):  # other processes send these
            next(self._mix_order)
        kind = slot.kind = self._mix_kinds[next(self._mix_order)]
        self._order_number = slot.number + self._step
        slot.destination, slot.recogniser = kind.destinations[slot.url_index], kind.recogniser
        if kind.tally is not None:
            kind.tally.sent += 1

    def _connect(self, slot: Slot) -> None:
        if (urls := len(self._share.destinations)) > 1:
            slot.url_index = random.randrange(urls)
            slot.destination = slot.kind.destinations[slot.url_index]
        slot.connect_ns = None
        try:
            sock = slot.sock = socket.socket(slot.destination.family, socket.SOCK_STREAM)
            slot.fd, slot.recv, slot.send = sock.fileno(), sock.recv, sock.send
            self._open_slots[slot.fd] = slot
            self._configure(sock, slot.source)
            code = sock.connect_ex(slot.destination.address)
        except OSError as error:
            code = error.errno or -1
        if code not in (0, errno.EINPROGRESS):
            self._fail(slot, cause_of_errno(code), time.monotonic_ns())
            return
        slot.unsent, slot.wants_write = self._request_bytes(slot), True
        self._poller.register(slot.fd, WRITE)
        self._send_unsent(slot)

    def _configure(self, sock: socket.socket, source: str | None) -> None:
        sock.setblocking(False)
        if self._options.keepalive:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._options.ports:
            low, high = self._options.ports
            port_range = struct.pack("=I", high << 16 | low)  # exceeds a signed int
            sock.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, port_range)
        if source is not None:
            if sys.platform == "linux":
                sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))

    def _send_unsent(self, slot: Slot) -> None:
        """Send the unsent part of a request, on a connection that may not be established yet."""
        now = time.monotonic_ns()
        try:
            sent = slot.send(slot.unsent)
        except BlockingIOError:
            return
        except OSError as error:
            if slot.connect_ns is None:
                self._fail(slot, cause_of_errno(error.errno), now)
            else:
                self._handle_disconnect(slot, "reset", now)
            return
        if slot.connect_ns is None:
            slot.connect_ns = now
            self.tally.add_connection(now - slot.attempt_ns)
        if sent == len(slot.unsent):
            slot.unsent, slot.wants_write = b"", False
            self._poller.modify(slot.fd, READ)
        else:
            slot.unsent = memoryview(slot.unsent)[sent:]
            self._poller.modify(slot.fd, READ | WRITE)

    def _request_bytes(self, slot: Slot) -> bytes:
        destination = slot.destination
        return destination.request if self._rows is None else destination.numbered(slot.number)

    def _send(self, slot: Slot) -> None:
        """Send a request on a kept-alive connection."""
        request = self._request_bytes(slot)
        try:
            sent = slot.send(request)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._handle_disconnect(slot, "reset", time.monotonic_ns())
            return
        if sent < len(request):
            slot.unsent, slot.wants_write = memoryview(request)[sent:], True
            self._poller.modify(slot.fd, READ | WRITE)
        slot.fast_path = self._fast_path and not slot.wants_write

    def _handle_events(self, events: list[tuple[int, int]]) -> None:
        """The hot loop, limited to what most responses need. A slot on the fast path waits for a
        response on a kept-alive connection and has nothing to send."""
        slots, recognised_ns, clock = self._open_slots, self._recognised_ns, time.monotonic_ns
        is_uniform, rows = not (self._rate_rps or self._mix_kinds), self._rows is not None
        last_ns = 0
        for fd, _ in events:
            slot = slots.get(fd)
            if slot is None:  # closed by an earlier event
                continue
            if not slot.fast_path:
                self._handle_slot(slot)
                continue
            try:
                data = slot.recv(RECV_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                self._handle_disconnect(slot, "reset", clock())
                continue
            now, recogniser = clock(), slot.recogniser
            is_same = data == recogniser.last_data
            response = recogniser.last_response if is_same else recogniser.recognise(data)
            if response is None or not response.keeps_connection or not self._remaining:
                self._handle_data(slot, data, now)
                continue
            recognised_ns.append(now - slot.start_ns)
            last_ns = now
            if is_uniform:
                self._remaining -= 1
                request = self._add_row(slot, response, now) if rows else slot.destination.request
                slot.start_ns = now
                try:
                    slot.send(request)
                except OSError:
                    self._handle_disconnect(slot, "reset", clock())
            else:
                self._finish_recognised(slot, response, now)
        if last_ns:
            self._note_response(last_ns)

    def _add_row(self, slot: Slot, response: ParsedResponse, now: int) -> bytes:
        """Record a recognised response. Returns the next request, which starts at `now`."""
        start_ns, number = slot.start_ns, self._next_number
        took_ns = now - start_ns
        offset_ns = start_ns - self._origin_ns
        self._row_values += (offset_ns, took_ns, took_ns, response.status, slot.number)
        slot.number, slot.connect_ns, self._next_number = number, now, number + self._step
        before, after = slot.destination.parts
        return b"%b%d%b" % (before, number, after)

    def _finish_recognised(self, slot: Slot, response: ParsedResponse, now: int) -> None:
        """Handle a recognised response in a load with a rate or a mix."""
        took_ns, route = now - slot.start_ns, slot.kind.tally
        if route is not None:
            route.add_response(took_ns)
        if self._rows is not None:
            start_ns = slot.start_ns - self._share.origin_ns
            index = () if route is None else (slot.kind.index,)
            self._row_values += (start_ns, took_ns, took_ns, response.status, slot.number, *index)
        slot.fast_path = slot.busy = False
        self._in_flight -= 1
        self._continue(slot, now)

    def _note_response(self, now: int) -> None:
        """Note that a response arrived at `now`. Flushes full buffers."""
        self.tally.last_ns = max(now, self.tally.last_ns or 0)
        if len(self._recognised_ns) + len(self._parsed_ns) >= MAX_UNCOUNTED_TIMES:
            self._count_times()
        if len(self._row_values) >= MAX_BUFFERED_VALUES:
            self._write_rows()

    def _handle_slot(self, slot: Slot) -> None:
        """Handle events of a slot that is not on the fast path."""
        if slot.wants_write:
            self._send_unsent(slot)
            if not slot.busy or slot.connect_ns is None:  # failed, or still connecting
                return
        try:
            data = slot.recv(RECV_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._handle_disconnect(slot, "reset", time.monotonic_ns())
        else:
            self._handle_data(slot, data, time.monotonic_ns())

    def _handle_data(self, slot: Slot, data: bytes, now: int) -> None:
        """Handle data that the hot loop does not handle, or the end of the stream."""
        if not slot.busy:  # the server closed an idle connection, or sent unrequested bytes
            self._close(slot)
            return
        parser, is_start = slot.parser, slot.parser is None
        slot.fast_path = False
        if is_start and (response := slot.recogniser.recognise(data)) is not None:
            slot.first_byte_ns = now
            self._recognised_ns.append(now - slot.start_ns)
            if slot.kind.tally is not None:
                slot.kind.tally.add_response(now - slot.start_ns)
            self._note_response(now)
            keeps_connection = response.keeps_connection and not slot.wants_write
            self._finish(slot, now, response.status, keeps_connection=keeps_connection)
            return
        if not data:
            if cause := "closed" if parser is None else parser.end():
                self._handle_disconnect(slot, cause, now)
            else:
                self._count_parsed(slot, now)
            return
        try:
            if parser is None:
                slot.first_byte_ns = now
                parser = slot.parser = slot.recogniser.start_parser(data)
            else:
                parser.feed(data)
        except MalformedResponse:
            self._fail(slot, "protocol", now)
            return
        if parser.complete and self._count_parsed(slot, now) and is_start:
            slot.recogniser.remember(data, parser)

    def _count_parsed(self, slot: Slot, now: int) -> bool:
        """Count a completely parsed response. Returns whether it is a success."""
        parser = slot.parser
        assert parser is not None
        cause = slot.kind.options.failure_cause(parser.status)
        if cause is None and self._options.same_body:
            body, recogniser = (parser.body_bytes, parser.checksum), slot.recogniser
            if recogniser.reference is None:
                recogniser.reference = body
                digest = parser.digest
                self.tally.body_sha256 = digest.hexdigest() if digest is not None else None
            cause = None if body == recogniser.reference else "body"
        self._parsed_ns.append((slot.first_byte_ns - slot.start_ns, now - slot.start_ns))
        self._note_response(now)
        if cause is not None:
            self.tally.errors[cause] += 1
        if (route := slot.kind.tally) is not None:
            route.add_response(
                took_ns=now - slot.start_ns,
                cause=cause,
                status=parser.status,
                body=parser.body_start,
            )
        keeps_connection = parser.keeps_connection and not slot.wants_write
        self._finish(slot, now, parser.status, cause, keeps_connection=keeps_connection)
        return cause is None

    def _finish(
        self,
        slot: Slot,
        now: int,
        status: int | None,
        cause: str | None = None,
        *,
        keeps_connection: bool,
    ) -> None:
        """Finish a request whose response is counted."""
        self._end_request(slot, end_ns=now, status=status, cause=cause)
        if not (keeps_connection and self._options.keepalive):
            self._release(slot, now)
        self._continue(slot, now)

    def _handle_disconnect(self, slot: Slot, cause: str, now: int) -> None:
        """Handle a closed connection. The server may close a kept-alive connection just as a
        request is sent: that is not a failure, and the request is sent again."""
        if not slot.busy:
            self._close(slot)
        elif slot.reused == KEPT and slot.parser is None:
            self._close(slot)
            self.tally.reconnects += 1
            slot.reused, slot.attempt_ns = RESENT, now
            self._connect(slot)
        else:
            self._fail(slot, cause, now)

    def _fail(self, slot: Slot, cause: str, now: int) -> None:
        """Count a failed request. The slot continues in the next iteration of the loop: otherwise
        other slots would starve if every connect() failed. In a timed run it pauses."""
        self.tally.end_request(cause, slot.start_ns, now)
        if slot.kind.tally is not None:
            slot.kind.tally.errors[cause] += 1
        self._end_request(slot, end_ns=None, status=None, cause=cause)
        self._close(slot)
        if self._rate_rps:
            self._idle_slots.append(slot)
        else:
            self._start_at(now + (FAILURE_PAUSE_NS if self._share.requests is None else 0), slot)

    def _end_request(
        self, slot: Slot, *, end_ns: int | None, status: int | None, cause: str | None
    ) -> None:
        """Write the row of a request that has ended."""
        if self._rows is not None:
            start_ns = slot.start_ns
            moments_ns = (slot.connect_ns, slot.first_byte_ns or None, end_ns)
            times = ("" if at_ns is None else at_ns - start_ns for at_ns in moments_ns)
            outcome = (status or "", cause or "", slot.number, slot.reused)
            route = (slot.kind.index,) if self._mix_kinds else ()
            values = (start_ns - self._share.origin_ns, *times, *outcome, *route)
            self._rows.write(",".join(map(str, values)) + "\n")
        slot.busy, slot.parser = False, None
        self._in_flight -= 1

    def _release(self, slot: Slot, now: int) -> None:
        """Close the connection after a response. If clients linger, it is closed later, and the
        slot continues on a new one."""
        if not self._options.linger_s or slot.sock is None:
            self._close(slot)
            return
        self._open_slots.pop(slot.fd, None)
        self._poller.unregister(slot.fd)
        self._linger_queue.append((now + int(self._options.linger_s * NS), slot.sock))
        slot.sock, slot.wants_write, slot.unsent, slot.fast_path = None, False, b"", False
        if len(self._linger_queue) > MAX_LINGERING_CONNECTIONS:
            self._linger_queue.popleft()[1].close()

    def _close_lingering(self, now: int) -> None:
        """Close connections that have lingered long enough."""
        while self._linger_queue and self._linger_queue[0][0] <= now:
            self._linger_queue.popleft()[1].close()

    def _close(self, slot: Slot) -> None:
        if slot.sock is not None:
            self._open_slots.pop(slot.fd, None)
            self._poller.unregister_closed(slot.fd)
            slot.sock.close()
            slot.sock, slot.wants_write, slot.unsent, slot.fast_path = None, False, b"", False

    def _write_rows(self) -> None:
        """Write the rows of recognised responses, all on kept-alive connections."""
        values, self._row_values = tuple(self._row_values), []
        if self._rows is not None:
            row_format = MIX_ROW_FORMAT if self._mix_kinds else ROW_FORMAT
            rows = len(values) // row_format.count("%")
            self._rows.write(row_format * rows % values)

    def _count_times(self) -> None:
        """Count the buffered response times and lags."""
        self.tally.lag.record_all(self._lags_ns)
        self._lags_ns.clear()
        if self._recognised_ns or self._parsed_ns:
            batch, tally = Histogram(), self.tally
            batch.record_all(self._recognised_ns)
            tally.first_byte.add(batch)
            tally.first_byte.record_all([first_byte_ns for first_byte_ns, _ in self._parsed_ns])
            batch.record_all([took_ns for _, took_ns in self._parsed_ns])
            tally.response.add(batch)
            tally.complete += batch.count
            tally.in_flight_ns += batch.sum
            self._recognised_ns.clear()
            self._parsed_ns.clear()
        for route in self.tally.routes.values():
            route.count_response_times()

    def _stop_at_deadline(self, now: int) -> None:
        """Stop at the deadline. Requests in flight fail; requests that wait become `unsent`."""
        self.tally.deadline_struck = True
        self.tally.unsent += len(self._due_ns)
        for slot in list(self._open_slots.values()):
            if slot.busy:
                cause = "connect_timeout" if slot.connect_ns is None else "timeout"
                self._fail(slot, cause, now)
