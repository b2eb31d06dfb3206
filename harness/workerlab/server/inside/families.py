"""The differences between workers, seen from inside: one row for each family of worker classes.

`server/worker_classes.py` has a row for each class that the lab offers by name. A user's own class
has none, but one of its ancestors decides where it keeps the app, how it calls it, and on which
event loop. So a family is found by an ancestor's name, or by an attribute that only its workers
have, since a class may copy the code of another. Stdlib only, syntax of Python 3.10, like all files
here.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # slow to import, and used only if the server has imported it
    import asyncio

Schedule = Callable[[float, Callable[[], None]], object]  # (seconds, callback), on the loop


class Loop(NamedTuple):
    """Access to an event loop. `call_soon`: calls a function on it."""

    schedule: Schedule
    call_soon: Callable[[Callable[[], None]], object]


# --- greenlets ------------------------------------------------------------------------------------


def gevent_timers(hub: Any) -> Schedule:
    """Timers that do not keep gevent's loop alive."""
    last: Any = None

    def schedule(delay_s: float, call: Callable[[], None]) -> None:
        nonlocal last
        if last is not None:
            last.close()
        last = hub.loop.timer(delay_s, ref=False)
        last.start(call, update=True)  # else it counts from the loop's last update

    return schedule


def eventlet_timers(hub: Any) -> Schedule:
    schedule: Schedule = hub.schedule_call_global
    return schedule


class Greenlets(NamedTuple):
    """A library that patches blocking calls, so that they switch to another greenlet."""

    name: str
    hubs: str  # its module with `get_hub`, in the directory of its loops
    patches: str  # its module that patches
    is_patched: str  # a function there: whether a module of the standard library is patched
    timers: Callable[[Any], Schedule]  # of its hub

    def hub(self) -> Any:
        return import_module(self.hubs).get_hub()

    def has_patched(self) -> bool:
        """Whether it has patched this process."""
        module = sys.modules.get(self.patches)
        return module is not None and bool(getattr(module, self.is_patched)("time"))


EVENTLET = Greenlets(
    name="eventlet",
    hubs="eventlet.hubs",
    patches="eventlet.patcher",
    is_patched="is_monkey_patched",
    timers=eventlet_timers,
)
GEVENT = Greenlets(
    name="gevent",
    hubs="gevent",
    patches="gevent.monkey",
    is_patched="is_module_patched",
    timers=gevent_timers,
)
LOOP_DIRECTORIES = (
    "asyncio", "uvloop", *(library.hubs.replace(".", "/") for library in (EVENTLET, GEVENT))
)  # fmt: skip


def patching() -> Greenlets | None:
    """The library that has patched blocking calls in this process, whatever its worker class."""
    return next((library for library in (GEVENT, EVENTLET) if library.has_patched()), None)


def handled_markers() -> tuple[object, ...]:
    """The values that apps return if they have sent the response themselves."""
    modules = import_module("gunicorn.workers.base_async"), sys.modules.get("eventlet.wsgi")
    markers = (getattr(module, "ALREADY_HANDLED", None) for module in modules)
    return tuple(marker for marker in markers if marker is not None)


# --- asyncio --------------------------------------------------------------------------------------


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs this request."""
    with contextlib.suppress(KeyError, RuntimeError):  # not imported: no loop
        loop: asyncio.AbstractEventLoop = sys.modules["asyncio"].get_running_loop()
        return loop
    return None


def asyncio_loop(loop: asyncio.AbstractEventLoop) -> Loop:
    """Its timers run in an empty context: otherwise each would keep the first request's."""
    context = contextvars.Context()

    def schedule(delay_s: float, call: Callable[[], None]) -> None:
        loop.call_later(delay_s, call, context=context)

    return Loop(schedule, lambda call: loop.call_soon_threadsafe(call, context=context))


# --- the table ------------------------------------------------------------------------------------


def uvicorn_parser(worker: Any) -> Any:
    config = worker.config
    parser = getattr(config, "http_protocol_class", None) or getattr(config, "http", None)
    return getattr(parser, "__name__", parser)


def tornado_container(app: Any) -> Any:
    return import_module("tornado.wsgi").WSGIContainer(app)


class Family(NamedTuple):
    base: str  # the ancestor's name
    asgi: bool | None = False  # whether it serves ASGI; None: not known
    attribute: str = ""  # an attribute that only its workers have
    app_attribute: str = "wsgi"  # of the worker; "asgi": it calls all apps as ASGI
    contain: Callable[[Any], Any] | None = None  # puts a WSGI app into tornado's container
    greenlets: Greenlets | None = None  # if each request has a greenlet
    http_parser: Callable[[Any], Any] | None = None  # the name of the worker's parser
    packages: tuple[str, ...] = ()  # the proof contains their versions

    def interface(self, kind: str) -> str:
        """The interface by which it calls an app of this kind (see `app_kind`)."""
        if self.app_attribute == "asgi":
            return "asgi"
        return kind if kind != "unknown" else "asgi" if self.asgi else "wsgi"

    def loop(self, worker: Any) -> Loop | None:
        """The loop that serves this request: of greenlets, else of asyncio; tornado's own if it
        runs the app in threads. None without a loop."""
        if self.greenlets is not None:
            return Loop(self.greenlets.timers(self.greenlets.hub()), lambda call: call())
        own = getattr(getattr(worker, "ioloop", None), "asyncio_loop", None)
        loop = running_loop() or own
        return None if loop is None else asyncio_loop(loop)


# Families without hooks are listed for the interface that they serve
FAMILIES = (
    Family("ASGIWorker", asgi=True, attribute="asgi", app_attribute="asgi",
           http_parser=lambda worker: getattr(worker.cfg, "http_parser", None)),
    Family("EventletWorker", greenlets=EVENTLET, packages=("eventlet",)),
    Family("GeventWorker", greenlets=GEVENT, packages=("gevent",)),
    Family("TornadoWorker", contain=tornado_container, packages=("tornado",)),
    Family("UvicornWorker", asgi=True, attribute="config", http_parser=uvicorn_parser,
           packages=("uvicorn", "uvicorn-worker", "uvloop", "httptools", "h11")),
    *map(Family, ("SyncWorker", "ThreadWorker", "AsyncWorker")),
    # Other servers, see `alone`
    Family("AsgiServer", asgi=True, packages=("hypercorn",)),
    Family("WsgiServer", packages=("granian", "waitress")),
)  # fmt: skip


def family_of(worker: Any) -> Family:
    """The family of a worker. A class without a known ancestor, such as aiohttp's, gets one without
    any hook."""
    ancestors = {cls.__name__ for cls in type(worker).__mro__}
    return next(
        (
            family
            for family in FAMILIES
            if family.base in ancestors
            or (family.attribute and getattr(worker, family.attribute, None) is not None)
        ),
        Family("", asgi=None),
    )
