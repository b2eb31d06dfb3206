"""Connections that requests take turns at, for code that blocks and for code that waits.

Not the driver's own pool: that one connects behind the scenes and lets who asks for a connection
wait, for as long as the database is down. Here who finds none free makes one, up to a number, and
hears at once why it cannot be made: a page is then answered from a cache, or refused, while there
is still somebody to read it.

A semaphore says whose turn it is: of tasks, who asked first. (A queue of connections would let
those who come now overtake those who have waited, some of them for ever.) Idle connections lie on a
stack, so that few stay warm and the others are never made. A turn is given back without async_mode:
being cancelled cannot lose one.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from apps.blog.blocking import resolve


class Pool:
    """At most `most` connections. Threads, or the tasks of one event loop, may share it.

    Of a connection it asks whether it is `usable` (open, as far as can be told without a round
    trip, and in no transaction), else to `drop()`; neither may wait."""

    def __init__(
        self, connect: Callable[[], Any], most: int, timeout_s: float, *, async_mode: bool
    ) -> None:
        """`connect`: gives a connection, or an awaitable of one."""
        self._connect, self._timeout_s = connect, timeout_s
        self._idle: list[Any] = []
        self._turns: asyncio.Semaphore | threading.Semaphore = (
            asyncio.Semaphore(most) if async_mode else threading.Semaphore(most)
        )

    async def take(self) -> Any:
        """Raises TimeoutError where none became free, and what `connect` raises."""
        await self._turn()
        try:
            while (connection := self._pop()) is not None:
                if connection.usable:
                    return connection
                connection.drop()
            return await resolve(self._connect())
        except BaseException:
            self._turns.release()
            raise

    def give(self, connection: Any) -> None:
        """Back, whatever happened to it."""
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.drop()
        self._turns.release()

    def close(self) -> None:
        """Those that nobody has."""
        while (connection := self._pop()) is not None:
            connection.drop()

    def _pop(self) -> Any:
        with contextlib.suppress(IndexError):
            return self._idle.pop()

    async def _turn(self) -> None:
        if isinstance(self._turns, threading.Semaphore):
            if not self._turns.acquire(timeout=self._timeout_s):
                raise TimeoutError("no connection became free")
            return
        async with asyncio.timeout(self._timeout_s):
            await self._turns.acquire()
