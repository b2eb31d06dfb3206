"""The engine of `fast`: one thread, one poll loop, no objects created per request.

A request costs its system calls (poll, recv, send) and as little Python as possible. A response
that arrives whole is compared with verified ones (answers); any other is parsed (http1), and a
success becomes a verified one. Rows are written in batches of some hundred responses, and response
times counted in larger ones, while the next requests are in flight.

A slot is a client, with one connection and one request at a time. In the closed loop it sends its
next request as soon as one is answered. In the open model requests have due times and go to any
free slot; if no slot is free, a request waits, and is timed from its due time. Requests not sent by
the end are `unsent`.

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

from workerlab.load.generators.answers import AnswerBody, Answers, ParsedAnswer
from workerlab.load.generators.document import AGAIN, KEPT, NEW, Tally, cause_of_errno
from workerlab.load.generators.http1 import MalformedResponse, Response
from workerlab.load.generators.request import Destination, RouteKind, of_mix, only, turns
from workerlab.load.generators.words import Words
from workerlab.numbers.histogram import Histogram

READ, WRITE = select.POLLIN, select.POLLOUT  # epoll has the same numbers for them
RECV_BYTES = 65_536  # bytes of a recv; above 128 KiB malloc maps and unmaps them for each call
MAX_BUFFERED_CELLS = 2_000  # cells of rows; writing them takes 0.1 ms
MAX_UNCOUNTED = 20_000  # response times buffered before they are counted
MAX_LINGERING = 1_000  # connections that wait to be closed; beyond that, the oldest is closed
SMALL_SEND_BYTES = 4_096  # bytes that an idle connection always accepts in one send
LOOK_NS = 250_000_000  # between checks of the deadline
PAUSE_NS = 10_000_000  # before a slot whose request failed sends another, in a timed run
FOREVER = 1 << 62
NS = 1_000_000_000
LINE = f"%d,0,%d,%d,%d,,%d,{KEPT}\n"  # a row of document.COLUMNS: a success on a kept connection
MIXED_LINE = f"{LINE.rstrip()},%d\n"
IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h: choose the port at connect()
IP_LOCAL_PORT_RANGE = 51  # linux/in.h, 6.3


@dataclass(frozen=True)
class LoadShare:
    """The part of a load that one process sends: requests `first`, `first + step`, ... With a rate,
    they are due at `moments` after the origin. `take` claims the numbers of further requests for
    this process; it returns an empty range once all are claimed."""

    words: Words
    destinations: tuple[Destination, ...]
    concurrency: int
    requests: int | None
    origin_ns: int  # of the whole run, CLOCK_MONOTONIC
    rows: str | None  # the file to write a line per request to
    first: int = 1
    step: int = 1
    offset: int = 0  # index of the process, for the ramp
    moments: Sequence[int] = ()  # nanoseconds, ascending
    mix: tuple[tuple[Destination, ...], ...] = ()  # `destinations` for each of words.mix
    reference: tuple[int, int] | None = None  # (bytes, checksum) that every body must have
    take: Callable[[], range] | None = None


@dataclass(slots=True, eq=False)
class Slot:
    """A client. Times are absolute nanoseconds."""

    kind: RouteKind  # of its request
    to: Destination
    answers: Answers  # of its kind
    source: str | None
    sock: socket.socket | None = None
    fd: int = -1
    recv: Callable[[int], bytes] = field(init=False)
    send: Callable[[bytes | memoryview], int] = field(init=False)
    start_ns: int = 0  # of its request; with a rate, when it was due
    tried_ns: int = 0  # when it was sent, or connect() was called
    connect_ns: int | None = None  # when its connection was established
    first_ns: int = 0  # first byte of its answer; 0: not yet
    number: int = 0
    place: int = 0  # index of its destination
    reused: int = NEW
    response: Response | AnswerBody | None = None  # being read
    busy: bool = False  # a request is in flight
    plain: bool = False  # busy on a kept connection, request completely sent
    waiting: bool = False  # for the connection, or to send more
    unsent: bytes | memoryview = b""  # of the request


class Poller:
    """Waits for ready sockets, with epoll if available, else with poll()."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._poll = self._epoll or select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify
        self.unregister = self._poll.unregister

    def wait(self, for_s: float, *, fine: bool) -> list[tuple[int, int]]:
        """(fd, events) of ready sockets, after at most `for_s`. `fine`: microsecond precision."""
        if self._epoll is None:
            return self._poll.poll(for_s * 1000)
        if fine:  # unlike epoll, select() does not round up to milliseconds
            select.select([self._epoll.fileno()], [], [], for_s)
            for_s = 0
        return self._epoll.poll(for_s)

    def forget(self, fd: int) -> None:
        """Only poll() needs this: epoll drops closed files by itself."""
        if self._epoll is None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()


class Engine:
    """Sends a share of a load. `tally`: its results; `rows`: file to write a row per request to."""

    def __init__(self, share: LoadShare, rows: TextIO | None = None) -> None:
        self.tally = Tally(origin_ns=share.origin_ns)
        self._share, self._words, self._rows = share, share.words, rows
        self._rate = share.words.rate_rps
        self._poll = Poller()
        self._open: dict[int, Slot] = {}
        self._quota = self._left = FOREVER if share.requests is None else share.requests
        self._number, self._step, self._origin_ns = share.first, share.step, share.origin_ns
        self._take, self._drawn = share.take, share.first
        words = share.words
        self._kind = only(words, share.destinations)
        self._kind.answers.reference = share.reference
        self._mix = of_mix(words, share.mix, self.tally)
        self._turns = turns(words, share.first, share.step)
        # Whether connections are kept and requests fit into one send
        self._plain = words.keepalive and all(
            len(to.request) <= SMALL_SEND_BYTES for to in share.destinations
        )
        self._took: list[int] = []  # response times of answers received whole, not yet counted
        self._pieces: list[tuple[int, int]] = []  # (first byte, response) times of other answers
        self._lags: list[int] = []  # not yet counted
        self._cells: list[int] = []  # values for LINE, row after row, not yet written
        self._later: list[tuple[int, int, Slot]] = []  # heap of (start, tie-breaker, slot)
        self._ties = itertools.count()
        self._idle: list[Slot] = []
        self._lingering: deque[tuple[int, socket.socket]] = deque()  # (closing time, socket)
        self._due: deque[int] = deque()  # due times of requests that wait for a free slot
        self._arrived = 0
        self._under_way = 0
        self._alone = False
        duration_s = words.duration_s
        self._ends_ns = FOREVER if duration_s is None else share.origin_ns + int(duration_s * NS)
        self._struck_ns = share.origin_ns + int(words.deadline_s * NS)

    @property
    def reference(self) -> tuple[int, int] | None:
        """(bytes, checksum) of the first body, if the others are compared with it."""
        return self._kind.answers.reference

    def run(self, *, lone: bool = False) -> None:
        """Run until the last request has ended, or until the deadline. `lone`: send the first
        request alone, before the others."""
        share, places = self._share, self._share.destinations
        sources = self._words.sources or (None,)
        slots = [
            Slot(
                kind=self._kind,
                to=places[i % len(places)],
                answers=self._kind.answers,
                source=sources[i % len(sources)],
                place=i % len(places),
            )
            for i in range(share.concurrency)
        ]
        try:
            if lone and not self._alone_first(slots[0]):
                return
            if self._rate:
                self._idle = slots[::-1]
            else:
                interval_ns = self._words.ramp_s * NS / self._words.concurrency
                for index, slot in enumerate(slots):
                    delay_ns = int(interval_ns * (index * share.step + share.offset))
                    self._begin_at(share.origin_ns + delay_ns, slot)
            self._loop()
        finally:
            self._count()
            self.tally.sent = self._quota - self._left
            self.tally.in_flight_ns -= self.tally.lag.sum  # waiting is not in flight
            for slot in list(self._open.values()):
                self._close(slot)
            self._close_late(FOREVER)
            self._poll.close()
            self._write()

    def _alone_first(self, slot: Slot) -> bool:
        """Send one request, on a connection that may be reused; False: the deadline has passed."""
        remaining, self._left, self._alone = self._left - 1, 1, True
        self._begin_at(0, slot)
        in_time = self._loop()
        self._left, self._alone = remaining, False
        self._count()
        if self.tally.complete and not self.tally.errors:
            self.tally.lone_ns = self.tally.response.most
        self._later.clear()
        return in_time

    def _loop(self) -> bool:
        """Run until nothing is left to do; False: the deadline has passed."""
        look_ns = 0
        while True:
            now = time.monotonic_ns()
            if now >= look_ns:
                if now >= self._struck_ns:
                    self._strike(now)
                    return False
                look_ns = now + LOOK_NS
                self._close_late(now)
            if now >= self._ends_ns:
                self._stop_sending(now)
            wake_ns = min(look_ns, self._begin_due(now), self._ends_ns)
            if not self._left and not self._under_way:
                return True
            timeout_s = max(0, wake_ns - time.monotonic_ns()) / NS
            self._serve(self._poll.wait(timeout_s, fine=self._rate is not None))

    def _begin_at(self, when_ns: int, slot: Slot) -> None:
        heapq.heappush(self._later, (when_ns, next(self._ties), slot))

    def _begin_due(self, now: int) -> int:
        """Send the requests that are due. Returns when the next one is due, if known."""
        if not self._more():
            return FOREVER
        if self._rate:
            return self._arrive(now)
        later = self._later
        while later and later[0][0] <= now and self._more():
            self._begin(heapq.heappop(later)[2], time.monotonic_ns())
        return later[0][0] if later else FOREVER

    def _more(self) -> bool:
        """Whether there is another request to send. Requests are not divided in advance: a process
        that is served more slowly would still be sending when the others are done."""
        if self._left or self._take is None:
            return self._left > 0
        numbers = self._take()
        if not numbers:
            self._take = None
            return False
        self._left = len(numbers)
        self._quota += self._left
        self._number = numbers.start
        return True

    def _arrive(self, now: int) -> int:
        moments, origin_ns, due_ns = self._share.moments, self._share.origin_ns, FOREVER
        while self._arrived < len(moments):
            due_ns = origin_ns + moments[self._arrived]
            if due_ns > now:
                break
            self._arrived += 1
            self._due.append(due_ns)
        while self._due and self._idle:
            self._begin(self._idle.pop(), self._due.popleft())
        return due_ns

    def _next(self, slot: Slot, now: int) -> None:
        """Continue with a slot whose request has ended."""
        if self._alone:
            return
        if not self._more():
            self._close(slot)
        elif not self._rate:
            self._begin(slot, now)
        elif self._due:
            self._begin(slot, self._due.popleft())
        else:
            self._idle.append(slot)

    def _stop_sending(self, now: int) -> None:
        """Stop at the end of the duration. Requests that are due but not sent become `unsent`."""
        if self._rate:
            self._arrive(now)
        self._quota, self._left, self._ends_ns = self._quota - self._left, 0, FOREVER
        self._take = None
        self.tally.unsent += len(self._due)
        self._due.clear()
        for slot in self._idle:
            self._close(slot)

    def _begin(self, slot: Slot, start_ns: int) -> None:
        """Send a request that is, or was, due at `start_ns`."""
        self._left -= 1
        slot.number, self._number = self._number, self._number + self._share.step
        slot.start_ns = slot.tried_ns = start_ns
        slot.busy, slot.first_ns = True, 0
        self._under_way += 1
        if self._mix:
            self._draw(slot)
        if self._rate:
            slot.tried_ns = time.monotonic_ns()
            self._lags.append(slot.tried_ns - start_ns)
            if len(self._lags) >= MAX_UNCOUNTED:
                self._count()
        if slot.sock is not None:
            slot.reused, slot.connect_ns = KEPT, start_ns
            self._send(slot)
        else:
            slot.reused = NEW
            self._connect(slot)

    def _draw(self, slot: Slot) -> None:
        """Choose the kind of this slot's request from the mix."""
        for _ in range(self._drawn, slot.number, self._step):  # other processes send these
            next(self._turns)
        kind = slot.kind = self._mix[next(self._turns)]
        self._drawn = slot.number + self._step
        slot.to, slot.answers = kind.to[slot.place], kind.answers
        if kind.tally is not None:
            kind.tally.sent += 1

    def _connect(self, slot: Slot) -> None:
        if (places := len(self._share.destinations)) > 1:
            slot.place = random.randrange(places)
            slot.to = slot.kind.to[slot.place]
        slot.connect_ns = None
        try:
            sock = slot.sock = socket.socket(slot.to.family, socket.SOCK_STREAM)
            slot.fd, slot.recv, slot.send = sock.fileno(), sock.recv, sock.send
            self._open[slot.fd] = slot
            self._prepare(sock, slot.source)
            code = sock.connect_ex(slot.to.address)
        except OSError as error:
            code = error.errno or -1
        if code not in (0, errno.EINPROGRESS):
            self._failed(slot, cause_of_errno(code), time.monotonic_ns())
            return
        slot.unsent, slot.waiting = self._request(slot), True
        self._poll.register(slot.fd, WRITE)
        self._push(slot)

    def _prepare(self, sock: socket.socket, source: str | None) -> None:
        sock.setblocking(False)
        if self._words.keepalive:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._words.ports:
            low, high = self._words.ports
            port_range = struct.pack("=I", high << 16 | low)  # exceeds a signed int
            sock.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, port_range)
        if source is not None:
            if sys.platform == "linux":
                sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))

    def _push(self, slot: Slot) -> None:
        """Send the unsent part of a request, on a connection that may not be established yet."""
        now = time.monotonic_ns()
        try:
            sent = slot.send(slot.unsent)
        except BlockingIOError:
            return
        except OSError as error:
            if slot.connect_ns is None:
                self._failed(slot, cause_of_errno(error.errno), now)
            else:
                self._lost(slot, "reset", now)
            return
        if slot.connect_ns is None:
            slot.connect_ns = now
            self.tally.connected(now - slot.tried_ns)
        if sent == len(slot.unsent):
            slot.unsent, slot.waiting = b"", False
            self._poll.modify(slot.fd, READ)
        else:
            slot.unsent = memoryview(slot.unsent)[sent:]
            self._poll.modify(slot.fd, READ | WRITE)

    def _request(self, slot: Slot) -> bytes:
        return slot.to.request if self._rows is None else slot.to.named(slot.number)

    def _send(self, slot: Slot) -> None:
        """Send a request on a kept connection."""
        request = self._request(slot)
        try:
            sent = slot.send(request)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lost(slot, "reset", time.monotonic_ns())
            return
        if sent < len(request):
            slot.unsent, slot.waiting = memoryview(request)[sent:], True
            self._poll.modify(slot.fd, READ | WRITE)
        slot.plain = self._plain and not slot.waiting

    def _serve(self, events: list[tuple[int, int]]) -> None:
        """The hot loop, limited to what most answers need. A `plain` slot waits for an answer on a
        kept connection and has nothing to send."""
        slots, took, clock = self._open, self._took, time.monotonic_ns
        direct, rows = not (self._rate or self._mix), self._rows is not None
        last_ns = bodies = 0
        for fd, _ in events:
            slot = slots.get(fd)
            if slot is None:  # closed by an earlier event
                continue
            if not slot.plain:
                self._look(slot)
                continue
            try:
                data = slot.recv(RECV_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                self._lost(slot, "reset", clock())
                continue
            now, answers = clock(), slot.answers
            same = data == answers.last_data
            answer = answers.last_answer if same else answers.recognised(data)
            if answer is None or not answer.keeps or not self._left:
                self._read(slot, data, now)
                continue
            took.append(now - slot.start_ns)
            last_ns = now
            bodies += answer.body_bytes
            if direct:
                self._left -= 1
                request = self._numbered(slot, answer, now) if rows else slot.to.request
                slot.start_ns = now
                try:
                    slot.send(request)
                except OSError:
                    self._lost(slot, "reset", clock())
            else:
                self._follow(slot, answer, now)
        if last_ns:
            self._served(last_ns, bodies)

    def _numbered(self, slot: Slot, answer: ParsedAnswer, now: int) -> bytes:
        """Record a recognised answer. Returns the bytes of the next request, sent `now`."""
        start_ns, number = slot.start_ns, self._number
        took_ns = now - start_ns
        offset_ns = start_ns - self._origin_ns
        self._cells += (offset_ns, took_ns, took_ns, answer.status, slot.number)
        slot.number, slot.connect_ns, self._number = number, now, number + self._step
        before, after = slot.to.parts
        return b"%b%d%b" % (before, number, after)

    def _follow(self, slot: Slot, answer: ParsedAnswer, now: int) -> None:
        """Handle a recognised answer of a load with a rate or a mix."""
        took_ns, route = now - slot.start_ns, slot.kind.tally
        if route is not None:
            route.recognised(took_ns)
        if self._rows is not None:
            start_ns = slot.start_ns - self._share.origin_ns
            place = () if route is None else (slot.kind.place,)
            self._cells += (start_ns, took_ns, took_ns, answer.status, slot.number, *place)
        slot.plain = slot.busy = False
        self._under_way -= 1
        self._next(slot, now)

    def _served(self, now: int, body_bytes: int) -> None:
        """Count the bodies of answers, the last of which arrived `now`; flush full buffers."""
        self.tally.body_bytes += body_bytes
        self.tally.last_ns = max(now, self.tally.last_ns or 0)
        if len(self._took) + len(self._pieces) >= MAX_UNCOUNTED:
            self._count()
        if len(self._cells) >= MAX_BUFFERED_CELLS:
            self._write()

    def _look(self, slot: Slot) -> None:
        """Handle events of a slot that is not plain."""
        if slot.waiting:
            self._push(slot)
            if not slot.busy or slot.connect_ns is None:  # failed, or still connecting
                return
        try:
            data = slot.recv(RECV_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._lost(slot, "reset", time.monotonic_ns())
        else:
            self._read(slot, data, time.monotonic_ns())

    def _read(self, slot: Slot, data: bytes, now: int) -> None:
        """Handle bytes that the hot loop does not, or the end of the stream."""
        if not slot.busy:  # the server closed an idle connection, or sent unrequested bytes
            self._close(slot)
            return
        response, begins = slot.response, slot.response is None
        slot.plain = False
        if begins and (answer := slot.answers.recognised(data)) is not None:
            slot.first_ns = now
            self._took.append(now - slot.start_ns)
            if slot.kind.tally is not None:
                slot.kind.tally.recognised(now - slot.start_ns)
            self._served(now, answer.body_bytes)
            self._over(slot, now, answer.status, keeps=answer.keeps and not slot.waiting)
            return
        if not data:
            if cause := "closed" if response is None else response.end():
                self._lost(slot, cause, now)
            else:
                self._answered(slot, now)
            return
        try:
            if response is None:
                slot.first_ns = now
                response = slot.response = slot.answers.begun(data)
            else:
                response.feed(data)
        except MalformedResponse:
            self._failed(slot, "protocol", now)
            return
        if response.complete and self._answered(slot, now) and begins:
            slot.answers.remember(data, response)

    def _answered(self, slot: Slot, now: int) -> bool:
        """Count a complete response. Returns whether it is a success."""
        response = slot.response
        assert response is not None
        cause = slot.kind.words.judge(response.status)
        if cause is None and self._words.same_body:
            body, answers = (response.body_bytes, response.checksum), slot.answers
            if answers.reference is None:
                answers.reference = body
                digest = response.digest
                self.tally.body_sha256 = digest.hexdigest() if digest is not None else None
            cause = None if body == answers.reference else "body"
        self._pieces.append((slot.first_ns - slot.start_ns, now - slot.start_ns))
        self._served(now, response.body_bytes)
        if cause is not None:
            self.tally.errors[cause] += 1
        if (route := slot.kind.tally) is not None:
            route.done(now - slot.start_ns, cause, response.status, response.begin)
        keeps = response.keeps and not slot.waiting
        self._over(slot, now, response.status, cause, keeps=keeps)
        return cause is None

    def _over(
        self, slot: Slot, now: int, status: int | None, cause: str | None = None, *, keeps: bool
    ) -> None:
        """Finish a request whose answer is counted."""
        self._ended(slot, now, status, cause)
        if not (keeps and self._words.keepalive):
            self._part(slot, now)
        self._next(slot, now)

    def _lost(self, slot: Slot, cause: str, now: int) -> None:
        """Handle a closed connection. The server may close a kept connection just as a request is
        sent: that is not a failure, and the request is sent again."""
        if not slot.busy:
            self._close(slot)
        elif slot.reused == KEPT and slot.response is None:
            self._close(slot)
            self.tally.reconnects += 1
            slot.reused, slot.tried_ns = AGAIN, now
            self._connect(slot)
        else:
            self._failed(slot, cause, now)

    def _failed(self, slot: Slot, cause: str, now: int) -> None:
        """Count a failed request. The slot continues in the next iteration of the loop: otherwise
        other slots would starve if every connect() failed. In a timed run it waits PAUSE_NS."""
        self.tally.failed(cause, slot.start_ns, now)
        if slot.kind.tally is not None:
            slot.kind.tally.errors[cause] += 1
        self._ended(slot, None, None, cause)
        self._close(slot)
        if self._rate:
            self._idle.append(slot)
        else:
            self._begin_at(now + (PAUSE_NS if self._share.requests is None else 0), slot)

    def _ended(self, slot: Slot, end_ns: int | None, status: int | None, cause: str | None) -> None:
        """Write the row of a request that has ended."""
        if self._rows is not None:
            start_ns, moments = slot.start_ns, (slot.connect_ns, slot.first_ns or None, end_ns)
            times = ("" if moment is None else moment - start_ns for moment in moments)
            outcome = (status or "", cause or "", slot.number, slot.reused)
            route = (slot.kind.place,) if self._mix else ()
            cells = (start_ns - self._share.origin_ns, *times, *outcome, *route)
            self._rows.write(",".join(map(str, cells)) + "\n")
        slot.busy, slot.response = False, None
        self._under_way -= 1

    def _part(self, slot: Slot, now: int) -> None:
        """Close the connection after an answer. If clients linger, it is closed later, and the
        slot continues on a new one."""
        if not self._words.linger_s or slot.sock is None:
            self._close(slot)
            return
        self._open.pop(slot.fd, None)
        self._poll.unregister(slot.fd)
        self._lingering.append((now + int(self._words.linger_s * NS), slot.sock))
        slot.sock, slot.waiting, slot.unsent, slot.plain = None, False, b"", False
        if len(self._lingering) > MAX_LINGERING:
            self._lingering.popleft()[1].close()

    def _close_late(self, now: int) -> None:
        """Close connections that have lingered long enough."""
        while self._lingering and self._lingering[0][0] <= now:
            self._lingering.popleft()[1].close()

    def _close(self, slot: Slot) -> None:
        if slot.sock is not None:
            self._open.pop(slot.fd, None)
            self._poll.forget(slot.fd)
            slot.sock.close()
            slot.sock, slot.waiting, slot.unsent, slot.plain = None, False, b"", False

    def _write(self) -> None:
        """Write the rows of recognised answers, all on kept connections."""
        cells, self._cells = tuple(self._cells), []
        if self._rows is not None:
            line = MIXED_LINE if self._mix else LINE
            self._rows.write(line * (len(cells) // line.count("%")) % cells)

    def _count(self) -> None:
        """Count the buffered response times, and how late requests were sent."""
        self.tally.lag.record_all(self._lags)
        self._lags.clear()
        if self._took or self._pieces:
            batch, tally = Histogram(), self.tally
            batch.record_all(self._took)
            tally.first_byte.add(batch)
            tally.first_byte.record_all([first_ns for first_ns, _ in self._pieces])
            batch.record_all([took_ns for _, took_ns in self._pieces])
            tally.response.add(batch)
            tally.complete += batch.count
            tally.in_flight_ns += batch.sum
            self._took.clear()
            self._pieces.clear()
        for route in self.tally.routes.values():
            route.count()

    def _strike(self, now: int) -> None:
        """Stop at the deadline. Requests in flight fail; requests that wait become `unsent`."""
        self.tally.deadline_struck = True
        self.tally.unsent += len(self._due)
        for slot in list(self._open.values()):
            if slot.busy:
                cause = "connect_timeout" if slot.connect_ns is None else "timeout"
                self._failed(slot, cause, now)
