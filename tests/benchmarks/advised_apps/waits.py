"""Waits 50 ms: a database that answers."""

import time
from collections.abc import Iterable
from typing import Any

from common import Start, answer


def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    time.sleep(0.05)
    return answer(start_response)
