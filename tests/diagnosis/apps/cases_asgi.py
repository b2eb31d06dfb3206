"""ASGI apps with known behaviour, selected by CASE as in `cases`:

steady       awaits SLEEP_MS, computes CPU_MS
lock, pool   holds a lock for three fifths of the sleep; a place in a pool of 2 for all of it
blocks       sleeps without `await`, which blocks the worker's event loop
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import accept_quota
from work import CASE, CPU_S, QUOTAS, SLEEP_S, burn, random_s

Message = MutableMapping[str, Any]

LOCK, POOL = asyncio.Lock(), asyncio.Semaphore(2)


async def steady() -> None:
    await asyncio.sleep(random_s())


async def lock() -> None:
    await asyncio.sleep(SLEEP_S * 0.4)
    async with LOCK:
        await asyncio.sleep(SLEEP_S * 0.6)


async def pool() -> None:
    async with POOL:
        await asyncio.sleep(SLEEP_S)


async def blocks() -> None:
    time.sleep(SLEEP_S)


CASES: dict[str, Callable[[], Awaitable[None]]] = {"lock": lock, "pool": pool, "blocks": blocks}
WORK = CASES.get(CASE, steady)

if QUOTAS:
    accept_quota.limit_accepts(QUOTAS)


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    if scope["type"] == "lifespan":
        while True:
            step = (await receive())["type"]
            await send({"type": f"{step}.complete"})
            if step == "lifespan.shutdown":
                return
    if CPU_S:
        burn(CPU_S)
    await WORK()
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"3")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok\n"})
