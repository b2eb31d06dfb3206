"""One core for code that blocks and code that waits."""

from __future__ import annotations

import asyncio

import pytest

from apps.blog.blocking import finish, resolve


async def twice(value: object) -> object:
    return [await resolve(value), await resolve("then")]  # type: ignore[arg-type]


def test_what_never_waits_is_through_at_its_first_step() -> None:
    assert finish(twice(3)) == [3, "then"]
    assert finish(twice(None)) == [None, "then"]


def test_what_it_raises_comes_out() -> None:
    async def fails() -> None:
        await resolve(1)
        raise KeyError("post")

    with pytest.raises(KeyError, match="post"):
        finish(fails())


def test_what_waits_is_refused_and_cleaned_up() -> None:
    cleaned = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            cleaned.append(True)

    with pytest.raises(RuntimeError, match="driver that waits"):
        finish(waits())
    assert cleaned == [True]


def test_under_a_loop_the_same_core_waits() -> None:
    async def later() -> int:
        await asyncio.sleep(0)
        return 3

    assert asyncio.run(twice(later())) == [3, "then"]
    assert asyncio.run(twice(3)) == [3, "then"]
