"""uvicorn without Gunicorn. Its supervisor spawns the workers, which share one listening socket.

Slots: no limit. `--limit-concurrency` is not used: it answers 503 instead of letting requests wait
(https://www.uvicorn.org/settings/#resource-limits).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workerlab.model import WorkerClass
from workerlab.server.backends.backend import IMPORTED, Backend

if TYPE_CHECKING:
    from workerlab.server.running import Launch


class UvicornAlone(Backend):
    ROW = WorkerClass(
        "uvicorn-alone", "unlimited", serves=("asgi", "asgi2"), accepts_first=True, loop=True,
        ignores=("threads", "worker_connections"), packages=("uvicorn",), alone=True,
    )  # fmt: skip
    PREFIX = "UVICORN_"

    def command(self, launch: Launch) -> list[str]:
        server = launch.server
        # Loop and parser are fixed: "auto" would measure other things where uvloop is installed
        return [
            "-m", "uvicorn", IMPORTED, "--host", launch.host, "--port", "0",
            "--workers", str(server.workers), "--backlog", str(server.backlog),
            "--loop", "asyncio", "--http", "h11", "--no-access-log",
            "--timeout-graceful-shutdown", "1",
        ]  # fmt: skip
