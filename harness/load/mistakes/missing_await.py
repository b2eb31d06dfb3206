"""An `async def` that is called and not awaited does nothing at all.

    python -m harness.load.mistakes.missing_await http://127.0.0.1:8000/

Calling it makes a coroutine object; only awaiting it runs it. Nothing fails: the caller gets a list
of as many objects as it expected answers, very fast, and no request is sent. Python says so when
the objects are thrown away; a Task that nobody awaits begins only when the loop gets a turn, and
where the loop ends first, asyncio says that it was pending.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from harness.load.mistakes.program import Counting, Outcome, fetch, kinds, run

NAME = "missing_await"
REQUESTS = 100


async def not_awaited(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return [fetch(session, url) for _ in range(requests)]


async def abandoned(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return [asyncio.create_task(fetch(session, url)) for _ in range(requests)]


async def awaited(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return list(await asyncio.gather(*(fetch(session, url) for _ in range(requests))))


FORMS: dict[str, tuple[str, Callable[..., Awaitable[list[Any]]]]] = {
    "mistake": ("[fetch(session, url) for _ in range(n)]", not_awaited),
    "abandoned": ("[asyncio.create_task(fetch(session, url)) for _ in range(n)]", abandoned),
    "cure": ("await asyncio.gather(*(fetch(session, url) for _ in range(n)))", awaited),
}


async def _attempt(form: str, counting: Counting, url: str, requests: int) -> list[Any]:
    """The session is closed where its work is done, and left alone where nobody waits for it:
    closing it would give those who are pending a turn."""
    session = aiohttp.ClientSession(trace_configs=[counting])
    returned = await FORMS[form][1](session, url, requests)
    if form != "abandoned":
        await session.close()
    return returned


def attempt(form: str, url: str, requests: int) -> Outcome:
    """One form in a loop of its own, and all complaints until its last object was gone."""
    messages: Counter[str] = Counter()
    counting = Counting()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, what: messages.update([str(what["message"])]))
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("always", RuntimeWarning)
        try:
            returned = loop.run_until_complete(_attempt(form, counting, url, requests))
        finally:
            loop.close()
        seconds = time.monotonic() - began
        types, answers = kinds(returned)
        del returned
        gc.collect()
    messages.update(str(warning.message) for warning in caught)
    complaints = {text: n for text, n in messages.items() if text.startswith(("Task", "coroutine"))}
    return Outcome(
        NAME, form, FORMS[form][0], requests, types, answers, counting.connections, seconds,
        complaints,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(NAME, FORMS, attempt, REQUESTS))
