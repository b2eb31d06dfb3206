"""The blog under ASGI: what blocks nobody waits for.

gunicorn -k uvicorn_worker.UvicornWorker apps.blog.asgi:app
"""

from __future__ import annotations

import contextlib
from typing import Any

from werkzeug.wrappers import Request

from apps.answers import Message, Receive, Send
from apps.blog.bodies import Body
from apps.blog.posts import Unreachable
from apps.blog.routes import body_most_bytes, respond
from apps.blog.settings import read
from apps.blog.site import Site

SITE = Site(read(), async_mode=True)


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        return await _live(receive, send)
    if scope["type"] != "http":
        raise ValueError(f"this app speaks http, not {scope['type']}")
    body = await _read(receive, body_most_bytes(SITE))
    if body is None:
        return None  # the client has gone
    request = Request(body.into(_environ(scope)))
    response = await respond(SITE, request)
    lines = response.get_wsgi_headers(request.environ)
    headers = [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in lines]
    data = b"" if scope["method"] == "HEAD" else response.get_data()
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    return await send({"type": "http.response.body", "body": data})


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


async def _read(receive: Receive, most_bytes: int) -> Body | None:
    """None: the client went before it was whole."""
    body = Body(most_bytes)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        if not body.take(message.get("body", b"")) or not message.get("more_body"):
            return body


def _environ(scope: Message) -> dict[str, Any]:
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
    }
    for name, value in scope["headers"]:
        if b"_" in name:  # would be taken for the one with hyphens, as Gunicorn has it, too
            continue
        key = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE", "")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    return environ
