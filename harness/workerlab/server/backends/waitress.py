"""waitress: one process, whose main thread reads all requests and gives each to a thread.

Slots: `--threads`. `--connection-limit` limits the connections that it accepts
(https://docs.pylonsproject.org/projects/waitress/en/stable/arguments.html).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workerlab.model import WorkerClass
from workerlab.server.backends.backend import IMPORTED, Backend

if TYPE_CHECKING:
    from workerlab.server.running import Launch


class Waitress(Backend):
    ROW = WorkerClass(
        "waitress", "threads", accepts_first=True, ignores=("workers",), packages=("waitress",),
        alone=True, advice="more threads serve more at once",
    )  # fmt: skip

    def command(self, launch: Launch) -> list[str]:
        server = launch.server
        return [
            "-m", "waitress", f"--listen={launch.host}:0", f"--threads={server.threads}",
            f"--backlog={server.backlog}", f"--connection-limit={server.worker_connections}",
            IMPORTED,
        ]  # fmt: skip
