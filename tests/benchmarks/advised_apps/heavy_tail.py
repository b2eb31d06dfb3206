"""Waits 30 ms, but a second in 3 % of the requests."""

import random
import time
from collections.abc import Iterable
from typing import Any

from common import Start, answer

RANDOM = random.Random()


def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    time.sleep(1.0 if RANDOM.random() < 0.03 else 0.03)
    return answer(start_response)
