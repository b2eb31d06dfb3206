"""Load from coroutines in one process, with aiohttp: one session, one connection per coroutine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp import http_exceptions
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from yarl import URL

from workerlab.load.generators.document import Tally
from workerlab.load.generators.format import cause_of_errno
from workerlab.load.generators.options import LoadOptions
from workerlab.load.generators.request import header_lines
from workerlab.load.generators.share import SharedState

UNIT: ContextVar[CoroutineUnit] = ContextVar("UNIT")  # the unit that the current task runs


def load(shared: SharedState, units: Sequence[int]) -> Tally:
    """Run these units until no request is left, or until the deadline."""
    return asyncio.run(_load(shared, units))


async def _load(shared: SharedState, units: Sequence[int]) -> Tally:
    tally = Tally()
    shared.begin()
    async with _session(shared.options, len(units)) as session:
        try:
            async with asyncio.timeout(shared.remaining_s()), asyncio.TaskGroup() as group:
                for number in units:
                    group.create_task(CoroutineUnit(shared, tally, session).run(number))
        except TimeoutError:
            tally.deadline_struck = True
    return tally


class Connector(aiohttp.TCPConnector):
    """Reports each new connection to the unit that waits for it. aiohttp's tracing could do the
    same, but would take a fifth of the CPU of each request."""

    async def _create_connection(self, *args: Any, **kwargs: Any) -> ResponseHandler:
        start_ns = time.monotonic_ns()
        handler = await super()._create_connection(*args, **kwargs)
        UNIT.get().on_connect(time.monotonic_ns() - start_ns)
        return handler


def _session(options: LoadOptions, connections: int) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=Connector(limit=connections, force_close=not options.keepalive),
        timeout=aiohttp.ClientTimeout(total=None),
        headers=CIMultiDict(header_lines(options)),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
    # aiohttp silently retries requests that got no response, even on new connections
    session._retry_connection = False
    return session


class CoroutineUnit:
    """A closed-loop client: sends one request at a time. All units of a process share a tally."""

    def __init__(self, shared: SharedState, tally: Tally, session: aiohttp.ClientSession) -> None:
        self._shared, self._tally, self._session = shared, tally, session
        self._urls = [URL(url, encoded=True) for url in shared.options.urls]
        self._has_new_connection = False  # of the request in flight

    async def run(self, number: int) -> None:
        UNIT.set(self)
        if wait_s := self._shared.wait_s(number):
            await asyncio.sleep(wait_s)
        while self._shared.claim():
            await self._send_next()

    def on_connect(self, took_ns: int) -> None:
        self._has_new_connection = True
        self._tally.add_connection(took_ns)

    async def _send_next(self) -> None:
        start_ns = time.monotonic_ns()
        self._has_new_connection = False
        self._tally.begin_request(start_ns)
        try:
            cause = await self._send(start_ns)
            if cause in ("closed", "reset") and not self._has_new_connection:
                self._tally.reconnects += 1  # the server may close an idle connection
                cause = await self._send(start_ns)
        except asyncio.CancelledError:  # the deadline has passed
            self._tally.end_request("timeout", start_ns, time.monotonic_ns())
            raise
        if cause is not None:
            self._tally.end_request(cause, start_ns, time.monotonic_ns())

    async def _send(self, start_ns: int) -> str | None:
        """Send a request. Returns None if its complete response was counted, else the cause."""
        options = self._shared.options
        try:
            async with self._session.request(
                options.method, random.choice(self._urls), data=options.body, allow_redirects=False
            ) as response:
                first_byte_ns = time.monotonic_ns()
                body = await response.read()
                end_ns = time.monotonic_ns()
        except Exception as error:  # the library's parsers may raise anything
            if (cause := cause_of(error)) == "exception":
                self._tally.note_exception(error)
            return cause
        failure = self._shared.failure_cause(response.status, body)
        self._tally.add_response(
            start_ns=start_ns,
            first_byte_ns=first_byte_ns,
            end_ns=end_ns,
            cause=failure,
        )
        return None


def cause_of(error: BaseException) -> str:
    """The cause of failure for an aiohttp error."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "connect_timeout"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed" if isinstance(error.message, str) else "truncated"
    if isinstance(error, aiohttp.ClientPayloadError):
        inner = error.__cause__
        is_malformed = isinstance(inner, http_exceptions.TransferEncodingError)
        return "protocol" if is_malformed and "Not enough data" not in str(inner) else "truncated"
    if isinstance(error, OSError):
        return cause_of_errno(error.errno)
    if isinstance(error, aiohttp.ClientResponseError | http_exceptions.HttpProcessingError):
        return "protocol"
    return "exception"
