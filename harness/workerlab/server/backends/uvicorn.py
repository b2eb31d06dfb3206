"""uvicorn without Gunicorn. Its supervisor spawns the workers, which share one listening socket.

Slots: no limit. `--limit-concurrency` is not used: it answers 503 instead of letting requests wait
(https://www.uvicorn.org/settings/#resource-limits).
"""

from workerlab.model import Server, WorkerClass
from workerlab.server.backends.backend import Backend


class UvicornAlone(Backend):
    ROW = WorkerClass(
        "uvicorn-alone", "unlimited", serves=("asgi", "asgi2"), accepts_first=True, loop=True,
        ignores=("threads", "worker_connections"), packages=("uvicorn",), alone=True,
    )  # fmt: skip
    PREFIX = "UVICORN_"
    STOPS_SOON = ("--timeout-graceful-shutdown", "1")

    def command_line(self, server: Server, app: str, host: str, port: int) -> list[str]:
        # Loop and parser are fixed: "auto" would measure other things where uvloop is installed
        return [
            "-m", "uvicorn", app, "--host", host, "--port", str(port),
            "--workers", str(server.workers), "--backlog", str(server.backlog),
            "--loop", "asyncio", "--http", "h11", "--no-access-log",
        ]  # fmt: skip
