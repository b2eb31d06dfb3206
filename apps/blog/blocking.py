"""How blocking code and waiting code share one core.

Everything between a face and a driver is `async def`. A driver that blocks (psycopg's Connection,
MongoClient, sqlite3) returns values, one that waits (AsyncConnection, AsyncMongoClient) awaitables;
`resolve` takes both. A coroutine that never has to wait is through at its first step, which is how
`finish` calls it from blocking code, without an event loop and at the cost of a function call.
"""

import inspect
from collections.abc import Awaitable, Coroutine
from typing import TypeVar, cast

T = TypeVar("T")


async def resolve(value: T | Awaitable[T]) -> T:
    """The value, waited for where it has to be."""
    return await value if inspect.isawaitable(value) else value


def finish(coroutine: Coroutine[object, None, T]) -> T:
    """Run `coroutine`, which waits for nothing, to its end. RuntimeError if it does wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError("a driver that waits was given to blocking code")
