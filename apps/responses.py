"""The responses of the plain apps: they spend the request's cost, then send a line of text with its
Content-Length (no body for HEAD). The apps differ only in how they sleep.

A request's body is read before the response is sent. Otherwise the kernel would reset the
connection when the server closes it, and the client would lose the response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from apps.knobs import BadValue, burn, work_for

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]


def wsgi_app(sleep: Callable[[float], None]) -> WSGIApplication:
    """A WSGI app that sleeps with `sleep` (seconds)."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            work = work_for(environ.get("QUERY_STRING", ""))
        except BadValue as problem:
            return respond_wsgi(environ, start_response, HTTPStatus.BAD_REQUEST, str(problem))
        burn(work.cpu_ms)
        sleep(work.sleep_s)
        return respond_wsgi(environ, start_response, HTTPStatus.OK, work.response_text)

    return app


def asgi_app(sleep: Callable[[float], Awaitable[None]]) -> AsgiApp:
    """An ASGI app that sleeps with `sleep` (seconds)."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        if scope["type"] != "http":
            raise ValueError(f"this app supports http, not {scope['type']}")
        try:
            work = work_for(scope["query_string"].decode("latin-1"))
        except BadValue as problem:
            return await respond_asgi(scope, receive, send, HTTPStatus.BAD_REQUEST, str(problem))
        burn(work.cpu_ms)
        await sleep(work.sleep_s)
        return await respond_asgi(scope, receive, send, HTTPStatus.OK, work.response_text)

    return app


def respond_wsgi(
    environ: WSGIEnvironment, start_response: StartResponse, status: HTTPStatus, text: str
) -> Iterable[bytes]:
    """Answer a WSGI request with one line of text."""
    method = environ["REQUEST_METHOD"]
    if method not in ("GET", "HEAD"):
        environ["wsgi.input"].read()
    body = f"{text}\n".encode()
    start_response(
        f"{status.value} {status.phrase}",
        [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))],
    )
    return [] if method == "HEAD" else [body]


async def respond_asgi(
    scope: Message, receive: Receive, send: Send, status: HTTPStatus, text: str
) -> None:
    """Answer an ASGI request with one line of text."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    body = f"{text}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def lifespan(receive: Receive, send: Send, **steps: Callable[[], Awaitable[None]]) -> None:
    """Complete startup and shutdown, each after awaiting the step of its name, if there is one."""
    while True:
        event = (await receive())["type"]
        if step := steps.get(event.removeprefix("lifespan.")):
            await step()
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return
