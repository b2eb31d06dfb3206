"""The minimal sleep app as ASGI: it waits with `asyncio.sleep`, which lets others run."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from apps.answers import Message, Receive, Send, asgi_answer, lifespan
from apps.knobs import BadValue, burn, work_for


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    if scope["type"] != "http":
        raise ValueError(f"this app speaks http, not {scope['type']}")
    try:
        work = work_for(scope["query_string"].decode("latin-1"))
    except BadValue as problem:
        return await asgi_answer(scope, receive, send, HTTPStatus.BAD_REQUEST, str(problem))
    burn(work.cpu_ms)
    await asyncio.sleep(work.sleep_s)
    return await asgi_answer(scope, receive, send, HTTPStatus.OK, work.done)
