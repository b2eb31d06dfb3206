"""What the apps share: answers, and work of a known size."""

import time
from collections.abc import Callable, Iterable
from typing import Any

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
BODY = b"ok\n"
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]


def compute(seconds: float) -> None:
    """For so long on this thread's own clock, whatever others do."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(300))


def app_that(works: Callable[[], object]) -> App:
    """A WSGI app that calls this function in each request."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        works()
        start_response("200 OK", HEADERS)
        return [BODY]

    return app
