"""A trap: `time.sleep` inside an `async def`.

An event loop runs one thing at a time and relies on each to give way at its `await`s. This
`time.sleep` does not: while it lasts the worker answers nobody, and a class that knows no limit
(`asgi`, `uvicorn`) serves one request per worker, like sync. Any call that blocks does the same: a
database driver without `await`, `requests.get`, reading a large file.

Nothing fails and nothing is logged, until one call lasts longer than Gunicorn's `timeout`: the
heartbeat is blocked too, and the arbiter kills the worker with every request in it. The cure:
`await asyncio.sleep`, as in `apps/sleep_asgi.py`, or `await asyncio.to_thread(...)` around what
cannot be awaited.
"""

import time

from apps.answers import asgi_app


async def sleep(seconds: float) -> None:
    time.sleep(seconds)  # the trap


app = asgi_app(sleep)
