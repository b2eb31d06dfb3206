"""The same core for blocking and for asynchronous code."""

from __future__ import annotations

import asyncio

import pytest

from apps.blog.blocking import finish, resolve


async def twice(value: object) -> object:
    return [await resolve(value), await resolve("then")]  # type: ignore[arg-type]


def test_a_coroutine_that_never_waits_finishes_in_one_step() -> None:
    assert finish(twice(3)) == [3, "then"]
    assert finish(twice(None)) == [None, "then"]


def test_its_exceptions_are_raised() -> None:
    async def fails() -> None:
        await resolve(1)
        raise KeyError("post")

    with pytest.raises(KeyError, match="post"):
        finish(fails())


def test_a_coroutine_that_waits_is_refused_and_cleaned_up() -> None:
    cleanups = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            cleanups.append(True)

    with pytest.raises(RuntimeError, match="given an asynchronous driver"):
        finish(waits())
    assert cleanups == [True]


def test_under_a_loop_the_same_core_waits() -> None:
    async def later() -> int:
        await asyncio.sleep(0)
        return 3

    assert asyncio.run(twice(later())) == [3, "then"]
    assert asyncio.run(twice(3)) == [3, "then"]
