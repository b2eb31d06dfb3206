"""The blog under ASGI, with asynchronous drivers.

gunicorn -k uvicorn_worker.UvicornWorker apps.blog.asgi:app
"""

import contextlib
from typing import Any

from werkzeug.wrappers import Request

from apps.blog.posts import Unreachable
from apps.blog.routes import Body, respond
from apps.blog.settings import read
from apps.blog.site import Site
from apps.responses import Message, Receive, Send, lifespan

SITE = Site(read(), async_mode=True)


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        return await lifespan(receive, send, startup=_start, shutdown=SITE.posts.stop)
    if scope["type"] != "http":
        raise ValueError(f"this app supports http, not {scope['type']}")
    body = Body(SITE)
    reading = True
    while reading:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        reading = body.take(message.get("body", b"")) and message.get("more_body", False)
    request = Request(body.merge_into(_environ(scope)))
    response = await respond(SITE, request)
    lines = response.get_wsgi_headers(request.environ)
    headers = [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in lines]
    data = b"" if scope["method"] == "HEAD" else response.get_data()
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    return await send({"type": "http.response.body", "body": data})


async def _start() -> None:
    with contextlib.suppress(Unreachable):  # retried with every request
        await SITE.start()


def _environ(scope: Message) -> dict[str, Any]:
    """The WSGI environ (PEP 3333) of an ASGI scope, for Werkzeug."""
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
        if b"_" in name:  # ambiguous with hyphens; Gunicorn drops these headers, too
            continue
        key = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE", "")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    return environ
