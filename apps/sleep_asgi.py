"""The minimal sleep app as ASGI: it waits with `asyncio.sleep`, which lets other requests run."""

import asyncio

from apps.responses import asgi_app

app = asgi_app(asyncio.sleep)
