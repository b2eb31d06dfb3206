"""A connection pool for blocking and for asynchronous code.

The driver's own pool connects in the background, and lets callers wait while the database is down.
Here a caller that finds no free connection opens one, up to a limit, and gets the error at once if
that fails: a page then comes from a cache, or is refused, while the client still waits.

A semaphore admits callers; tasks are admitted in order of calls. (With a queue of connections,
new callers could overtake waiting ones repeatedly.) Idle connections are kept on a stack, so that
few are in use and the rest are never opened. Releasing the semaphore does not await, so
cancellation cannot lose a permit.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from apps.blog.blocking import resolve


class Pool:
    """At most `size` connections. Threads, or the tasks of one event loop, may share it.

    A connection must have `usable` (it is open, as far as known without a round trip, and not in a
    transaction) and `drop()`; neither may block."""

    def __init__(
        self, connect: Callable[[], Any], size: int, timeout_s: float, *, async_mode: bool
    ) -> None:
        """`connect`: returns a connection, or an awaitable of one."""
        self._connect, self._timeout_s = connect, timeout_s
        self._idle: list[Any] = []
        self._permits: asyncio.Semaphore | threading.Semaphore = (
            asyncio.Semaphore(size) if async_mode else threading.Semaphore(size)
        )

    async def take(self) -> Any:
        """A usable connection. Raises TimeoutError if none becomes free, or as `connect` does."""
        await self._acquire()
        try:
            while (connection := self._pop()) is not None:
                if connection.usable:
                    return connection
                connection.drop()
            return await resolve(self._connect())
        except BaseException:
            self._permits.release()
            raise

    def give(self, connection: Any) -> None:
        """Return a connection to the pool, in any state."""
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.drop()
        self._permits.release()

    def close(self) -> None:
        """Close the idle connections."""
        while (connection := self._pop()) is not None:
            connection.drop()

    def _pop(self) -> Any:
        with contextlib.suppress(IndexError):
            return self._idle.pop()

    async def _acquire(self) -> None:
        if isinstance(self._permits, threading.Semaphore):
            if not self._permits.acquire(timeout=self._timeout_s):
                raise TimeoutError("no connection became free")
            return
        async with asyncio.timeout(self._timeout_s):
            await self._permits.acquire()
