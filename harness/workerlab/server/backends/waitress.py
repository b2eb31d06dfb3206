"""waitress: one process, whose main thread reads all requests and gives each to a thread.

Slots: `--threads`. `--connection-limit` limits the connections that it accepts
(https://docs.pylonsproject.org/projects/waitress/en/stable/arguments.html).
"""

from workerlab.model import Server, WorkerClass
from workerlab.server.backends.backend import Backend


class Waitress(Backend):
    ROW = WorkerClass(
        "waitress", "threads", accepts_first=True, ignores=("workers",), packages=("waitress",),
        alone=True, advice="more threads serve more at once",
    )  # fmt: skip

    def command_line(self, server: Server, app: str, host: str, port: int) -> list[str]:
        return [
            "-m", "waitress", f"--listen={host}:{port}", f"--threads={server.threads}",
            f"--backlog={server.backlog}", f"--connection-limit={server.worker_connections}",
            app,
        ]  # fmt: skip
