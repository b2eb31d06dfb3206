"""The cost of one request: seconds of sleep and milliseconds of CPU.

The environment sets the default, and the query string overrides it:

    WORKERLAB_SLEEP=0.5 WORKERLAB_CPU=20 gunicorn apps.sleep_wsgi:app
    curl '127.0.0.1:8000/?sleep=0.2&cpu=5'

Other query parameters are ignored: a client may use them to tell requests apart.
"""

import os
import re
import time
from functools import partial
from typing import NamedTuple
from urllib.parse import parse_qs

MAX_SLEEP_S = 3600.0
MAX_CPU_MS = 3_600_000.0

# Stricter than float(), which also accepts "nan", "inf", "1_000", " 1 " and non-ASCII digits.
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


class BadValue(ValueError):
    """An invalid value; the message is one sentence for the user."""


class Work(NamedTuple):
    """The cost of one request."""

    sleep_s: float
    cpu_ms: float

    @property
    def response_text(self) -> str:
        """The text of the response."""
        burned = f" and burned {self.cpu_ms:g} ms of CPU" if self.cpu_ms else ""
        return f"slept {self.sleep_s:g} s{burned}"


def _number(name: str, text: str, unit: str, limit: float) -> float:
    if not _NUMBER.fullmatch(text) or float(text) > limit:
        raise BadValue(f"{name} must be a number of {unit} from 0 to {limit:g}, not {text[:40]!a}.")
    return float(text)


_sleep_s = partial(_number, unit="seconds", limit=MAX_SLEEP_S)
_cpu_ms = partial(_number, unit="milliseconds", limit=MAX_CPU_MS)

# Read at import, so that a bad value stops the server at boot instead of failing every request.
DEFAULT = Work(
    sleep_s=_sleep_s("WORKERLAB_SLEEP", os.environ.get("WORKERLAB_SLEEP", "1")),
    cpu_ms=_cpu_ms("WORKERLAB_CPU", os.environ.get("WORKERLAB_CPU", "0")),
)


def work_for(query: str) -> Work:
    """Parse a query string such as `sleep=0.2&cpu=5`; missing values are the defaults.

    Raises BadValue for a value that is not a number, negative, above an hour, or given twice.
    """
    if not query:
        return DEFAULT
    options = parse_qs(query, keep_blank_values=True)
    for name in ("sleep", "cpu"):
        if len(options.get(name, ())) > 1:
            raise BadValue(f"{name} must be given once, not {len(options[name])} times.")
    return Work(
        sleep_s=_sleep_s("sleep", options["sleep"][0]) if "sleep" in options else DEFAULT.sleep_s,
        cpu_ms=_cpu_ms("cpu", options["cpu"][0]) if "cpu" in options else DEFAULT.cpu_ms,
    )


def burn(cpu_ms: float) -> None:
    """Keep the CPU busy until this thread has used `cpu_ms` of it.

    Measured in the thread's CPU time: in wall-clock time, a request would use less CPU the more
    requests compete for the core, and overload would not show.
    """
    if not cpu_ms:
        return
    end_s = time.thread_time() + cpu_ms / 1000
    while time.thread_time() < end_s:
        sum(range(100))  # a few microseconds between two clock readings
