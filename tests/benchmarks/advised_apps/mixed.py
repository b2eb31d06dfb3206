"""Waits 30 ms and computes for 5."""

import time
from collections.abc import Iterable
from typing import Any

from common import Start, answer, compute


def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    compute(0.005)
    time.sleep(0.03)
    return answer(start_response)
