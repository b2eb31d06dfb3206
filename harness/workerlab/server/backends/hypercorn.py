"""Hypercorn with its asyncio workers. It spawns them; they share one listening socket.

Slots: no limit (https://hypercorn.readthedocs.io/en/latest/how_to_guides/configuring.html names
none).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workerlab.model import WorkerClass
from workerlab.server.backends.backend import IMPORTED, Backend

if TYPE_CHECKING:
    from workerlab.server.running import Launch


class Hypercorn(Backend):
    ROW = WorkerClass(
        "hypercorn", "unlimited", serves=("asgi",), accepts_first=True, loop=True,
        ignores=("threads", "worker_connections"), packages=("hypercorn",), alone=True,
    )  # fmt: skip

    def command(self, launch: Launch) -> list[str]:
        server = launch.server
        return [
            "-m", "hypercorn", IMPORTED, "--bind", f"{launch.host}:0", "-k", "asyncio",
            "--workers", str(server.workers), "--backlog", str(server.backlog),
            "--graceful-timeout", "1",
        ]  # fmt: skip
