"""Shared by the apps: responses, and a computation of a known length."""

import time
from collections.abc import Callable, Iterable
from typing import Any

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
BODY = b"ok\n"
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]


def compute(seconds: float) -> None:
    """Use that much CPU time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(300))


def app_that(work: Callable[[], object]) -> App:
    """A WSGI app that calls `work` in each request."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        work()
        start_response("200 OK", HEADERS)
        return [BODY]

    return app
