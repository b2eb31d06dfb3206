"""The minimal sleep app as ASGI: it waits with `asyncio.sleep`, which lets others run."""

from __future__ import annotations

import asyncio

from apps.answers import asgi_app

app = asgi_app(asyncio.sleep)
