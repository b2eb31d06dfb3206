"""Hypercorn with its asyncio workers. It spawns them; they share one listening socket.

Slots: no limit (https://hypercorn.readthedocs.io/en/latest/how_to_guides/configuring.html names
none).
"""

from workerlab.model import Server, WorkerClass
from workerlab.server.backends.backend import Backend


class Hypercorn(Backend):
    ROW = WorkerClass(
        "hypercorn", "unlimited", serves=("asgi",), accepts_first=True, loop=True,
        ignores=("threads", "worker_connections"), packages=("hypercorn",), alone=True,
    )  # fmt: skip
    STOPS_SOON = ("--graceful-timeout", "1")

    def command_line(self, server: Server, app: str, host: str, port: int) -> list[str]:
        return [
            "-m", "hypercorn", app, "--bind", f"{host}:{port}", "-k", "asyncio",
            "--workers", str(server.workers), "--backlog", str(server.backlog),
        ]  # fmt: skip
