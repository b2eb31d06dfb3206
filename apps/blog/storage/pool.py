"""Connections that requests take turns at, for code that blocks and for code that waits.

Not the driver's own pool: that one connects behind the scenes and lets who asks for a connection
wait, for as long as the database is down. Here who finds none free makes one, up to a number, and
hears at once why it cannot be made: a page is then answered from a cache, or refused, while there
is still somebody to read it.

A slot holds a connection or nothing yet. They lie on a stack, so that few stay warm and the others
are never made. Slots are put back without waiting: being cancelled cannot lose one.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from apps.blog.blocking import settled


class Connection(Protocol):
    """What the pool asks of one; neither may wait."""

    @property
    def usable(self) -> bool:
        """Open, as far as can be told without a round trip, and in no transaction."""

    def drop(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Pool(Generic[C]):
    """At most `most` connections. Threads, or the tasks of one event loop, may share it."""

    def __init__(
        self,
        connect: Callable[[], C | Awaitable[C]],
        most: int,
        timeout_s: float,
        *,
        waiting: bool,
    ) -> None:
        self._connect, self._most, self._timeout_s = connect, most, timeout_s
        self._waiting: asyncio.LifoQueue[C | None] | None = None
        self._blocking: queue.LifoQueue[C | None] | None = None
        if waiting:
            self._waiting = asyncio.LifoQueue()
        else:
            self._blocking = queue.LifoQueue()
        self._refill(most)

    async def take(self) -> C:
        """Raises TimeoutError where none became free, and what `connect` raises."""
        slot = await self._slot()
        try:
            if slot is not None:
                if slot.usable:
                    return slot
                slot.drop()
            return await settled(self._connect())
        except BaseException:
            self._refill(1)
            raise

    def give(self, connection: C) -> None:
        """Back, whatever happened to it."""
        if not connection.usable:
            connection.drop()
            self._refill(1)
        else:
            self._slots.put_nowait(connection)

    def close(self) -> None:
        """Those that nobody has."""
        with contextlib.suppress(queue.Empty, asyncio.QueueEmpty):
            for _ in range(self._most):
                slot = self._slots.get_nowait()
                if slot is not None:
                    slot.drop()

    @property
    def _slots(self) -> asyncio.LifoQueue[C | None] | queue.LifoQueue[C | None]:
        slots = self._blocking if self._waiting is None else self._waiting
        assert slots is not None
        return slots

    def _refill(self, number: int) -> None:
        for _ in range(number):
            self._slots.put_nowait(None)

    async def _slot(self) -> C | None:
        if self._waiting is None:
            assert self._blocking is not None
            try:
                return self._blocking.get(timeout=self._timeout_s)
            except queue.Empty:
                raise TimeoutError("no connection became free") from None
        if not self._waiting.empty():
            return self._waiting.get_nowait()
        async with asyncio.timeout(self._timeout_s):
            return await self._waiting.get()
