"""A session for each request throws away what a session is for: its connections.

    python -m harness.load.mistakes.session_per_request http://127.0.0.1:8000/

Every request then connects anew and closes after it. That costs time, and the side that closes
first, the client, leaves each of its sockets in TIME_WAIT for a minute: ports that are gone for so
long (errno 99, where they run out).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from harness.load.mistakes.program import Counting, Outcome, fetch, kinds, run

NAME = "session_per_request"
REQUESTS = 2000
AT_ONCE = 20
TIME_WAIT = "06"  # include/net/tcp_states.h


async def all_of(fetch_one: Callable[[], Awaitable[int]], requests: int) -> list[int]:
    """Their status codes; AT_ONCE at a time."""
    left, returned = iter(range(requests)), []

    async def client() -> None:
        for _ in left:
            returned.append(await fetch_one())

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return returned


async def with_many(counting: Counting, url: str, requests: int) -> list[int]:
    async def fetch_alone() -> int:
        async with aiohttp.ClientSession(trace_configs=[counting]) as session:
            return await fetch(session, url)

    return await all_of(fetch_alone, requests)


async def with_one(counting: Counting, url: str, requests: int) -> list[int]:
    async with aiohttp.ClientSession(trace_configs=[counting]) as session:
        return await all_of(lambda: fetch(session, url), requests)


def left_behind(port: int) -> int | None:
    """Sockets of clients in TIME_WAIT towards `port`; None where the kernel does not say."""
    try:
        rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return None
    ends = (row.split()[2:4] for row in rows)
    return sum(state == TIME_WAIT and far.endswith(f":{port:04X}") for far, state in ends)


FORMS = {
    "mistake": ("async with ClientSession() as session: ...  for each request", with_many),
    "cure": ("one ClientSession for all requests", with_one),
}


def attempt(form: str, url: str, requests: int) -> Outcome:
    code, make = FORMS[form]
    counting, port = Counting(), urlsplit(url).port or 80
    before = left_behind(port)
    began = time.monotonic()
    returned = asyncio.run(make(counting, url, requests))
    seconds = time.monotonic() - began
    after = left_behind(port)
    return Outcome(
        NAME, form, code, requests, *kinds(returned), counting.connections, seconds,
        time_wait=None if before is None or after is None else after - before,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(NAME, FORMS, attempt, REQUESTS))
