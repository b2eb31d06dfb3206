"""The blog under WSGI: each request occupies a worker, or one of its threads.

gunicorn apps.blog.wsgi:app
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from werkzeug.exceptions import ClientDisconnected
from werkzeug.wrappers import Request
from werkzeug.wsgi import get_content_length, get_input_stream

from apps.blog.blocking import finish
from apps.blog.posts import Unreachable
from apps.blog.routes import Body, respond
from apps.blog.settings import read
from apps.blog.site import Site

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

CHUNK_BYTES = 65_536
SITE = Site(read(), async_mode=False)
with contextlib.suppress(Unreachable):  # tried again with every request
    finish(SITE.start())


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    whole = True
    if environ.get("HTTP_TRANSFER_ENCODING") or environ.get("CONTENT_LENGTH", "0") not in ("", "0"):
        environ, whole = _with_body(environ)
    response = finish(respond(SITE, Request(environ), whole=whole))
    return response(environ, start_response)


def _with_body(environ: WSGIEnvironment) -> tuple[WSGIEnvironment, bool]:
    """The environ with its whole body, and whether the body has the announced length."""
    # A chunked body has no length; a server that accepts one ends it, announced or not
    stream = get_input_stream(environ, safe_fallback="HTTP_TRANSFER_ENCODING" not in environ)
    body, reading = Body(SITE), True
    with contextlib.suppress(ClientDisconnected):
        while reading and (part := stream.read(CHUNK_BYTES)):
            reading = body.take(part)
    return body.merge_into(environ), not reading or body.size >= (get_content_length(environ) or 0)
