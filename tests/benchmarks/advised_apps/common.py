"""What the apps share: answers, and work of a known size."""

import time
from collections.abc import Callable, Iterable
from typing import Any

Start = Callable[..., Any]
BODY = b"ok\n"
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]


def compute(seconds: float) -> None:
    """For so long on this thread's own clock, whatever others do."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(300))


def answer(start_response: Start) -> Iterable[bytes]:
    start_response("200 OK", HEADERS)
    return [BODY]
