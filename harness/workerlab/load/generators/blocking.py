"""Load by `requests`: a unit is a thread with a session and a connection of its own.

`first_byte` is the moment when the library hands out the answer: its head has been read. A thread
that blocks cannot be ended: at the deadline its account is closed instead. What it has under way is
a timeout, and what it sees after that counts no more.
"""

import http.client
import random
import threading
import time
from collections.abc import Iterator, Sequence

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from workerlab.load.generators.document import Tally, cause_of_errno
from workerlab.load.generators.request import header_lines
from workerlab.load.generators.share import Share
from workerlab.load.generators.words import Words

BODILESS = (204, 304)
HERE = threading.local()  # `unit`: whose request is under way, in this thread


class Timed(HTTPConnection):
    """Tells the unit of its thread when it was made."""

    def connect(self) -> None:
        start_ns = time.monotonic_ns()
        super().connect()
        HERE.unit.connected(self, time.monotonic_ns() - start_ns)


urllib3.HTTPConnectionPool.ConnectionCls = Timed  # of all in this program


def load(share: Share, units: Sequence[int]) -> Tally:
    """These units until nothing is left to send, or the deadline."""
    ready = threading.Event()  # a thread that works already would hold up the start of the others
    mine = [Unit(share, number, ready) for number in units]
    threads = [threading.Thread(target=unit.run, daemon=True) for unit in mine]
    for thread in threads:
        thread.start()
    share.begin()
    ready.set()
    for thread in threads:
        thread.join(share.left_s())
    tally = Tally(deadline_struck=any(thread.is_alive() for thread in threads))
    for unit in mine:
        tally.add(unit.close())
    return tally


class Unit:
    """Sends the next request when the last one has ended."""

    def __init__(self, share: Share, number: int, ready: threading.Event) -> None:
        self._share, self._number, self._ready = share, number, ready
        self._tally = Tally()
        self._lock = threading.Lock()  # of the tally, and of the two below
        self._start_ns: int | None = None  # of the request under way
        self._closed = False
        self._connection: HTTPConnection | None = None
        self._connected = False  # for the request under way, as none was kept
        self._session = requests.Session()
        self._session.trust_env = False
        urls = share.words.urls
        # A connection is kept per server
        self._session.mount("http://", HTTPAdapter(pool_connections=len(urls), pool_maxsize=1))
        self._requests = [_prepared(share.words, url) for url in urls]

    def run(self) -> None:
        HERE.unit = self
        self._ready.wait()
        if wait_s := self._share.wait_s(self._number):
            time.sleep(wait_s)
        while self._share.take() and (start_ns := self._begin()):
            cause = self._ask(start_ns)
            if not self._connected and cause in ("closed", "reset"):
                with self._lock:  # the server closed the kept connection meanwhile: not its fault
                    self._tally.reconnects += 1
                cause = self._ask(start_ns)
            if cause is not None:
                with self._lock:
                    self._tally.failed(cause, start_ns, time.monotonic_ns())
                    self._start_ns = None
        self._session.close()

    def close(self) -> Tally:
        """What the unit has seen until now; what it sees from now on counts no more."""
        with self._lock:
            seen, self._tally, self._closed = self._tally, Tally(), True
            if self._start_ns is not None:
                seen.failed("timeout", self._start_ns, time.monotonic_ns())
            return seen

    def connected(self, connection: HTTPConnection, took_ns: int) -> None:
        self._connection, self._connected = connection, True
        with self._lock:
            self._tally.connected(took_ns)

    def _begin(self) -> int | None:
        """When the next request begins; None: it is too late for another one."""
        with self._lock:
            if self._closed:
                return None
            self._connected, self._start_ns = False, time.monotonic_ns()
            self._tally.begin(self._start_ns)
            return self._start_ns

    def _ask(self, start_ns: int) -> str | None:
        """None once the answer is there and counted, else why there is none."""
        try:
            response = self._session.send(
                random.choice(self._requests), stream=True, allow_redirects=False
            )
            first_byte_ns = time.monotonic_ns()
            body = response.content
            end_ns = time.monotonic_ns()
        except Exception as error:  # the libraries let through what their parsers raise
            self._drop()
            if (cause := cause_of(error)) == "exception":
                self._tally.exception(error)
            return cause
        if not self._share.words.keepalive:
            self._drop()
        if _cut(response, body):
            return "truncated"
        wrong = self._share.judge(response.status_code, body)
        with self._lock:
            self._tally.done(start_ns, first_byte_ns, end_ns, wrong, len(body))
            self._start_ns = None
        return None

    def _drop(self) -> None:
        """Close the connection, whatever the server thinks of it."""
        if self._connection is not None:
            self._connection.close()


def _prepared(words: Words, url: str) -> requests.PreparedRequest:
    """Header lines of the same name become one, by commas (RFC 9110, 5.3)."""
    headers: dict[str, str] = {}
    for name, value in header_lines(words):
        same = next((known for known in headers if known.lower() == name.lower()), name)
        headers[same] = f"{headers[same]}, {value}" if same in headers else value
    return requests.Request(words.method, url, headers=headers, data=words.body).prepare()


def _cut(response: requests.Response, body: bytes) -> bool:
    """Whether the connection ended within the head, which the library takes for the end of an
    answer without a length. One that really is empty and says so by nothing else is rare."""
    raw, head = response.raw, response.headers
    if body or response.request.method == "HEAD" or response.status_code in BODILESS:
        return False
    return raw.length_remaining is None and "Transfer-Encoding" not in head


def cause_of(error: BaseException) -> str:
    """The name of what is behind an error of requests, or of the libraries below it."""
    if isinstance(error, requests.ConnectTimeout):
        return "connect_timeout"
    if isinstance(error, requests.Timeout):
        return "timeout"
    below = list(_below(error))
    if any(isinstance(one, http.client.RemoteDisconnected) for one in below):
        return "closed"
    for one in below:
        if isinstance(one, urllib3.exceptions.InvalidChunkLength) and one.length:
            return "protocol"
        if isinstance(one, http.client.IncompleteRead):
            return "truncated"
    if any(isinstance(one, urllib3.exceptions.ReadTimeoutError | TimeoutError) for one in below):
        return "timeout"
    if numbers := [one.errno for one in below if isinstance(one, OSError) and one.errno]:
        return cause_of_errno(numbers[-1])
    garbage = (http.client.HTTPException, urllib3.exceptions.HTTPError, ValueError)
    return "protocol" if any(isinstance(one, garbage) for one in below) else "exception"


def _below(error: BaseException, depth: int = 6) -> Iterator[BaseException]:
    """The error and all that it wraps, in whatever way its library does so."""
    yield error
    wrapped = (*error.args, getattr(error, "reason", None), error.__cause__, error.__context__)
    for one in wrapped if depth else ():
        if isinstance(one, BaseException):
            yield from _below(one, depth - 1)
