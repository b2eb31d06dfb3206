"""An ASGI app that blocks its event loop as the query requests: see `held`. With `thread=1` another
thread makes the call, and the loop stays free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from held import BODY, work_of

Message = MutableMapping[str, Any]


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    query = scope["query_string"].decode()
    wait_s, what, ms = work_of(query)
    await asyncio.sleep(wait_s)
    if "thread=1" in query:
        await asyncio.to_thread(what, ms)
    else:
        what(ms)
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})
