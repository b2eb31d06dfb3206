"""Gunicorn: its command line, its settings, and what the lab overrides in the user's file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from workerlab.server.backends import Backend, settings_of
from workerlab.server.worker_classes import WORKER_CLASSES, class_named

if TYPE_CHECKING:
    from workerlab.server.running import Launch

GRACE_S = 1  # between TERM and KILL, as the load is over
TIMEOUT_S = 30  # as in configs/
BLOCKED_TIMEOUT_S = 600  # for an event loop that a bundled app blocks
# Environment variables that would change Gunicorn's settings
SCRUBBED = ("WEB_CONCURRENCY", "PORT", "GUNICORN_CMD_ARGS", "SENDFILE", "LISTEN_FDS", "LISTEN_PID")

ACCESS_LOG = "access.log"  # in the trial's directory, instead of the user's file


# Settings that would invalidate a benchmark, or leave something behind: (the value that overrides
# the user's, the reason shown to the user).
FORCED: Mapping[str, tuple[object, str]] = {
    "bind": ("127.0.0.1:0", "the lab takes a free port on loopback"),
    "daemon": (False, "the lab must be able to end the server"),
    "reload": (False, "watching files is not what is measured"),
    "reuse_port": (False, "each worker would get a port of its own"),
    "max_requests": (0, "a worker that restarts under load is no steady state"),
    "max_requests_jitter": (0, "a worker that restarts under load is no steady state"),
    "graceful_timeout": (GRACE_S, "no measured request is in progress when the lab stops a server"),
    "pidfile": (None, "the lab needs no pid file"),
    "certfile": (None, "the lab measures plain HTTP"),
    "keyfile": (None, "the lab measures plain HTTP"),
    "errorlog": ("-", "the lab reads it"),
}
# Those without which the measured rates may be higher
MAY_SLOW = ("reload", "reuse_port", "max_requests", "certfile")


class Gunicorn(Backend, frozen=True):
    """Serves all worker classes. Its configuration file writes where it listens, and installs the
    probe."""

    SCRUBBED: ClassVar[tuple[str, ...]] = SCRUBBED

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
            **{name: value for name, (value, _) in FORCED.items()},
            "bind": f"{launch.host}:0",
            "control_socket_disable": True,  # or Gunicorn writes under the user's home
            "chdir": str(launch.app.chdir or launch.code),  # already includes the user's file
            **settings_of(server),
        }
        if server.preload:  # else the user's file decides
            settings["preload_app"] = True
        if (sleep_s := launch.app.sleep_s) and not launch.config:  # it must not seem dead
            usual_s = BLOCKED_TIMEOUT_S if class_named(server.worker_class).loop else TIMEOUT_S
            settings["timeout"] = max(usual_s, math.ceil(3 * sleep_s))
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
