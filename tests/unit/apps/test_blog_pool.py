"""The connection pool: waiters are served in order, and no connection is lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from apps.blog.blocking import finish
from apps.blog.storage.pool import Pool


class Connection:
    def __init__(self, *, usable: bool = True) -> None:
        self.usable = usable
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def pool(most: int, *, async_mode: bool, timeout_s: float = 60.0) -> Pool:
    return Pool(Connection, most, timeout_s, async_mode=async_mode)


def test_waiters_are_served_in_order() -> None:
    """Even if another one asks at the moment a connection is returned."""

    async def take_turns() -> list[int]:
        connections, served = pool(1, async_mode=True), list[int]()

        async def use(number: int) -> None:
            connection = await connections.take()
            served.append(number)
            await asyncio.sleep(0)
            connections.give(connection)
            if number < 10:
                await use(number + 10)  # comes again at once

        await asyncio.gather(*(use(number) for number in range(10)))
        return served

    assert asyncio.run(take_turns()) == list(range(20))


def test_a_cancelled_waiter_takes_no_connection() -> None:
    async def give_up() -> None:
        connections = pool(1, async_mode=True)
        held = await connections.take()
        waits = asyncio.create_task(connections.take())
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        connections.give(held)
        assert await connections.take() is held

    asyncio.run(give_up())


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_connection_that_cannot_be_made_leaves_its_slot_free(async_mode: bool) -> None:
    def refused() -> Connection:
        raise ConnectionRefusedError

    async def ask() -> None:
        connections = Pool(refused, 1, 60.0, async_mode=async_mode)
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await connections.take()

    asyncio.run(ask()) if async_mode else finish(ask())


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_broken_connection_is_dropped_and_replaced(async_mode: bool) -> None:
    async def use() -> None:
        connections = pool(1, async_mode=async_mode)
        first = await connections.take()
        connections.give(first)
        first.usable = False  # while it was in the pool
        second = await connections.take()
        assert first.dropped
        assert second is not first
        second.usable = False
        connections.give(second)
        assert second.dropped
        assert await connections.take() not in (first, second)

    asyncio.run(use()) if async_mode else finish(use())


@pytest.mark.parametrize("async_mode", [False, True])
def test_waiting_times_out(async_mode: bool) -> None:
    async def wait() -> None:
        connections = pool(1, async_mode=async_mode, timeout_s=0.01)
        await connections.take()
        with pytest.raises(TimeoutError):
            await connections.take()

    asyncio.run(wait()) if async_mode else finish(wait())


def test_threads_share_no_connection_and_exceed_no_limit() -> None:
    connections, in_use, counts = pool(3, async_mode=False), set[Connection](), list[int]()

    def use(_: int) -> None:
        for _ in range(200):
            connection = finish(connections.take())
            assert connection not in in_use
            in_use.add(connection)
            counts.append(len(in_use))
            in_use.remove(connection)
            connections.give(connection)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert len(counts) == 8 * 200
    assert max(counts) <= 3
