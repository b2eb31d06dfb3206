"""200 MB in each worker; waits 50 ms."""

import time
from collections.abc import Iterable
from typing import Any

from common import Start, answer

DATA = [bytes([i % 256]) * 1000 for i in range(200_000)]


def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    time.sleep(0.05 if len(DATA) else 0.0)
    return answer(start_response)
