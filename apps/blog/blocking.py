"""Lets blocking and asynchronous code share the same coroutines.

Everything between the interface and the driver is `async def`. Blocking drivers (psycopg's
Connection, MongoClient, sqlite3) return values, asynchronous ones (AsyncConnection,
AsyncMongoClient) return awaitables; `resolve` accepts both. A coroutine that never suspends ends at
its first step, so `finish` runs it without an event loop, at the cost of a function call.
"""

import inspect
from collections.abc import Awaitable, Coroutine
from typing import TypeVar, cast

T = TypeVar("T")


async def resolve(value: T | Awaitable[T]) -> T:
    """The value, awaited if it is an awaitable."""
    return await value if inspect.isawaitable(value) else value


def finish(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine that never suspends to its end. Raises RuntimeError if it does suspend."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError("blocking code was given an asynchronous driver")
