"""tornado's own application that blocks its event loop as the query says: see `blocking`."""

from __future__ import annotations

import asyncio

from blocking import BODY, hold_up, parts
from tornado.web import Application, RequestHandler


class Handler(RequestHandler):
    async def get(self) -> None:
        wait_s, *held = parts(self.request.query)
        await asyncio.sleep(wait_s)
        hold_up(*held)
        self.finish(BODY)


app = Application([("/", Handler)])
