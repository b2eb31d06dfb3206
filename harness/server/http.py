"""One plain HTTP request, timed: for readiness, lone requests and the warm-up, never for load."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass
from pathlib import Path

from harness.model import App


@dataclass(frozen=True)
class Answer:
    """`response_s` runs from before connect until the last byte of the body."""

    status: int
    response_s: float


def ask(app: App, host: str, port: int, *, path: str | None = None, timeout_s: float) -> Answer:
    """Send the app's own request (or the same to another `path`) on a connection of its own.

    Raises OSError or http.client.HTTPException when there is no whole answer in time.
    """
    body = Path(app.body_file).read_bytes() if app.body_file else None
    headers = {"Connection": "close", **dict(app.headers)}
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    began = time.monotonic()
    try:
        connection.request(app.method, path or app.path, body=body, headers=headers)
        response = connection.getresponse()
        response.read()
        return Answer(response.status, time.monotonic() - began)
    finally:
        connection.close()
