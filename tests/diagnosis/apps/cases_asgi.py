"""ASGI apps whose truth holds by construction; CASE says which one this is, as in `cases`.

steady       awaits SLEEP_MS, computes CPU_MS
lock, pool   three fifths of the sleep under a lock; all of it in a pool of 2
blocks       sleeps without `await`: nothing else runs in the worker
partly       awaits, then 30 ms of such blocking
rarely       awaits, and 200 ms of blocking in each tenth request
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import dealing
from work import CASE, CPU_S, QUOTAS, SLEEP_S, burn, random_s

Message = MutableMapping[str, Any]
BLOCKS_S, RARELY_S, EACH = 0.03, 0.2, 10

LOCK, POOL = asyncio.Lock(), asyncio.Semaphore(2)
COUNTER = itertools.count(1)


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


async def partly() -> None:
    await asyncio.sleep(SLEEP_S)
    time.sleep(BLOCKS_S)


async def rarely() -> None:
    await asyncio.sleep(SLEEP_S)
    if next(COUNTER) % EACH == 0:
        time.sleep(RARELY_S)


CASES: dict[str, Callable[[], Awaitable[None]]] = {
    "lock": lock,
    "pool": pool,
    "blocks": blocks,
    "partly": partly,
    "rarely": rarely,
}
WORK = CASES.get(CASE, steady)

if QUOTAS:
    dealing.deal(QUOTAS)


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
