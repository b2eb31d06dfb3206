"""Three common mistakes in an asynchronous client, by name, against any server:

    python -m workerlab.load.mistakes missing_await http://127.0.0.1:8000/
    python -m workerlab.load.mistakes session_per_request http://127.0.0.1:8000/
    python -m workerlab.load.mistakes everything_at_once http://127.0.0.1:8000/

Each runs both the mistake and its correction, and prints the results as text or as JSON.

missing_await: calling an `async def` creates a coroutine object; only awaiting it runs it. Nothing
fails: the caller quickly gets as many objects as it expected answers, and no request is sent.
Python warns when the objects are destroyed. A Task that is not awaited starts only when the loop
runs again; if the loop ends first, asyncio reports it as pending.

session_per_request: every request opens and closes a connection. That costs time, and as the client
closes first, each of its sockets stays in TIME_WAIT for a minute and occupies a port (errno 99 once
none is left).

everything_at_once: a semaphore limits how many requests are in flight, not how many tasks wait for
it; `gather` keeps all results until the last task is done.
"""

import argparse
import asyncio
import gc
import json
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

try:
    import aiohttp
except ModuleNotFoundError as error:
    print(f"mistakes: needs {error.name}: pip install {error.name}", file=sys.stderr)
    sys.exit(3)

REQUESTS = {"missing_await": 100, "session_per_request": 2000, "everything_at_once": 10_000}
CONNECTIONS, SEMAPHORE = 20, 1000
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
TIME_WAIT = "06"  # include/net/tcp_states.h

Form: TypeAlias = Callable[[aiohttp.ClientSession, str, int], Awaitable[list[Any]]]


async def fetch(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        await answer.read()
        return answer.status


async def not_awaited(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return [fetch(session, url) for _ in range(requests)]


async def abandoned(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return [asyncio.create_task(fetch(session, url)) for _ in range(requests)]


async def awaited(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return list(await asyncio.gather(*(fetch(session, url) for _ in range(requests))))


async def with_many(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    async def fetch_alone() -> int:
        async with aiohttp.ClientSession(trace_configs=session.trace_configs) as own:
            return await fetch(own, url)

    return await all_of(fetch_alone, requests)


async def with_one(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return await all_of(lambda: fetch(session, url), requests)


async def all_tasks(
    session: aiohttp.ClientSession, url: str, requests: int, *, keep: bool = False
) -> list[Any]:
    semaphore = asyncio.Semaphore(SEMAPHORE)

    async def fetch_in_turn() -> int | bytes:
        async with semaphore, session.get(url, raise_for_status=True) as answer:
            body = await answer.read()
            return body if keep else answer.status

    return list(await asyncio.gather(*(fetch_in_turn() for _ in range(requests))))


async def all_of(fetch_one: Callable[[], Awaitable[int]], requests: int) -> list[int]:
    """Fetch CONNECTIONS at a time. Returns the status codes."""
    left, returned = iter(range(requests)), []

    async def client() -> None:
        for _ in left:
            returned.append(await fetch_one())

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return returned


# The forms of each mistake: (code, function)
MISTAKES: dict[str, dict[str, tuple[str, Form]]] = {
    "missing_await": {
        "mistake": ("[fetch(session, url) for _ in range(n)]", not_awaited),
        "abandoned": ("[asyncio.create_task(fetch(session, url)) for _ in range(n)]", abandoned),
        "cure": ("await asyncio.gather(*(fetch(session, url) for _ in range(n)))", awaited),
    },
    "session_per_request": {
        "mistake": ("async with ClientSession() as session: ...  for each request", with_many),
        "cure": ("one ClientSession for all requests", with_one),
    },
    "everything_at_once": {  # the cure first, as the peak memory of a process never falls
        "cure": ("a coroutine for each connection, which drops the bodies", with_one),
        "tasks": ("a task for each request, and a semaphore", all_tasks),
        "bodies": ("the same, each body kept", partial(all_tasks, keep=True)),
    },
}


async def _run(form: Form, url: str, requests: int) -> tuple[list[Any], int]:
    """(the list that the form returns, the number of connections opened)."""
    opened = []
    counting = aiohttp.TraceConfig()

    async def count(*_: object) -> None:
        opened.append(1)

    counting.on_connection_create_end.append(count)
    connector = aiohttp.TCPConnector(limit=0)  # no limit: each form sets its own
    session = aiohttp.ClientSession(connector=connector, trace_configs=[counting])
    returned = await form(session, url, requests)
    if form is not abandoned:  # closing the session would run the pending tasks
        await session.close()
        await asyncio.sleep(0)  # its sockets are closed in the next turn of the loop
    return returned, len(opened)


def attempt(mistake: str, name: str, url: str, requests: int) -> dict[str, Any]:
    """Run one form in its own event loop, and collect warnings until its last object is destroyed.

    `returned`: number of objects of each type that the form returns; `complaints`: warnings of
    Python and asyncio, with counts; `time_wait`: sockets to the server left in TIME_WAIT, None if
    unknown; `peak_bytes`: peak memory of this process so far.
    """
    code, form = MISTAKES[mistake][name]
    messages: Counter[str] = Counter()
    port = urlsplit(url).port or 80
    before = left_behind(port) if mistake == "session_per_request" else None
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: messages.update([str(context["message"])]))
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("always", RuntimeWarning)
        try:
            returned, connections = loop.run_until_complete(_run(form, url, requests))
        finally:
            loop.close()
        seconds = time.monotonic() - began
        after = None if before is None else left_behind(port)
        types = dict(Counter(type(value).__name__ for value in returned))
        answers = sum(value == 200 or isinstance(value, bytes) for value in returned)
        del returned
        gc.collect()
    messages.update(str(warning.message) for warning in caught)
    return {
        "mistake": mistake,
        "form": name,
        "code": code,
        "requests": requests,
        "returned": types,
        "answers": answers,
        "connections": connections,
        "seconds": seconds,
        "complaints": _complaints(messages),
        "time_wait": None if before is None or after is None else after - before,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES,
    }


def _complaints(messages: Counter[str]) -> dict[str, int]:
    """The messages about tasks and coroutines, with counts."""
    return {text: n for text, n in messages.items() if text.startswith(("Task", "coroutine"))}


def left_behind(port: int) -> int | None:
    """The number of client sockets to `port` in TIME_WAIT; None without /proc/net/tcp."""
    try:
        rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return None
    ends = (row.split()[2:4] for row in rows)
    return sum(state == TIME_WAIT and remote.endswith(f":{port:04X}") for remote, state in ends)


def text_of(outcome: dict[str, Any]) -> str:
    returned = " and ".join(f"{count} x {name}" for name, count in outcome["returned"].items())
    lines = [
        "{form}: {code}".format(**outcome),
        f"  {outcome['requests']} requests wanted, {returned} returned: {outcome['answers']}"
        " answers, {connections} connections opened, {seconds:.2f} s".format(**outcome),
    ]
    if outcome["time_wait"] is not None:
        lines.append(f"  {outcome['time_wait']} of its sockets are left in TIME_WAIT")
    lines.append(f"  at most {outcome['peak_bytes'] >> 20} MB of memory so far")
    lines += [f"  reported {count} times: {text}" for text, count in outcome["complaints"].items()]
    return "\n".join(lines)


def main() -> int:
    """Run all forms in order, or `--only` one. Returns 1 if the server failed."""
    parser = argparse.ArgumentParser(prog="mistakes")
    parser.add_argument("mistake", choices=tuple(MISTAKES))
    parser.add_argument("url")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--only", metavar="FORM", help="mistake, abandoned or cure")
    parser.add_argument("--json", action="store_true", help="a JSON document per form")
    options = parser.parse_args()
    forms = MISTAKES[options.mistake]
    if options.only not in (None, *forms):
        parser.error(f"{options.mistake} has the forms {', '.join(forms)}")
    requests = options.requests or REQUESTS[options.mistake]
    for form in (options.only,) if options.only else forms:
        try:
            outcome = attempt(options.mistake, form, options.url, requests)
        except (aiohttp.ClientError, OSError) as error:
            print(f"{options.mistake}: {error}", file=sys.stderr)
            return 1
        print(json.dumps(outcome) if options.json else text_of(outcome), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
