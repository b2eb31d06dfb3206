"""The page of the live lesson and what it talks to, on loopback.

All addresses begin with a secret token, and whoever asks must have come by the lab's own address:
another page in the same browser knows neither, and its requests bear its own Origin. What the lab
tells goes through one stream of server-sent events; what the page wants is posted.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from harness import codec
from harness.experiments.live.asked import Refused
from harness.experiments.live.stage import Stage

PAGE = Path(__file__).with_name("page")
BEHIND = 400  # messages, 20 s of them: a tab that is so far behind is let go
KEEP_S = 10.0  # without news, a word that the lab is still there
LONGEST_BYTES = 10_000  # of what a page asks for
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Guarded:
    """Refuses whoever did not come by one of `hosts`, or by another page."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._known(Headers(scope=scope)):
            refused = PlainTextResponse("Not from here.\n", 403)
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _known(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        own = {f"http://{host}" for host in self._hosts}
        return headers.get("host") in self._hosts and (origin is None or origin in own)


def application(stage: Stage, token: str, port: int, ended: asyncio.Event) -> ASGIApp:
    """`ended`: set when the lab ends; streams end with it."""

    def known(request: Request) -> bool:
        return secrets.compare_digest(request.path_params["token"].encode(), token.encode())

    async def page(request: Request) -> Response:
        name = request.path_params.get("name") or "page.html"
        names = {path.name for path in PAGE.iterdir()}
        if not known(request) or name not in names:
            return PlainTextResponse("Not found.\n", 404)
        return FileResponse(PAGE / name, headers=HEADERS)

    async def stream(request: Request) -> Response:
        if not known(request):
            return PlainTextResponse("Not found.\n", 404)
        events = _events(stage, ended)
        return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)

    async def act(request: Request) -> Response:
        if not known(request):
            return PlainTextResponse("Not found.\n", 404)
        try:
            await asyncio.to_thread(stage.act, await _words(request))
        except Refused as refused:
            answer = {"why": str(refused), "field": refused.field or None}
            return JSONResponse(answer, 400)
        return JSONResponse({})

    routes = [
        Route("/{token}/", page),
        Route("/{token}/stream", stream),
        Route("/{token}/act", act, methods=["POST"]),
        Route("/{token}/{name}", page),
    ]
    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
    return Guarded(Starlette(routes=routes), hosts)


async def _words(request: Request) -> dict[str, Any]:
    """What is asked for. Raises Refused for what is no object."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LONGEST_BYTES:
            raise Refused("that is too long")
    try:
        return codec.decode(data, dict[str, Any])
    except ValueError as error:
        raise Refused(f"not understood: {error}") from None


async def _events(stage: Stage, ended: asyncio.Event) -> AsyncIterator[bytes]:
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

    def put(message: bytes) -> None:
        def here() -> None:
            waiting.put_nowait(message if waiting.qsize() < BEHIND else None)

        loop.call_soon_threadsafe(here)

    name = await asyncio.to_thread(stage.join, put)
    over = asyncio.create_task(ended.wait())
    try:
        while not ended.is_set():
            next_one = asyncio.create_task(waiting.get())
            done, _ = await asyncio.wait(
                {next_one, over}, timeout=KEEP_S, return_when=asyncio.FIRST_COMPLETED
            )
            if next_one not in done:
                next_one.cancel()
                yield b": still here\n\n"
            elif (message := next_one.result()) is None:
                return
            else:
                yield b"data: %b\n\n" % message
    finally:
        over.cancel()
        stage.leave(name)
