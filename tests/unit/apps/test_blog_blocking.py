"""The same code runs with blocking and with asynchronous drivers."""

from __future__ import annotations

import asyncio

import pytest

from apps.blog.blocking import finish, resolve


async def twice(value: object) -> object:
    return [await resolve(value), await resolve("then")]  # type: ignore[arg-type]


def test_a_coroutine_that_never_waits_finishes_in_one_step() -> None:
    async def fail() -> None:
        await resolve(1)
        raise KeyError("post")

    assert finish(twice(3)) == [3, "then"]
    assert finish(twice(None)) == [None, "then"]
    with pytest.raises(KeyError, match="post"):
        finish(fail())


def test_a_coroutine_that_waits_is_refused_and_cleaned_up() -> None:
    cleanups = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            cleanups.append(True)

    with pytest.raises(RuntimeError, match="given an asynchronous driver"):
        finish(wait())
    assert cleanups == [True]


def test_under_a_loop_the_same_coroutine_waits() -> None:
    async def later() -> int:
        await asyncio.sleep(0)
        return 3

    assert asyncio.run(twice(later())) == [3, "then"]
    assert asyncio.run(twice(3)) == [3, "then"]
