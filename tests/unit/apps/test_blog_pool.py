"""The connection pool: waiters are served in order, and no connection is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from apps.blog.blocking import finish
from apps.blog.storage.pool import Pool


class Connection:
    usable = True
    dropped = False

    def drop(self) -> None:
        self.dropped = True


def run(coroutine: Coroutine[Any, Any, None], *, async_mode: bool) -> None:
    asyncio.run(coroutine) if async_mode else finish(coroutine)


def test_waiters_are_served_in_order() -> None:
    """Even if a new one arrives when a connection is returned."""

    async def take_turns() -> list[int]:
        pool, served = Pool(Connection, 1, 60.0, async_mode=True), list[int]()

        async def use(number: int) -> None:
            connection = await pool.take()
            served.append(number)
            await asyncio.sleep(0)
            pool.give(connection)
            if number < 10:
                await use(number + 10)

        await asyncio.gather(*(use(number) for number in range(10)))
        return served

    assert asyncio.run(take_turns()) == list(range(20))


def test_a_cancelled_waiter_takes_no_connection() -> None:
    async def give_up() -> None:
        pool = Pool(Connection, 1, 60.0, async_mode=True)
        connection = await pool.take()
        waiter = asyncio.create_task(pool.take())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        pool.give(connection)
        assert await pool.take() is connection

    asyncio.run(give_up())


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_connection_that_cannot_be_made_leaves_its_slot_free(async_mode: bool) -> None:
    def connect() -> Connection:
        raise ConnectionRefusedError

    async def take() -> None:
        pool = Pool(connect, 1, 60.0, async_mode=async_mode)
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await pool.take()

    run(take(), async_mode=async_mode)


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_broken_connection_is_dropped_and_replaced(async_mode: bool) -> None:
    async def use() -> None:
        pool = Pool(Connection, 1, 60.0, async_mode=async_mode)
        first = await pool.take()
        pool.give(first)
        first.usable = False  # it breaks while it is in the pool
        second = await pool.take()
        assert first.dropped
        assert second is not first
        second.usable = False
        pool.give(second)
        assert second.dropped
        assert await pool.take() not in (first, second)

    run(use(), async_mode=async_mode)


@pytest.mark.parametrize("async_mode", [False, True])
def test_waiting_times_out(async_mode: bool) -> None:
    async def wait() -> None:
        pool = Pool(Connection, 1, 0.01, async_mode=async_mode)
        await pool.take()
        with pytest.raises(TimeoutError):
            await pool.take()

    run(wait(), async_mode=async_mode)


def test_threads_share_no_connection_and_exceed_no_limit() -> None:
    pool = Pool(Connection, 3, 60.0, async_mode=False)
    in_use, counts = set[Connection](), list[int]()

    def use(_: int) -> None:
        for _ in range(200):
            connection = finish(pool.take())
            assert connection not in in_use
            in_use.add(connection)
            counts.append(len(in_use))
            in_use.remove(connection)
            pool.give(connection)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert len(counts) == 8 * 200
    assert max(counts) <= 3
