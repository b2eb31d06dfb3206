"""Serves the pages until a signal comes, or no page has been open for long."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from workerlab.experiments.live.classroom import MAX_PUPILS
from workerlab.experiments.live.stage import Stage
from workerlab.experiments.live.web import application, pupil_application
from workerlab.numbers.units import format_wait
from workerlab.terminal.console import tell
from workerlab.terminal.interrupt import ending_signals

LOOK_S = 0.1
GRACE_S = 1  # for streams to end
MAX_CONNECTIONS = 6 * MAX_PUPILS  # a browser opens up to six


class PageServer(uvicorn.Server):
    """Leaves signals to us: it would send itself another one at the end, before we clean up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    stage: Stage,
    token: str,
    sock: socket.socket,
    unwatched_s: float,
    pupil_sock: socket.socket | None = None,
) -> None:
    ended = asyncio.Event()
    servers = {_server(application(stage, token, sock.getsockname()[1], ended)): sock}
    if pupil_sock is not None:
        app = pupil_application(stage, pupil_sock.getsockname()[1], ended)
        servers[_server(app, MAX_CONNECTIONS)] = pupil_sock

    def end() -> None:
        for server in servers:
            server.should_exit = True
        ended.set()

    loop = asyncio.get_running_loop()
    for signal in ending_signals():
        loop.add_signal_handler(signal, end)

    async def watch_viewers() -> None:
        while not ended.is_set():
            await asyncio.sleep(LOOK_S)
            if stage.alone_s > unwatched_s:
                tell(f"no viewer for {format_wait(unwatched_s)}, shutting down")
                end()

    watching = asyncio.create_task(watch_viewers())
    await asyncio.gather(*(server.serve(sockets=[sock]) for server, sock in servers.items()))
    ended.set()
    await watching


def _server(app: ASGIApp, max_connections: int | None = None) -> PageServer:
    return PageServer(uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off",
        timeout_graceful_shutdown=GRACE_S, limit_concurrency=max_connections,
    ))  # fmt: skip
