"""Takes four seconds to import; waits 50 ms."""

import time
from collections.abc import Iterable
from typing import Any

from common import Start, answer

time.sleep(4)


def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    time.sleep(0.05)
    return answer(start_response)
