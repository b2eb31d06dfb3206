"""A WSGI app that blocks its event loop as the query requests: see `held`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from held import BODY, work_of

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    wait_s, what, ms = work_of(environ["QUERY_STRING"])
    time.sleep(wait_s)  # patched in workers with an event loop
    what(ms)
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]
    start_response("200 OK", headers)
    return [BODY]
