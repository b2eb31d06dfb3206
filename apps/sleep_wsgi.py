"""The minimal sleep app as plain WSGI: what a request costs stands in `apps/knobs.py`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from apps.answers import wsgi_answer
from apps.knobs import BadValue, burn, work_for

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    try:
        work = work_for(environ.get("QUERY_STRING", ""))
    except BadValue as problem:
        return wsgi_answer(environ, start_response, HTTPStatus.BAD_REQUEST, str(problem))
    burn(work.cpu_ms)
    # Looked up at each call, so that it is the patched one under gevent and eventlet.
    time.sleep(work.sleep_s)
    return wsgi_answer(environ, start_response, HTTPStatus.OK, work.done)
