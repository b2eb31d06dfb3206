"""Three common mistakes in an asynchronous client, by name, against any server:

    python -m workerlab.load.mistakes missing_await http://127.0.0.1:8000/
    python -m workerlab.load.mistakes session_per_request http://127.0.0.1:8000/
    python -m workerlab.load.mistakes everything_at_once http://127.0.0.1:8000/

Each runs both the mistake and its correction, and prints the results as text or as JSON.

missing_await: calling an `async def` creates a coroutine object; only awaiting it runs it. Nothing
fails: the caller quickly gets as many objects as it expected responses, but no request is sent.
Python warns when the objects are destroyed. A Task that is not awaited starts only when the loop
runs again; if the loop ends first, asyncio reports it as pending.

session_per_request: every request opens and closes a connection. That costs time, and because the
client closes first, each of its sockets stays in TIME_WAIT for a minute and occupies a port (errno
99 once none is left).

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

DEFAULT_REQUESTS = {"missing_await": 100, "session_per_request": 2000, "everything_at_once": 10_000}
CONNECTIONS, SEMAPHORE_LIMIT = 20, 1000
MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
TIME_WAIT = "06"  # in /proc/net/tcp; include/net/tcp_states.h

Form: TypeAlias = Callable[[aiohttp.ClientSession, str, int], Awaitable[list[Any]]]


async def fetch(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as response:
        await response.read()
        return response.status


async def create_coroutines(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return [fetch(session, url) for _ in range(requests)]


async def create_tasks(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return [asyncio.create_task(fetch(session, url)) for _ in range(requests)]


async def await_all(session: aiohttp.ClientSession, url: str, requests: int) -> list[Any]:
    return list(await asyncio.gather(*(fetch(session, url) for _ in range(requests))))


async def fetch_with_many_sessions(
    session: aiohttp.ClientSession, url: str, requests: int
) -> list[Any]:
    async def fetch_alone() -> int:
        async with aiohttp.ClientSession(trace_configs=session.trace_configs) as own_session:
            return await fetch(own_session, url)

    return await fetch_all(fetch_alone, requests)


async def fetch_with_one_session(
    session: aiohttp.ClientSession, url: str, requests: int
) -> list[Any]:
    return await fetch_all(lambda: fetch(session, url), requests)


async def fetch_with_all_tasks(
    session: aiohttp.ClientSession, url: str, requests: int, *, keep_bodies: bool = False
) -> list[Any]:
    semaphore = asyncio.Semaphore(SEMAPHORE_LIMIT)

    async def fetch_in_turn() -> int | bytes:
        async with semaphore, session.get(url, raise_for_status=True) as response:
            body = await response.read()
            return body if keep_bodies else response.status

    return list(await asyncio.gather(*(fetch_in_turn() for _ in range(requests))))


async def fetch_all(fetch_one: Callable[[], Awaitable[int]], requests: int) -> list[int]:
    """Send all requests, CONNECTIONS at a time. Returns the status codes."""
    pending, statuses = iter(range(requests)), []

    async def client() -> None:
        for _ in pending:
            statuses.append(await fetch_one())

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return statuses


# The forms of each mistake: (code, function)
MISTAKES: dict[str, dict[str, tuple[str, Form]]] = {
    "missing_await": {
        "mistake": ("[fetch(session, url) for _ in range(n)]", create_coroutines),
        "abandoned": ("[asyncio.create_task(fetch(session, url)) for _ in range(n)]", create_tasks),
        "cure": ("await asyncio.gather(*(fetch(session, url) for _ in range(n)))", await_all),
    },
    "session_per_request": {
        "mistake": (
            "async with ClientSession() as session: ...  for each request",
            fetch_with_many_sessions,
        ),
        "cure": ("one ClientSession for all requests", fetch_with_one_session),
    },
    "everything_at_once": {  # the cure first, because the peak memory of a process never falls
        "cure": (
            "a coroutine for each connection, which discards the bodies",
            fetch_with_one_session,
        ),
        "tasks": ("a task for each request, and a semaphore", fetch_with_all_tasks),
        "bodies": ("the same, keeping every body", partial(fetch_with_all_tasks, keep_bodies=True)),
    },
}


async def _run(form: Form, url: str, requests: int) -> tuple[list[Any], int]:
    """(the list that the form returned, the number of connections opened)."""
    connections = 0
    tracing = aiohttp.TraceConfig()

    async def count(*_: object) -> None:
        nonlocal connections
        connections += 1

    tracing.on_connection_create_end.append(count)
    connector = aiohttp.TCPConnector(limit=0)  # no limit: each form sets its own
    session = aiohttp.ClientSession(connector=connector, trace_configs=[tracing])
    results = await form(session, url, requests)
    if form is not create_tasks:  # closing the session would run the pending tasks
        await session.close()
        await asyncio.sleep(0)  # its sockets are closed in the next iteration of the loop
    return results, connections


def run_form(mistake: str, name: str, url: str, requests: int) -> dict[str, Any]:
    """Run one form in its own event loop, and collect warnings until its last object is destroyed.

    `returned`: number of objects that the form returned, by type; `complaints`: warnings from
    Python and asyncio, with counts; `time_wait`: sockets to the server left in TIME_WAIT, or None
    if unknown; `peak_bytes`: peak memory of this process so far.
    """
    code, form = MISTAKES[mistake][name]
    messages: Counter[str] = Counter()
    port = urlsplit(url).port or 80
    before = time_wait_sockets(port) if mistake == "session_per_request" else None
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: messages.update([str(context["message"])]))
    start_s = time.monotonic()
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("always", RuntimeWarning)
        try:
            results, connections = loop.run_until_complete(_run(form, url, requests))
        finally:
            loop.close()
        seconds = time.monotonic() - start_s
        after = None if before is None else time_wait_sockets(port)
        type_counts = dict(Counter(type(value).__name__ for value in results))
        responses = sum(value == 200 or isinstance(value, bytes) for value in results)
        del results
        gc.collect()
    messages.update(str(warning.message) for warning in caught_warnings)
    return {
        "mistake": mistake,
        "form": name,
        "code": code,
        "requests": requests,
        "returned": type_counts,
        "answers": responses,
        "connections": connections,
        "seconds": seconds,
        "complaints": _complaints(messages),
        "time_wait": None if before is None or after is None else after - before,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT_BYTES,
    }


def _complaints(messages: Counter[str]) -> dict[str, int]:
    """The messages about tasks and coroutines, with counts."""
    prefixes = ("Task", "coroutine")
    return {text: count for text, count in messages.items() if text.startswith(prefixes)}


def time_wait_sockets(port: int) -> int | None:
    """The number of client sockets to `port` in TIME_WAIT; None without /proc/net/tcp."""
    try:
        rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return None
    columns = (row.split()[2:4] for row in rows)
    return sum(state == TIME_WAIT and remote.endswith(f":{port:04X}") for remote, state in columns)


def text_of(outcome: dict[str, Any]) -> str:
    returned = " and ".join(f"{count} x {name}" for name, count in outcome["returned"].items())
    lines = [
        "{form}: {code}".format(**outcome),
        f"  {outcome['requests']} requests intended, {returned} returned: {outcome['answers']}"
        " responses, {connections} connections opened, {seconds:.2f} s".format(**outcome),
    ]
    if outcome["time_wait"] is not None:
        lines.append(f"  {outcome['time_wait']} client sockets remain in TIME_WAIT")
    lines.append(f"  {outcome['peak_bytes'] >> 20} MB of peak memory so far")
    lines += [f"  reported {count} times: {text}" for text, count in outcome["complaints"].items()]
    return "\n".join(lines)


def main() -> int:
    """Run all forms in order, or only one. Returns 1 if a request fails."""
    parser = argparse.ArgumentParser(prog="mistakes")
    parser.add_argument("mistake", choices=tuple(MISTAKES))
    parser.add_argument("url")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--only", metavar="FORM", help="run only this form")
    parser.add_argument("--json", action="store_true", help="print a JSON document per form")
    options = parser.parse_args()
    forms = MISTAKES[options.mistake]
    if options.only not in (None, *forms):
        parser.error(f"{options.mistake} has the forms {', '.join(forms)}")
    requests = options.requests or DEFAULT_REQUESTS[options.mistake]
    for form in (options.only,) if options.only else forms:
        try:
            outcome = run_form(options.mistake, form, options.url, requests)
        except (aiohttp.ClientError, OSError) as error:
            print(f"{options.mistake}: {error}", file=sys.stderr)
            return 1
        print(json.dumps(outcome) if options.json else text_of(outcome), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
