"""The blog under ASGI: what blocks nobody waits for.

gunicorn -k uvicorn_worker.UvicornWorker apps.blog.asgi:app
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

from werkzeug.wrappers import Request, Response

from apps.answers import Message, Receive, Send
from apps.blog.posts import Unreachable
from apps.blog.settings import read
from apps.blog.site import Site

SITE = Site(read(), waiting=True)


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        return await _live(receive, send)
    if scope["type"] != "http":
        raise ValueError(f"this app speaks http, not {scope['type']}")
    body = await _read(receive, SITE.body_most_bytes)
    if body is None:
        return None  # the client has gone
    response = await SITE.respond(Request(_environ(scope, body)))
    return await _answer(response, scope["method"] == "HEAD", send)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        event = (await receive())["type"]
        if event == "lifespan.startup":
            with contextlib.suppress(Unreachable):  # asked again with every request
                await SITE.start()
        else:
            await SITE.stop()
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _read(receive: Receive, most_bytes: int) -> bytes | None:
    """The body; what is beyond `most_bytes` is read and thrown away, one byte more is kept, so that
    the site sees it is too large. None: the client went before it was whole."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")[: most_bytes + 1 - size]
        parts.append(part)
        size += len(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _environ(scope: Message, body: bytes) -> dict[str, Any]:
    """As WSGI has it, which Werkzeug reads: PEP 3333 from the ASGI specification's scope."""
    server = scope.get("server") or ("localhost", 80)
    environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode("utf-8", "surrogateescape").decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1] or 80),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.input": io.BytesIO(body),
    }
    for name, value in scope["headers"]:
        key = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE", "")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    environ["CONTENT_LENGTH"] = str(len(body))
    return environ


async def _answer(response: Response, head: bool, send: Send) -> None:
    headers = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in response.headers]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else response.get_data()})
