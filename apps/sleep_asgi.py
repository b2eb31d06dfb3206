"""The minimal sleep app as ASGI: it waits with `asyncio.sleep`, which lets other requests run."""

import asyncio

from apps.answers import asgi_app

app = asgi_app(asyncio.sleep)
