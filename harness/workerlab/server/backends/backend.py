"""What a server must say about itself so that the lab can start and watch it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from workerlab.model import Server, WorkerClass

if TYPE_CHECKING:
    from workerlab.server.running import Launch

SETTINGS = ("workers", "threads", "backlog", "worker_connections")
IMPORTED = "workerlab_app:app"  # the app in the probe, in `inside/alone`


class Backend:
    """A server with a command line of its own, that imports the app in each of its workers."""

    ROW: ClassVar[WorkerClass]
    STOPS_SOON: tuple[str, ...] = ()  # options of measured servers only: their load is over
    # Environment variables that would change its settings, and the prefix of others
    SCRUBBED: tuple[str, ...] = ("WEB_CONCURRENCY", "PORT")
    PREFIX = ""

    def is_configured_by(self, variable: str) -> bool:
        """Whether an environment variable would change its settings."""
        return variable in self.SCRUBBED or bool(self.PREFIX and variable.startswith(self.PREFIX))

    @contextmanager
    def port(self, host: str) -> Iterator[int]:
        """The port to name, for as long as the server runs; 0: the kernel chooses one. Rejected: a
        port that is free now, as another program may take it first."""
        yield 0

    def command(self, launch: Launch, port: int) -> list[str]:
        """Its command line after the interpreter."""
        return [*self.command_line(launch.server, IMPORTED, launch.host, port), *self.STOPS_SOON]

    def command_line(self, server: Server, app: str, host: str, port: int) -> list[str]:
        """Its command line after the interpreter, for users as well. `app`: module:name."""
        raise NotImplementedError

    def launch_file(self, launch: Launch) -> dict[str, Any]:
        """What the code in the workers needs to know about this kind of server."""
        return {
            "app": launch.app.target,
            "asgi": self.ROW.asgi,
            "settings": {name: getattr(launch.server, name) for name in SETTINGS},
        }

    def env(self, launch: Launch, env: Mapping[str, str]) -> dict[str, str]:
        """The environment that it is started in, made from `env`."""
        paths = (str(launch.code / "alone"), env.get("PYTHONPATH", ""))
        return {**env, "PYTHONPATH": ":".join(filter(None, paths))}

    def address(self, pid: int | None, listening: Path) -> tuple[str, int] | None:
        """Where the server with this pid listens; None: not yet. `listening`: the file for it."""
        import psutil  # the import takes 20 ms

        with suppress(psutil.Error):  # it has ended
            server = psutil.Process(pid)
            for process in (server, *server.children(recursive=True)):  # Granian's workers listen
                for connection in process.net_connections("tcp4"):
                    if connection.status == psutil.CONN_LISTEN:
                        return connection.laddr.ip, connection.laddr.port
        return None


def saved_address(listening: Path) -> tuple[str, int] | None:
    """The address that a server wrote to its file; None: not yet."""
    if not listening.exists():
        return None
    host, port = json.loads(listening.read_text())["address"]
    return host, port
