"""The web applications of the live page: one on loopback, and one for pupils.

All paths on loopback begin with a secret token, and each request must carry the lab's own Host and,
if it has an Origin, the lab's own. Pages of other sites in the same browser lack the token, and
their requests carry their own Origin. The lab sends one stream of server-sent events; the page
posts its actions.

A shared lab has a separate application and listener for pupils, who can only join and guess.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from workerlab import codec
from workerlab.experiments.lesson.course import RECORDING_URL
from workerlab.experiments.lesson.settings import Refused
from workerlab.experiments.live.classroom import (
    MAX_PUPILS,
    MAX_STREAMS,
    TICKS_PER_BATCH,
    Sender,
    valid_hosts,
)
from workerlab.experiments.live.recording import recorded_page
from workerlab.experiments.live.stage import Stage
from workerlab.numbers.units import format_wait
from workerlab.report import player
from workerlab.terminal.console import tell
from workerlab.terminal.interrupt import ending_signals

PAGE_DIRS = (Path(__file__).with_name("page"), player.PLACE)
MAX_QUEUED_MESSAGES = 400  # 20 s of messages; a tab further behind is disconnected
PUPIL_COOKIE = "workerlab_pupil"
KEEP_ALIVE_S = 10.0  # without a message before a comment is sent
MAX_BODY_BYTES = 10_000
NOT_FOUND = PlainTextResponse("Not found.\n", 404)
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class OriginGuard:
    """Rejects requests whose Host is not in `hosts`, and those from pages of other sites."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_allowed(Headers(scope=scope)):
            response = PlainTextResponse("Forbidden host or origin.\n", 403)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        own_origins = {f"http://{host}" for host in self._hosts}
        return headers.get("host") in self._hosts and (origin is None or origin in own_origins)


Handler = Callable[[Request], Awaitable[Response]]
Viewer = TypeVar("Viewer")


def application(stage: Stage, token: str, port: int, ended: asyncio.Event) -> ASGIApp:
    """The application on loopback. `ended`: set when the lab ends, which ends the streams."""
    site = LiveSite(stage, ended)

    def with_token(handler: Handler) -> Handler:
        async def check_token(request: Request) -> Response:
            path_token = request.path_params["token"]
            if not secrets.compare_digest(path_token.encode(), token.encode()):
                return NOT_FOUND
            return await handler(request)

        return check_token

    routes = [
        Route("/{token}/", with_token(site.page)),
        Route("/{token}/stream", with_token(site.stream)),
        Route("/{token}/act", with_token(_with_refusals(site.act)), methods=["POST"]),
        Route(f"/{{token}}/{RECORDING_URL}", with_token(site.recording)),
        Route("/{token}/{name}", with_token(site.page)),
    ]
    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
    return OriginGuard(Starlette(routes=routes), hosts)


def pupil_application(stage: Stage, port: int, ended: asyncio.Event) -> ASGIApp:
    site = PupilSite(stage, ended)
    routes = [
        Route("/", site.page),
        Route("/join", _with_refusals(site.join), methods=["POST"]),
        Route("/guess", _with_refusals(site.guess), methods=["POST"]),
        Route("/stream", _with_refusals(site.stream)),
        Route("/{name}", site.page),
    ]
    return OriginGuard(Starlette(routes=routes), valid_hosts(port))


def _with_refusals(handler: Handler) -> Handler:
    """Turn a Refused into status 400 with its reason."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Refused as refused:
            return JSONResponse({"why": str(refused), "field": refused.field or None}, 400)

    return handle


class LiveSite:
    def __init__(self, stage: Stage, ended: asyncio.Event) -> None:
        self._stage, self._ended = stage, ended

    async def page(self, request: Request) -> Response:
        name = request.path_params.get("name") or "page.html"
        files = {path.name: path for directory in PAGE_DIRS for path in directory.iterdir()}
        if name not in files or files[name].suffix == ".py":
            return NOT_FOUND
        return FileResponse(files[name], headers=HEADERS)

    async def stream(self, _request: Request) -> Response:
        join, leave = self._stage.join, self._stage.leave
        events = _events(join, leave, self._ended, max_queued=MAX_QUEUED_MESSAGES)
        return _event_stream(events)

    async def act(self, request: Request) -> Response:
        await asyncio.to_thread(self._stage.act, await _json_object(request))
        return JSONResponse({})

    async def recording(self, _request: Request) -> Response:
        recording = await asyncio.to_thread(lambda: self._stage.recording)
        return NOT_FOUND if recording is None else HTMLResponse(recorded_page(recording))


class PupilSite(LiveSite):
    async def join(self, request: Request) -> Response:
        """Admit a pupil, unless the cookie identifies one: a page may be reloaded."""
        response, body = JSONResponse({}), await _json_object(request)
        try:
            self._stage.classroom.pupil(request.cookies.get(PUPIL_COOKIE, ""))
        except Refused:
            client = request.client.host if request.client else ""
            token = await asyncio.to_thread(self._stage.admit, body.get("code"), client)
            response.set_cookie(PUPIL_COOKIE, token, httponly=True, samesite="strict")
        return response

    async def guess(self, request: Request) -> Response:
        action, token = await _json_object(request), request.cookies.get(PUPIL_COOKIE, "")
        await asyncio.to_thread(self._stage.guess_as_pupil, token, action)
        return JSONResponse({})

    async def stream(self, request: Request) -> Response:
        token = request.cookies.get(PUPIL_COOKIE, "")
        if len(self._stage.classroom.pupil(token).streams) >= MAX_STREAMS:
            raise Refused(f"this page is already open {MAX_STREAMS} times")
        join = partial(self._stage.join_as_pupil, token)
        leave = partial(self._stage.leave_as_pupil, token)
        max_queued = MAX_QUEUED_MESSAGES // TICKS_PER_BATCH
        return _event_stream(_events(join, leave, self._ended, max_queued=max_queued))


def _event_stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)


async def _json_object(request: Request) -> dict[str, Any]:
    """The body of the request. Raises Refused if it is too long or not a JSON object."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise Refused("the request is too long")
    try:
        return codec.decode(data, dict[str, Any])
    except ValueError as error:
        raise Refused(f"the request is not a JSON object: {error}") from None


async def _events(
    join: Callable[[Sender], Viewer],
    leave: Callable[[Viewer], None],
    ended: asyncio.Event,
    *,
    max_queued: int,
) -> AsyncIterator[bytes]:
    """The stream of events. It ends when `max_queued` messages are waiting; the page then
    reconnects and continues with the current state."""
    loop, messages = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

    def send(message: bytes) -> None:
        def enqueue() -> None:
            if messages.qsize() < max_queued:
                messages.put_nowait(message)
            elif messages.qsize() == max_queued:
                messages.put_nowait(None)

        loop.call_soon_threadsafe(enqueue)

    viewer = await asyncio.to_thread(join, send)
    end_task, next_message = asyncio.create_task(ended.wait()), None
    try:
        while not ended.is_set():
            next_message = next_message or asyncio.create_task(messages.get())
            done, _ = await asyncio.wait(
                {next_message, end_task}, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if next_message not in done:
                yield b": still here\n\n"
                continue
            message, next_message = next_message.result(), None
            if message is None:
                return
            yield b"data: %b\n\n" % message
    finally:
        end_task.cancel()
        if next_message is not None:
            next_message.cancel()
        leave(viewer)


CHECK_INTERVAL_S = 0.1
SHUTDOWN_TIMEOUT_S = 1  # for streams to end
MAX_CONNECTIONS = 6 * MAX_PUPILS  # a browser opens up to six per host


class PageServer(uvicorn.Server):
    """Leaves signals to `serve`: uvicorn would raise them again on exit, before the cleanup."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    stage: Stage,
    *,
    token: str,
    sock: socket.socket,
    pupil_sock: socket.socket | None,
    max_no_tabs_s: float,
) -> None:
    """Serve until a signal arrives or no tab has been open for `max_no_tabs_s` seconds."""
    ended = asyncio.Event()
    servers = {_server(application(stage, token, sock.getsockname()[1], ended)): sock}
    if pupil_sock is not None:
        app = pupil_application(stage, pupil_sock.getsockname()[1], ended)
        servers[_server(app, MAX_CONNECTIONS)] = pupil_sock

    def end() -> None:
        for server in servers:
            server.should_exit = True
        ended.set()

    loop = asyncio.get_running_loop()
    for signal in ending_signals():
        loop.add_signal_handler(signal, end)

    async def watch_viewers() -> None:
        while not ended.is_set():
            await asyncio.sleep(CHECK_INTERVAL_S)
            if stage.no_tabs_s > max_no_tabs_s:
                tell(f"no viewer for {format_wait(max_no_tabs_s)}, shutting down")
                end()

    watcher = asyncio.create_task(watch_viewers())
    await asyncio.gather(*(server.serve(sockets=[sock]) for server, sock in servers.items()))
    ended.set()
    await watcher


def _server(app: ASGIApp, max_connections: int | None = None) -> PageServer:
    return PageServer(uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off",
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S, limit_concurrency=max_connections,
    ))  # fmt: skip
