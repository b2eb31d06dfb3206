"""Granian, for WSGI apps. It spawns the workers, which share one listening socket.

Slots: `--blocking-threads` of each worker. `--backpressure` limits how many requests a worker
processes at once, those that wait for a thread included
(https://github.com/emmett-framework/granian#backpressure).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workerlab.model import WorkerClass
from workerlab.server.backends.backend import IMPORTED, Backend

if TYPE_CHECKING:
    from workerlab.server.running import Launch

MIN_BACKLOG = 128  # Granian refuses less


class Granian(Backend):
    ROW = WorkerClass(
        "granian", "threads", accepts_first=True, packages=("granian",), alone=True,
        advice="more threads or workers serve more at once",
        unseen="granian accepts and reads requests outside Python: how long they wait inside a"
        " worker is missing, and part of the rest",
    )  # fmt: skip
    PREFIX = "GRANIAN_"

    def command(self, launch: Launch) -> list[str]:
        server = launch.server
        return [
            "-m", "granian", IMPORTED, "--interface", "wsgi",
            "--host", launch.host, "--port", "0", "--workers", str(server.workers),
            "--blocking-threads", str(server.threads),
            "--backpressure", str(server.worker_connections),
            "--backlog", str(max(MIN_BACKLOG, server.backlog)),
            "--workers-kill-timeout", "1",
        ]  # fmt: skip
