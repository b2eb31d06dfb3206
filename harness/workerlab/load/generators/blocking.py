"""Load from threads, with `requests`: each unit is a thread with its own session and connection.

`first_byte` is when the library returns the response, after reading its head. A blocked thread
cannot be stopped, so at the deadline its tally is closed: the request in flight counts as a
timeout, and later results are ignored.
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

from workerlab.load.generators.document import Tally
from workerlab.load.generators.format import cause_of_errno
from workerlab.load.generators.options import LoadOptions
from workerlab.load.generators.request import header_lines
from workerlab.load.generators.share import SharedState

BODILESS_STATUSES = (204, 304)
CURRENT = threading.local()  # `unit`: the unit that the current thread runs


class TimedConnection(HTTPConnection):
    """Reports the connect time to the unit that its thread runs."""

    def connect(self) -> None:
        start_ns = time.monotonic_ns()
        super().connect()
        CURRENT.unit.on_connect(self, time.monotonic_ns() - start_ns)


urllib3.HTTPConnectionPool.ConnectionCls = TimedConnection  # process-wide


def load(shared: SharedState, units: Sequence[int]) -> Tally:
    """Run these units until no request is left, or until the deadline."""
    ready = threading.Event()  # without it, the first threads would delay the start of the others
    own_units = [ThreadUnit(shared, number, ready) for number in units]
    threads = [threading.Thread(target=unit.run, daemon=True) for unit in own_units]
    for thread in threads:
        thread.start()
    shared.begin()
    ready.set()
    for thread in threads:
        thread.join(shared.remaining_s())
    tally = Tally(deadline_struck=any(thread.is_alive() for thread in threads))
    for unit in own_units:
        tally.add(unit.close())
    return tally


class ThreadUnit:
    """A closed-loop client: sends one request at a time."""

    def __init__(self, shared: SharedState, number: int, ready: threading.Event) -> None:
        self._shared, self._number, self._ready = shared, number, ready
        self._tally = Tally()
        self._lock = threading.Lock()  # for the tally and the next two fields
        self._start_ns: int | None = None  # of the request in flight
        self._closed = False
        self._connection: HTTPConnection | None = None
        self._has_new_connection = False  # of the request in flight
        self._session = requests.Session()
        self._session.trust_env = False
        urls = shared.options.urls
        # Keep one connection per server
        self._session.mount("http://", HTTPAdapter(pool_connections=len(urls), pool_maxsize=1))
        self._requests = [_prepared(shared.options, url) for url in urls]

    def run(self) -> None:
        CURRENT.unit = self
        self._ready.wait()
        if wait_s := self._shared.wait_s(self._number):
            time.sleep(wait_s)
        while self._shared.claim() and (start_ns := self._begin()):
            cause = self._send(start_ns)
            if not self._has_new_connection and cause in ("closed", "reset"):
                with self._lock:  # the server may close an idle connection
                    self._tally.reconnects += 1
                cause = self._send(start_ns)
            if cause is not None:
                with self._lock:
                    self._tally.end_request(cause, start_ns, time.monotonic_ns())
                    self._start_ns = None
        self._session.close()

    def close(self) -> Tally:
        """Return the tally of the unit, and ignore later results."""
        with self._lock:
            tally, self._tally, self._closed = self._tally, Tally(), True
            if self._start_ns is not None:
                tally.end_request("timeout", self._start_ns, time.monotonic_ns())
            return tally

    def on_connect(self, connection: HTTPConnection, took_ns: int) -> None:
        self._connection, self._has_new_connection = connection, True
        with self._lock:
            self._tally.add_connection(took_ns)

    def _begin(self) -> int | None:
        """Begin the next request. Returns its start time, or None once the unit is closed."""
        with self._lock:
            if self._closed:
                return None
            self._has_new_connection, self._start_ns = False, time.monotonic_ns()
            self._tally.begin_request(self._start_ns)
            return self._start_ns

    def _send(self, start_ns: int) -> str | None:
        """Send a request. Returns None if its complete response was counted, else the cause."""
        try:
            response = self._session.send(
                random.choice(self._requests), stream=True, allow_redirects=False
            )
            first_byte_ns = time.monotonic_ns()
            body = response.content
            end_ns = time.monotonic_ns()
        except Exception as error:  # the libraries' parsers may raise anything
            self._close_connection()
            if (cause := cause_of(error)) == "exception":
                self._tally.note_exception(error)
            return cause
        if not self._shared.options.keepalive:
            self._close_connection()
        if _is_truncated_in_head(response, body):
            return "truncated"
        failure = self._shared.failure_cause(response.status_code, body)
        with self._lock:
            self._tally.add_response(
                start_ns=start_ns,
                first_byte_ns=first_byte_ns,
                end_ns=end_ns,
                cause=failure,
            )
            self._start_ns = None
        return None

    def _close_connection(self) -> None:
        """Close the connection, even if the server would keep it."""
        if self._connection is not None:
            self._connection.close()


def _prepared(options: LoadOptions, url: str) -> requests.PreparedRequest:
    """The request for a URL. Joins headers of the same name with commas (RFC 9110, 5.3)."""
    headers: dict[str, str] = {}
    for name, value in header_lines(options):
        key = next((other for other in headers if other.lower() == name.lower()), name)
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return requests.Request(options.method, url, headers=headers, data=options.body).prepare()


def _is_truncated_in_head(response: requests.Response, body: bytes) -> bool:
    """Whether the connection closed before the end of the head. The library then returns an empty
    response without a length; genuine responses like that are rare."""
    raw, head = response.raw, response.headers
    if body or response.request.method == "HEAD" or response.status_code in BODILESS_STATUSES:
        return False
    return raw.length_remaining is None and "Transfer-Encoding" not in head


def cause_of(error: BaseException) -> str:
    """The cause of failure for an error raised by `requests` or the libraries it uses."""
    if isinstance(error, requests.ConnectTimeout):
        return "connect_timeout"
    if isinstance(error, requests.Timeout):
        return "timeout"
    errors = list(_with_causes(error))
    if any(isinstance(inner, http.client.RemoteDisconnected) for inner in errors):
        return "closed"
    for inner in errors:
        if isinstance(inner, urllib3.exceptions.InvalidChunkLength) and inner.length:
            return "protocol"
        if isinstance(inner, http.client.IncompleteRead):
            return "truncated"
    timeouts = (urllib3.exceptions.ReadTimeoutError, TimeoutError)
    if any(isinstance(inner, timeouts) for inner in errors):
        return "timeout"
    if errnos := [inner.errno for inner in errors if isinstance(inner, OSError) and inner.errno]:
        return cause_of_errno(errnos[-1])
    parse_errors = (http.client.HTTPException, urllib3.exceptions.HTTPError, ValueError)
    return "protocol" if any(isinstance(inner, parse_errors) for inner in errors) else "exception"


def _with_causes(error: BaseException, depth: int = 6) -> Iterator[BaseException]:
    """The error and all errors it wraps: as an argument, reason, cause or context."""
    yield error
    candidates = (*error.args, getattr(error, "reason", None), error.__cause__, error.__context__)
    for inner in candidates if depth else ():
        if isinstance(inner, BaseException):
            yield from _with_causes(inner, depth - 1)
