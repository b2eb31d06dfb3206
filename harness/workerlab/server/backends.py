"""The command lines of Gunicorn and other servers, and the addresses on which they listen. To add a
server, add its row to `worker_classes` and its command line to BACKENDS.

Rejected: choosing a free port in advance, because another program may take it first.
"""

from __future__ import annotations

import json
import math
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from workerlab.model.plan import Server
from workerlab.server.worker_classes import WORKER_CLASSES, class_named

if TYPE_CHECKING:
    from workerlab.server.running import Launch

PROBED_APP = "workerlab_app:app"  # wraps the app in the probe, in `inside/alone`
GRACE_S = 1  # between TERM and KILL; the load is over by then
TIMEOUT_S = 30  # as in configs/
BLOCKED_TIMEOUT_S = 600  # for an event loop that a bundled app blocks
# Environment variables that would change Gunicorn's settings
GUNICORN_VARIABLES = (
    "WEB_CONCURRENCY", "PORT", "GUNICORN_CMD_ARGS", "SENDFILE", "LISTEN_FDS", "LISTEN_PID"
)  # fmt: skip

ACCESS_LOG = "access.log"  # in the trial's directory, instead of the user's file


# Settings that would invalidate a benchmark, or leave something behind: (the value that overrides
# the user's, the reason shown to the user).
FORCED_SETTINGS: Mapping[str, tuple[object, str]] = {
    "bind": ("127.0.0.1:0", "the lab takes a free port on loopback"),
    "daemon": (False, "the lab must be able to stop the server"),
    "reload": (False, "watching files would distort the measurement"),
    "reuse_port": (False, "each worker would get a port of its own"),
    "max_requests": (0, "a load during which workers restart has no steady state"),
    "max_requests_jitter": (0, "a load during which workers restart has no steady state"),
    "graceful_timeout": (GRACE_S, "no measured request is in progress when the lab stops a server"),
    "pidfile": (None, "the lab needs no pid file"),
    "certfile": (None, "the lab measures plain HTTP"),
    "keyfile": (None, "the lab measures plain HTTP"),
    "errorlog": ("-", "the lab reads it"),
}
# User settings that may lower the throughput: without them, measured rates may be too high
SLOWING_SETTINGS = ("reload", "reuse_port", "max_requests", "certfile")


class Backend(Struct, frozen=True):
    """A server that has its own command line and imports the app in each of its workers. `argv`: a
    template of its arguments after the interpreter, also shown to users. `stop_options`: added only
    for measured servers, which are stopped when no request is left. `prefix`: the prefix of the
    environment variables that would change its settings. `min_backlog`: the smallest backlog that
    it accepts."""

    argv: str = ""
    stop_options: str = ""
    prefix: str = ""
    min_backlog: int = 0
    VARIABLES: ClassVar[tuple[str, ...]] = ("WEB_CONCURRENCY", "PORT")

    def is_configured_by(self, variable: str) -> bool:
        """Whether an environment variable would change its settings."""
        return variable in self.VARIABLES or bool(self.prefix and variable.startswith(self.prefix))

    @contextmanager
    def port(self, launch: Launch) -> Iterator[int]:
        """The port for the command line; 0: the kernel chooses one for each socket. If each worker
        opens a socket of its own, they need the same port: it is reserved, while the server runs,
        by a socket that is bound but does not listen, so it gets no connections."""
        if not class_named(launch.server.worker_class).shares_port or sys.platform != "linux":
            yield 0
            return
        with socket.socket() as reserving:
            reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserving.bind((launch.host, 0))
            yield reserving.getsockname()[1]

    def command(self, launch: Launch, port: int) -> list[str]:
        """Its command line after the interpreter."""
        arguments = self.command_line(launch.server, PROBED_APP, launch.host, port)
        return [*arguments, *self.stop_options.split()]

    def command_line(self, server: Server, app: str, host: str, port: int) -> list[str]:
        """Its command line after the interpreter, as shown to users. `app`: module:name."""
        values = {"app": app, "host": host, "port": port, **self.settings(server)}
        return [word.format(**values) for word in self.argv.split()]

    def settings(self, server: Server) -> dict[str, int]:
        """The settings that all servers have, within the limits of this one."""
        return {**settings_of(server), "backlog": max(self.min_backlog, server.backlog)}

    def launch_file(self, launch: Launch) -> dict[str, Any]:
        """The entries of `launch.json` for this kind of server."""
        settings = self.settings(launch.server)
        asgi = class_named(launch.server.worker_class).asgi
        return {"app": launch.app.target, "asgi": asgi, "settings": settings}

    def env(self, launch: Launch, env: Mapping[str, str]) -> dict[str, str]:
        """Its environment variables, based on `env`."""
        paths = (str(launch.code / "alone"), env.get("PYTHONPATH", ""))
        return {**env, "PYTHONPATH": ":".join(filter(None, paths))}

    def address(self, pid: int | None, listening: Path) -> tuple[str, int] | None:
        """The address of the server with this pid; None if it is not listening yet. `listening`:
        the file that contains it."""
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


class Gunicorn(Backend, frozen=True):
    """Gunicorn with any worker class. Its configuration file writes its address, and installs the
    probe."""

    VARIABLES: ClassVar[tuple[str, ...]] = GUNICORN_VARIABLES

    def command(self, launch: Launch, port: int) -> list[str]:
        conf = str(launch.code / "gunicorn_conf.py")
        return ["-m", "gunicorn", "-c", conf, launch.app.target]

    def env(self, launch: Launch, env: Mapping[str, str]) -> dict[str, str]:
        return dict(env)

    def address(self, pid: int | None, listening: Path) -> tuple[str, int] | None:
        if not listening.exists():
            return None
        host, port = json.loads(listening.read_text())["address"]
        return host, port

    def launch_file(self, launch: Launch) -> dict[str, Any]:
        server = launch.server
        settings: dict[str, object] = {
            **{name: value for name, (value, _) in FORCED_SETTINGS.items()},
            "bind": f"{launch.host}:0",
            "control_socket_disable": True,  # or Gunicorn writes under the user's home
            "chdir": str(launch.app.chdir or launch.code),  # already includes the user's file
            **settings_of(server),
        }
        if server.preload:  # else the user's file decides
            settings["preload_app"] = True
        if (sleep_s := launch.app.sleep_s) and not launch.config:  # or the arbiter kills workers
            min_s = BLOCKED_TIMEOUT_S if class_named(server.worker_class).loop else TIMEOUT_S
            settings["timeout"] = max(min_s, math.ceil(3 * sleep_s))
        bundled = server.worker_class in WORKER_CLASSES
        name = server.worker_class if bundled else "common"
        configs = (str(launch.code / "configs" / f"{name}.py"), launch.config)
        return {
            "configs": list(filter(None, configs)),
            "worker_class": None if bundled else server.worker_class,
            "settings": settings,
            "env": [f"{name}={value}" for name, value in launch.app.env],
            "access_log": str(launch.trial / ACCESS_LOG),
        }


# uvicorn's loop and parser are fixed: "auto" would use uvloop and httptools if installed. Its
# --limit-concurrency returns 503 instead of letting requests wait
# (https://www.uvicorn.org/settings/#resource-limits). Granian's --backpressure limits how many
# connections a worker accepts, including those whose requests wait for a thread
# (https://github.com/emmett-framework/granian#backpressure). Hypercorn has no limit
# (https://hypercorn.readthedocs.io/en/latest/how_to_guides/configuring.html). waitress is one
# process; its --connection-limit limits the connections it accepts
# (https://docs.pylonsproject.org/projects/waitress/en/stable/arguments.html). The other servers
# spawn their workers, which share one listening socket; Granian's have one each on Linux.
BACKENDS: Mapping[str, Backend] = {
    "uvicorn-alone": Backend(
        "-m uvicorn {app} --host {host} --port {port} --workers {workers} --backlog {backlog}"
        " --loop asyncio --http h11 --no-access-log",
        stop_options="--timeout-graceful-shutdown 1",
        prefix="UVICORN_",
    ),
    "granian": Backend(
        "-m granian {app} --interface wsgi --host {host} --port {port} --workers {workers}"
        " --blocking-threads {threads} --backpressure {worker_connections} --backlog {backlog}",
        stop_options="--workers-kill-timeout 1",
        prefix="GRANIAN_",
        min_backlog=128,
    ),
    "hypercorn": Backend(
        "-m hypercorn {app} --bind {host}:{port} -k asyncio --workers {workers}"
        " --backlog {backlog}",
        stop_options="--graceful-timeout 1",
    ),
    "waitress": Backend(
        "-m waitress --listen={host}:{port} --threads={threads} --backlog={backlog}"
        " --connection-limit={worker_connections} {app}"
    ),
}
