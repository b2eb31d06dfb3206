"""The blog under WSGI: each request has a worker, or a thread of it, for itself.

gunicorn apps.blog.wsgi:app
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from werkzeug.wrappers import Request

from apps.blog.blocking import finish
from apps.blog.posts import Unreachable
from apps.blog.settings import read
from apps.blog.site import Site

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

SITE = Site(read(), waiting=False)
with contextlib.suppress(Unreachable):  # asked again with every request
    finish(SITE.start())


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return finish(SITE.respond(Request(environ)))(environ, start_response)
