"""Load from coroutines of one process, with aiohttp: one session, one connection per coroutine."""

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

from workerlab.load.generators.document import Tally, cause_of_errno
from workerlab.load.generators.request import header_lines
from workerlab.load.generators.share import Share
from workerlab.load.generators.words import Words

UNIT: ContextVar[CoroutineUnit] = ContextVar("UNIT")  # the unit that the current task runs


def load(share: Share, units: Sequence[int]) -> Tally:
    """Run these units until no requests are left, or until the deadline."""
    return asyncio.run(_load(share, units))


async def _load(share: Share, units: Sequence[int]) -> Tally:
    tally = Tally()
    share.begin()
    async with _session(share.words, len(units)) as session:
        try:
            async with asyncio.timeout(share.left_s()), asyncio.TaskGroup() as group:
                for number in units:
                    group.create_task(CoroutineUnit(share, tally, session).run(number))
        except TimeoutError:
            tally.deadline_struck = True
    return tally


class Connector(aiohttp.TCPConnector):
    """Reports each new connection to the unit that waits for it. aiohttp's tracing could do the
    same, but would take a fifth of the CPU of each request."""

    async def _create_connection(self, *words: Any, **more: Any) -> ResponseHandler:
        start_ns = time.monotonic_ns()
        handler = await super()._create_connection(*words, **more)
        UNIT.get().connected(time.monotonic_ns() - start_ns)
        return handler


def _session(words: Words, connections: int) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=Connector(limit=connections, force_close=not words.keepalive),
        timeout=aiohttp.ClientTimeout(total=None),
        headers=CIMultiDict(header_lines(words)),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
    # aiohttp silently retries requests closed without an answer, even on new connections
    session._retry_connection = False
    return session


class CoroutineUnit:
    """A closed-loop client: sends one request at a time. All units of a process share a tally."""

    def __init__(self, share: Share, tally: Tally, session: aiohttp.ClientSession) -> None:
        self._share, self._tally, self._session = share, tally, session
        self._urls = [URL(url, encoded=True) for url in share.words.urls]
        self._connected = False  # whether the request in flight has a new connection

    async def run(self, number: int) -> None:
        UNIT.set(self)
        if wait_s := self._share.wait_s(number):
            await asyncio.sleep(wait_s)
        while self._share.take():
            await self._send_next()

    def connected(self, took_ns: int) -> None:
        self._connected = True
        self._tally.connected(took_ns)

    async def _send_next(self) -> None:
        start_ns = time.monotonic_ns()
        self._connected = False
        self._tally.begin(start_ns)
        try:
            cause = await self._ask(start_ns)
            if cause in ("closed", "reset") and not self._connected:
                self._tally.reconnects += 1  # the server may close an idle connection
                cause = await self._ask(start_ns)
        except asyncio.CancelledError:  # the deadline has passed
            self._tally.failed("timeout", start_ns, time.monotonic_ns())
            raise
        if cause is not None:
            self._tally.failed(cause, start_ns, time.monotonic_ns())

    async def _ask(self, start_ns: int) -> str | None:
        """Send a request. Returns None if its answer is complete and counted, else the cause."""
        words = self._share.words
        try:
            async with self._session.request(
                words.method, random.choice(self._urls), data=words.body, allow_redirects=False
            ) as response:
                first_byte_ns = time.monotonic_ns()
                body = await response.read()
                end_ns = time.monotonic_ns()
        except Exception as error:  # the library's parsers may raise anything
            if (cause := cause_of(error)) == "exception":
                self._tally.exception(error)
            return cause
        failure = self._share.judge(response.status, body)
        self._tally.done(start_ns, first_byte_ns, end_ns, failure, len(body))
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
        source = error.__cause__
        malformed = isinstance(source, http_exceptions.TransferEncodingError)
        return "protocol" if malformed and "Not enough data" not in str(source) else "truncated"
    if isinstance(error, OSError):
        return cause_of_errno(error.errno)
    if isinstance(error, aiohttp.ClientResponseError | http_exceptions.HttpProcessingError):
        return "protocol"
    return "exception"
