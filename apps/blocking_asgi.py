"""A trap: `time.sleep` inside an `async def`.

An event loop runs one task at a time and relies on tasks to yield at `await`. This `time.sleep`
does not yield: until it returns, the worker serves no other request, and a class without a slot
limit (`asgi`, `uvicorn`) serves one request per worker, like sync. Any blocking call does the same:
a synchronous database driver, `requests.get`, reading a large file.

Nothing fails and nothing is logged, until one call lasts longer than Gunicorn's `timeout`: the
heartbeat is blocked too, and the arbiter kills the worker with all its requests. The fix:
`await asyncio.sleep`, as in `apps/sleep_asgi.py`, or `await asyncio.to_thread(...)` around calls
that cannot be awaited.
"""

import time

from apps.responses import asgi_app


async def sleep(seconds: float) -> None:
    time.sleep(seconds)  # the trap


app = asgi_app(sleep)
