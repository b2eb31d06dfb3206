"""An ASGI app that blocks its event loop as the query says: see `blocking`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from blocking import BODY, hold_up, parts

Message = MutableMapping[str, Any]


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    wait_s, *held = parts(scope["query_string"].decode())
    await asyncio.sleep(wait_s)
    hold_up(*held)
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})
