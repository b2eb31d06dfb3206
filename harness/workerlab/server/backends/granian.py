"""Granian, for WSGI apps. It spawns the workers. On Linux each opens a listening socket of its own
on the same port (SO_REUSEPORT), and the kernel distributes the connections: on port 0 each worker
would get another port.

Slots: `--blocking-threads` of each worker. `--backpressure` limits how many connections a worker
accepts, those whose requests wait for a thread included
(https://github.com/emmett-framework/granian#backpressure).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from workerlab.model import Server, WorkerClass
from workerlab.server.backends.backend import Backend


class Granian(Backend):
    ROW = WorkerClass(
        "granian", "threads", accepts_first=True, packages=("granian",), alone=True,
        advice="more threads or workers serve more at once",
        unseen="granian accepts and reads requests outside Python: how long they wait inside a"
        " worker is missing, and part of the rest",
    )  # fmt: skip
    PREFIX = "GRANIAN_"
    STOPS_SOON = ("--workers-kill-timeout", "1")

    @contextmanager
    def port(self, host: str) -> Iterator[int]:
        """Kept by a socket that is bound, but gets no connections, as it does not listen."""
        if sys.platform != "linux":
            yield 0
            return
        import socket  # --help does without

        with socket.socket() as reserving:
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserving.bind((host, 0))
            yield reserving.getsockname()[1]

    def command_line(self, server: Server, app: str, host: str, port: int) -> list[str]:
        return [
            "-m", "granian", app, "--interface", "wsgi",
            "--host", host, "--port", str(port), "--workers", str(server.workers),
            "--blocking-threads", str(server.threads),
            "--backpressure", str(server.worker_connections),
            "--backlog", str(server.backlog),
        ]  # fmt: skip
