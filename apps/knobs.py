"""What one request shall cost: seconds of sleep and milliseconds of CPU.

The environment sets what a request costs by default, its query may say otherwise:

    WORKERLAB_SLEEP=0.5 WORKERLAB_CPU=20 gunicorn apps.sleep_wsgi:app
    curl '127.0.0.1:8000/?sleep=0.2&cpu=5'

Other words in the query are left alone: they may tell requests apart.
"""

import os
import re
import time
from functools import partial
from typing import NamedTuple
from urllib.parse import parse_qs

MAX_SLEEP_S = 3600.0
MAX_CPU_MS = 3_600_000.0

# Stricter than float(), which also takes "nan", "inf", "1_000", " 1 " and the digits of any script.
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


class BadValue(ValueError):
    """A value that cannot be served; the message is one sentence for the one who asked."""


class Work(NamedTuple):
    """What one request costs."""

    sleep_s: float
    cpu_ms: float

    @property
    def done(self) -> str:
        """What the response says."""
        burned = f" and burned {self.cpu_ms:g} ms of CPU" if self.cpu_ms else ""
        return f"slept {self.sleep_s:g} s{burned}"


def _number(name: str, text: str, unit: str, most: float) -> float:
    if not _NUMBER.fullmatch(text) or float(text) > most:
        raise BadValue(f"{name} must be a number of {unit} from 0 to {most:g}, not {text[:40]!a}.")
    return float(text)


_sleep_s = partial(_number, unit="seconds", most=MAX_SLEEP_S)
_cpu_ms = partial(_number, unit="milliseconds", most=MAX_CPU_MS)

# Read at import, so that a bad value stops the server at boot instead of spoiling every answer.
DEFAULT = Work(
    sleep_s=_sleep_s("WORKERLAB_SLEEP", os.environ.get("WORKERLAB_SLEEP", "1")),
    cpu_ms=_cpu_ms("WORKERLAB_CPU", os.environ.get("WORKERLAB_CPU", "0")),
)


def work_for(query: str) -> Work:
    """Read a query string such as `sleep=0.2&cpu=5`; what it leaves out is the default.

    Raises BadValue for a value that is no number, negative, above an hour, or given twice.
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

    Measured in CPU time of the thread: by the wall clock, a request would get the cheaper the
    more others compete for the core, and overload would not show.
    """
    if not cpu_ms:
        return
    until = time.thread_time() + cpu_ms / 1000
    while time.thread_time() < until:
        sum(range(100))  # a few microseconds between two looks at the clock
