"""Awaits 30 ms, and blocks for 20 ms in three of ten requests."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from common import BODY

RANDOM = random.Random()
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Any, send: Send) -> None:
    if scope["type"] != "http":
        return
    await asyncio.sleep(0.03)
    if RANDOM.random() < 0.3:
        time.sleep(0.02)
    headers = [(b"content-length", str(len(BODY)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})
