"""The lab's code inside the server under test: composes settings, wraps the app, writes proofs.

Loaded by `gunicorn_conf.py`, in whatever interpreter serves the app: stdlib only, syntax of Python
3.10. Each worker writes its *effective* settings to `worker-PID.json`: once it has loaded
the app, and again in its first request, when its event loop runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import runpy
import socket
import sys
from _thread import get_ident  # the original: gevent and eventlet patch it later
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, TextIO

from . import app_kind, heartbeat, probe
from .families import (
    FAMILIES,
    Family,
    Loop,
    family_of,
    handled_markers,
    patching,
    running_loop,
)

TRIAL = os.environ["WORKERLAB_TRIAL"]
LISTENING = os.environ.get("WORKERLAB_LISTENING", "listening.json")
PACKAGES = ("gunicorn", *(package for family in FAMILIES for package in family.packages))
SETTINGS = ("workers", "threads", "worker_connections", "backlog", "preload_app")
IMPORT_DUMP_S = 2.0  # between dumps of the stacks while the app is imported

_dumps: TextIO | None = None  # the file of these dumps


def write_json(name: str, value: object) -> None:
    """Write atomically, since the harness polls for these files."""
    path = os.path.join(TRIAL, name)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(path + ".part", path)


def confine(cores: int | None) -> None:
    """Restrict this process and its future children to this many cores, if the system can."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def compose(launch: Mapping[str, Any]) -> dict[str, Any]:
    """All settings as one namespace. The worker class is that of the launch, or of the first
    file."""
    merged: dict[str, Any] = {}
    worker_class: Any = launch["worker_class"]
    for path in launch["configs"]:
        names = runpy.run_path(path, run_name="__config__")
        merged.update({k: v for k, v in names.items() if not k.startswith("_")})
        worker_class = worker_class or merged["worker_class"]
    merged.update(launch["settings"])
    merged["worker_class"] = worker_class
    if merged.get("accesslog"):
        # Still written, since that is work of the server, but not to the user's file, nor to a
        # pipe: a pipe without a reader would stall the server
        merged["accesslog"] = launch["access_log"]
    raw_env = merged.get("raw_env") or []  # Gunicorn accepts a single string, too
    merged["raw_env"] = [*([raw_env] if isinstance(raw_env, str) else raw_env), *launch["env"]]
    return merged


def wrap(worker: Any, family: Family, kind: str, module: ModuleType, *more: Any) -> None:
    """Wrap the worker's app in the probe. `module`: `probe` or `costs`; `more`: arguments of its
    `wrap_wsgi`."""
    app, interface = getattr(worker, family.app_attribute), family.interface(kind)
    if kind == "tornado":
        wrapped = probe.probe_tornado(app)
    elif hasattr(app, "wsgi_application"):  # tornado's own WSGI container
        wrapped = app
        if "Dummy" in type(app.executor).__name__:
            module.probe_container(app)
        else:
            app.wsgi_application = module.wrap_wsgi(app.wsgi_application, (), *more)
    elif family.contain is not None:
        wrapped = module.probe_container(family.contain(app))
    elif interface in ("asgi", "asgi2"):
        wrapped = module.wrap_asgi(app if interface == "asgi" else probe.asgi3_app(app))
    else:
        wrapped = module.wrap_wsgi(app, handled_markers(), *more)
    setattr(worker, family.app_attribute, wrapped)


def class_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def event_loop() -> str | None:
    """The class of the loop that runs this request; None without a loop."""
    if (loop := running_loop()) is not None:
        return class_of(loop)
    if (library := patching()) is None:
        return None
    hub = library.hub()
    return class_of(getattr(hub, "loop", hub))


def accept_queue_limit(worker: Any) -> int | None:
    """The listening socket's limit in the kernel (tcp_info.tcpi_sacked of a listener)."""
    if sys.platform != "linux" or not hasattr(socket, "TCP_INFO"):
        return None
    try:
        listener = getattr(worker.sockets[0], "sock", worker.sockets[0])
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return int.from_bytes(info[28:32], "little")
    except (OSError, AttributeError, IndexError):
        return None


@functools.cache
def versions() -> dict[str, str]:
    """Versions of PACKAGES; cached before the fork, so that workers need not read these files."""
    from importlib import metadata

    installed = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def proof_of(worker: Any, kind: str) -> dict[str, Any]:
    """The effective settings of this worker, read from its own objects."""
    cfg, library = worker.cfg, patching()
    is_gunicorn = hasattr(worker, "alive")  # otherwise another server, see `alone`
    return {
        "pid": os.getpid(),
        "worker_class": class_of(worker),
        **{name: getattr(cfg, name, None) for name in SETTINGS},
        "timeout_s": getattr(cfg, "timeout", None),
        "keepalive_s": getattr(cfg, "keepalive", None),
        "gunicorn": sys.modules["gunicorn"].__version__ if is_gunicorn else None,
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "versions": versions(),
        "app_kind": kind,
        "patched": library.name if library is not None else None,
        **dict.fromkeys(("accept_queue_limit", "event_loop", "http_parser", "accept_timed")),
        "served": False,
    }


def watch_loop(worker: Any, loop: Loop | None, thread: int) -> None:
    """Watch the event loop, which runs in this thread. Raises OSError if the disk is full."""
    if STACK_SAMPLER is None or not STACK_SAMPLER.claims_sampling(TRIAL):
        heartbeat.start(loop, TRIAL)
        return
    heart = heartbeat.start(loop, TRIAL, STACK_SAMPLER.BEAT_NS)
    if heart is not None:
        STACK_SAMPLER.start(worker, heart, thread, TRIAL)


def watch_import() -> None:
    """Write the stack of each thread repeatedly, until `end_import_watch`: if the import of the app
    hangs, the last dump shows where."""
    global _dumps
    end_import_watch()
    with contextlib.suppress(OSError):  # the disk is full: no dumps
        _dumps = open(os.path.join(TRIAL, f"import-{os.getpid()}.txt"), "w")  # noqa: SIM115
        faulthandler.dump_traceback_later(IMPORT_DUMP_S, repeat=True, file=_dumps)


def end_import_watch() -> None:
    """Stop the dumps, and remove those of this process."""
    global _dumps
    if _dumps is None:
        return
    faulthandler.cancel_dump_traceback_later()
    _dumps.close()
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(TRIAL, f"import-{os.getpid()}.txt"))
    _dumps = None


def install(worker: Any, launch: Mapping[str, Any]) -> None:
    """The lab's post_worker_init: the app is loaded, and no request has arrived."""
    end_import_watch()
    family = family_of(worker)
    kind = app_kind.app_kind(getattr(worker, family.app_attribute))
    proof = proof_of(worker, kind)
    name = f"worker-{os.getpid()}.json"
    thread = get_ident()  # Gunicorn calls its hooks in the loop's thread

    def first_request() -> None:
        proof.update(
            served=True,
            event_loop=event_loop(),
            http_parser=family.http_parser(worker) if family.http_parser is not None else None,
            accept_queue_limit=accept_queue_limit(worker),
            accept_timed=bool(probe.accepted),  # this request's connection, at least
        )
        write_json(name, proof)
        if launch["beats"]:
            with contextlib.suppress(OSError):  # the disk is full: no beats
                watch_loop(worker, family.loop(worker), thread)

    if launch["records"]:  # 0 when the cost of the probe is benchmarked
        probe.time_accepts(worker)
        names, keepalive = launch["named"], launch["kept"]
        probe.start(TRIAL, launch["records"], first_request, names=names, keepalive=keepalive)
        if COSTS is not None:
            COSTS.start(TRIAL, launch["records"], launch["routes"])
            wrap(
                worker, family, kind, COSTS, COSTS.clock_for(greenlets=family.greenlets is not None)
            )
        else:
            wrap(worker, family, kind, probe)
    write_json(name, proof)


with open(os.path.join(TRIAL, "launch.json"), encoding="utf-8") as _file:
    LAUNCH = json.load(_file)


def _load_if(condition: bool, name: str) -> Any:
    """Import the module now: gevent and eventlet later patch what it needs."""
    return import_module(f"{__package__}.{name}") if condition else None


STACK_SAMPLER = _load_if(LAUNCH["inside"] == "stacks", "stacks")
COSTS = _load_if(LAUNCH["inside"] == "needs", "costs")
