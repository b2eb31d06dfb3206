"""The cases of `cases_asgi` as an application of tornado's own, whose handlers may await."""

from __future__ import annotations

from cases_asgi import CPU_S, WORK, burn
from tornado.web import Application, RequestHandler


class Handler(RequestHandler):
    async def get(self) -> None:
        if CPU_S:
            burn(CPU_S)
        await WORK()
        await self.finish(b"ok\n")


app = Application([("/", Handler)])
