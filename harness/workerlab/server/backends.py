"""How a server is started and watched: what all backends have in common, and the servers other than
Gunicorn, a row each. To add one: its row in BACKENDS.

Rejected: to choose a port that is free now and pass it on, as another program may take it first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from workerlab.model import ANY_CLASS, Server, WorkerClass

if TYPE_CHECKING:
    from workerlab.server.running import Launch

CLOSES = "then closes each connection"  # as h11 does
IMPORTED = "workerlab_app:app"  # the app in the probe, in `inside/alone`


class Backend(Struct, frozen=True):
    """A server with a command line of its own, that imports the app in each of its workers. `argv`:
    its words after the interpreter, a template, for users as well. `stops_soon`: options of
    measured servers only, whose load is over. `prefix`: of environment variables that would change
    its settings. `shares_port`: each of its workers opens a listening socket of its own on the same
    port (SO_REUSEPORT, Linux); on port 0 each would get another port."""

    row: WorkerClass = ANY_CLASS
    argv: str = ""
    stops_soon: str = ""
    prefix: str = ""
    shares_port: bool = False
    SCRUBBED: ClassVar[tuple[str, ...]] = ("WEB_CONCURRENCY", "PORT")

    def is_configured_by(self, variable: str) -> bool:
        """Whether an environment variable would change its settings."""
        return variable in self.SCRUBBED or bool(self.prefix and variable.startswith(self.prefix))

    @contextmanager
    def port(self, host: str) -> Iterator[int]:
        """The port to name, for as long as the server runs; 0: the kernel chooses one. A shared one
        is kept by a socket that is bound, but gets no connections, as it does not listen."""
        if not self.shares_port or sys.platform != "linux":
            yield 0
            return
        import socket  # --help does without

        with socket.socket() as reserving:
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserving.bind((host, 0))
            yield reserving.getsockname()[1]

    def command(self, launch: Launch, port: int) -> list[str]:
        """Its command line after the interpreter."""
        words = self.command_line(launch.server, IMPORTED, launch.host, port)
        return [*words, *self.stops_soon.split()]

    def command_line(self, server: Server, app: str, host: str, port: int) -> list[str]:
        """Its command line after the interpreter, for users as well. `app`: module:name."""
        values = {"app": app, "host": host, "port": port, **settings_of(server)}
        return [word.format(**values) for word in self.argv.split()]

    def launch_file(self, launch: Launch) -> dict[str, Any]:
        """What the code in the workers needs to know about this kind of server."""
        settings = settings_of(launch.server)
        return {"app": launch.app.target, "asgi": self.row.asgi, "settings": settings}

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


def settings_of(server: Server) -> dict[str, int]:
    """The settings that all servers have."""
    names = ("workers", "threads", "backlog", "worker_connections")
    return {name: getattr(server, name) for name in names}


_ROWS = (
    # Its supervisor spawns the workers, which share one listening socket. --limit-concurrency is
    # not used: it answers 503 instead of letting requests wait
    # (https://www.uvicorn.org/settings/#resource-limits). Loop and parser are fixed: "auto" would
    # measure other things where uvloop is installed
    Backend(
        WorkerClass(
            "uvicorn-alone", "unlimited", serves=("asgi", "asgi2"), accepts_first=True, loop=True,
            ignores=("threads", "worker_connections"), packages=("uvicorn",), alone=True,
            closes_http_1_0=CLOSES,
        ),
        "-m uvicorn {app} --host {host} --port {port} --workers {workers} --backlog {backlog}"
        " --loop asyncio --http h11 --no-access-log",
        stops_soon="--timeout-graceful-shutdown 1",
        prefix="UVICORN_",
    ),
    # It spawns the workers; on Linux the kernel distributes the connections among their sockets.
    # --backpressure limits how many connections a worker accepts, those whose requests wait for a
    # thread included (https://github.com/emmett-framework/granian#backpressure)
    Backend(
        WorkerClass(
            "granian", "threads", accepts_first=True, packages=("granian",), alone=True,
            advice="more threads or workers serve more at once",
            unseen="granian accepts and reads requests outside Python: how long they wait inside a"
            " worker is missing, and part of the rest",
        ),
        "-m granian {app} --interface wsgi --host {host} --port {port} --workers {workers}"
        " --blocking-threads {threads} --backpressure {worker_connections} --backlog {backlog}",
        stops_soon="--workers-kill-timeout 1",
        prefix="GRANIAN_",
        shares_port=True,
    ),
    # It spawns its asyncio workers; they share one listening socket. No limit of requests
    # (https://hypercorn.readthedocs.io/en/latest/how_to_guides/configuring.html names none)
    Backend(
        WorkerClass(
            "hypercorn", "unlimited", serves=("asgi",), accepts_first=True, loop=True,
            ignores=("threads", "worker_connections"), packages=("hypercorn",), alone=True,
            closes_http_1_0=CLOSES,
        ),
        "-m hypercorn {app} --bind {host}:{port} -k asyncio --workers {workers}"
        " --backlog {backlog}",
        stops_soon="--graceful-timeout 1",
    ),
    # One process, whose main thread reads all requests and gives each to a thread.
    # --connection-limit limits the connections that it accepts
    # (https://docs.pylonsproject.org/projects/waitress/en/stable/arguments.html)
    Backend(
        WorkerClass(
            "waitress", "threads", accepts_first=True, ignores=("workers",),
            packages=("waitress",), alone=True, advice="more threads serve more at once",
        ),
        "-m waitress --listen={host}:{port} --threads={threads} --backlog={backlog}"
        " --connection-limit={worker_connections} {app}",
    ),
)  # fmt: skip
BACKENDS: Mapping[str, Backend] = {backend.row.name: backend for backend in _ROWS}
