"""A WSGI app that blocks its event loop as the query says: see `blocking`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from blocking import BODY, hold_up, parts

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    wait_s, *held = parts(environ["QUERY_STRING"])
    time.sleep(wait_s)
    hold_up(*held)
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]
    start_response("200 OK", headers)
    return [BODY]
