"""A tornado application that blocks its event loop as the query requests: see `held`."""

from __future__ import annotations

import asyncio

from held import BODY, work_of
from tornado.web import Application, RequestHandler


class Handler(RequestHandler):
    async def get(self) -> None:
        wait_s, what, ms = work_of(self.request.query)
        await asyncio.sleep(wait_s)
        what(ms)
        self.finish(BODY)


app = Application([("/", Handler)])
