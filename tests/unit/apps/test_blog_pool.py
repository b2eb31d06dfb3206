"""Taking turns at connections: nobody is overtaken, no turn is lost."""

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


def test_who_asks_first_is_served_first() -> None:
    """Also where one that has just come asks at the moment a connection comes back."""

    async def take_turns() -> list[int]:
        one, served = pool(1, async_mode=True), list[int]()

        async def use(number: int) -> None:
            connection = await one.take()
            served.append(number)
            await asyncio.sleep(0)
            one.give(connection)
            if number < 10:
                await use(number + 10)  # comes again at once

        await asyncio.gather(*(use(number) for number in range(10)))
        return served

    assert asyncio.run(take_turns()) == list(range(20))


def test_a_task_that_gives_up_leaves_its_turn_to_others() -> None:
    async def give_up() -> None:
        one = pool(1, async_mode=True)
        held = await one.take()
        waits = asyncio.create_task(one.take())
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        one.give(held)
        assert await one.take() is held

    asyncio.run(give_up())


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_connection_that_cannot_be_made_costs_no_turn(async_mode: bool) -> None:
    def refused() -> Connection:
        raise ConnectionRefusedError

    async def ask() -> None:
        one = Pool(refused, 1, 60.0, async_mode=async_mode)
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await one.take()

    asyncio.run(ask()) if async_mode else finish(ask())


@pytest.mark.parametrize("async_mode", [False, True])
def test_what_is_broken_is_dropped_and_made_anew(async_mode: bool) -> None:
    async def use() -> None:
        one = pool(1, async_mode=async_mode)
        first = await one.take()
        one.give(first)
        first.usable = False  # while nobody had it
        second = await one.take()
        assert first.dropped
        assert second is not first
        second.usable = False
        one.give(second)
        assert second.dropped
        assert await one.take() not in (first, second)

    asyncio.run(use()) if async_mode else finish(use())


@pytest.mark.parametrize("async_mode", [False, True])
def test_nobody_waits_for_ever(async_mode: bool) -> None:
    async def wait() -> None:
        one = pool(1, async_mode=async_mode, timeout_s=0.01)
        await one.take()
        with pytest.raises(TimeoutError):
            await one.take()

    asyncio.run(wait()) if async_mode else finish(wait())


def test_threads_never_have_more_than_there_are() -> None:
    one, had, most = pool(3, async_mode=False), set[Connection](), list[int]()

    def use(_: int) -> None:
        for _ in range(200):
            connection = finish(one.take())
            assert connection not in had
            had.add(connection)
            most.append(len(had))
            had.remove(connection)
            one.give(connection)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert len(most) == 8 * 200
    assert max(most) <= 3
