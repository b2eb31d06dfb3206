"""Calls that block an event loop, each on a line with a `# line:` comment:

    /?what=NAME&ms=30&wait=50&each=1

A request first yields to others for `wait` ms; then every `each`-th one calls NAME, which takes
about `ms`. Uses only the standard library, because it runs in a server's own interpreter."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import re
import socket
import time
from collections.abc import Callable
from time import sleep  # a preloaded app copies this before gevent patches the module
from urllib.parse import parse_qsl

BODY = b"done\n"
LIBC = ctypes.CDLL(None)
counter = itertools.count(1)


def sleeps(ms: float) -> None:
    time.sleep(ms / 1000)  # line: sleeps


def copied(ms: float) -> None:
    sleep(ms / 1000)  # line: copied


def usleeps(ms: float) -> None:
    """Sleeps in C, which gevent and eventlet do not patch."""
    LIBC.usleep(int(ms * 1000))  # line: usleeps


def asks(ms: float) -> None:
    """Waits like a client of a slow server."""
    ours, theirs = socket.socketpair()
    ours.settimeout(ms / 1000)
    with ours, theirs, ours.makefile("rb") as answer:
        try:
            answer.readline()  # line: asks
        except TimeoutError:
            return


def computes(ms: float) -> None:
    until = time.thread_time() + ms / 1000
    while time.thread_time() < until:
        pow(3, 7)  # line: computes


def backtracks(ms: float) -> None:
    """Holds the GIL throughout."""
    length = 16 + int(max(1.0, ms / 2)).bit_length()
    re.match(r"(?:a+)+b", "a" * length)  # line: backtracks


def adds(ms: float) -> None:
    """Holds the GIL throughout."""
    sum(range(int(40_000 * ms)))  # line: adds


def hashes(ms: float) -> None:
    """Releases the GIL."""
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", int(2000 * ms))  # line: hashes


def nothing(_ms: float) -> None:
    pass


ALL = (sleeps, copied, usleeps, asks, computes, backtracks, adds, hashes, nothing)
WHAT: dict[str, Callable[[float], None]] = {function.__name__: function for function in ALL}


def work_of(query: str) -> tuple[float, Callable[[float], None], float]:
    """(seconds to wait, the function to call then, its duration in ms)."""
    values = dict(parse_qsl(query))
    due = next(counter) % int(values.get("each", 1)) == 0
    what = WHAT[values.get("what", "nothing")] if due else nothing
    return float(values.get("wait", 0)) / 1000, what, float(values.get("ms", 30))
