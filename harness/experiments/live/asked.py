"""What can be set in the live lesson: the servers and the load, each within bounds. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from harness.model import App, Server
from harness.plan import SLEEP_ENV
from harness.server.worker_classes import ASGI_CLASSES, CLASSES, class_named

Model = Literal["closed", "open"]

# The most of each; the least is 1, of durations 0
LIMITS: Mapping[str, float] = {
    "clients": 500, "rate": 1000, "delay_s": 10, "cpu_ms": 1000,
    "workers": 16, "threads": 64, "worker_connections": 2000, "backlog": 4096,
}  # fmt: skip
DURATIONS = ("delay_s", "cpu_ms")
WHOLE = ("clients", "workers", "threads", "worker_connections", "backlog")
BRIEF_S = 0.001  # of a request that says nothing else: those that the lab sends before the load


class Refused(ValueError):
    """What cannot be set, in a sentence; `field`: which, "" where it is none of them."""

    def __init__(self, why: str, field: str = "") -> None:
        self.field = field
        super().__init__(why)


class AppRow(Struct, frozen=True):
    """One of the lab's apps: `targets`, for classes that serve WSGI and those that serve ASGI."""

    title: str
    wsgi: str = ""
    asgi: str = ""
    classes: tuple[str, ...] = CLASSES
    preload: bool = False


APPS: Mapping[str, AppRow] = {
    "sleep": AppRow("waits", "apps.sleep_wsgi:app", "apps.sleep_asgi:app"),
    "blocking": AppRow(
        "waits and lets nobody else run (time.sleep in async def)",
        asgi="apps.blocking_asgi:app", classes=tuple(sorted(ASGI_CLASSES)),
    ),
    "imported": AppRow(
        "waits by a sleep that was imported before it was patched",
        wsgi="apps.imported_sleep:app", classes=("gevent",), preload=True,
    ),
}  # fmt: skip


class ServerAsked(Struct, frozen=True):
    worker_class: str = "sync"
    workers: int = 4
    threads: int = 1
    worker_connections: int = 1000
    backlog: int = 2048
    app: str = "sleep"

    @property
    def server(self) -> Server:
        row = APPS[self.app]
        target = row.asgi if self.worker_class in ASGI_CLASSES else row.wsgi
        app = App(target, env=((SLEEP_ENV, f"{BRIEF_S:g}"),), sleep_s=BRIEF_S)
        threads = self.threads if class_named(self.worker_class).slots == "threads" else 1
        amounts = (self.workers, threads, self.backlog, self.worker_connections)
        return Server(self.worker_class, *amounts, app=app, preload=row.preload)

    @property
    def heeds(self) -> tuple[str, ...]:
        """The settings among these that its class makes something of."""
        ignored = class_named(self.worker_class).ignores
        names = ("workers", "threads", "worker_connections", "backlog")
        return tuple(name for name in names if name not in ignored)


class LoadAsked(Struct, frozen=True):
    model: Model = "closed"
    clients: int = 8
    rate: float = 20.0
    delay_s: float = 1.0
    cpu_ms: float = 0.0
    keepalive: bool = False

    @property
    def query(self) -> str:
        """What each request asks of the app."""
        return f"?sleep={self.delay_s:g}&cpu={self.cpu_ms:g}"


def changed_server(now: ServerAsked, words: Mapping[str, Any]) -> ServerAsked:
    """With what the page asks for. Raises Refused."""
    found = replace(now, **_checked(now, words))
    if found.worker_class not in CLASSES:
        raise Refused(f"{found.worker_class!r} is none of {', '.join(CLASSES)}", "worker_class")
    if found.app not in APPS:
        raise Refused(f"{found.app!r} is none of {', '.join(APPS)}", "app")
    if found.worker_class not in APPS[found.app].classes:
        if "app" not in words:  # the class was changed: the app that all of them serve
            return replace(found, app="sleep")
        able = " and ".join(APPS[found.app].classes)
        raise Refused(f"this app is for {able}, not for {found.worker_class}", "app")
    return found


def changed_load(now: LoadAsked, words: Mapping[str, Any]) -> LoadAsked:
    """With what the page asks for. Raises Refused."""
    found = replace(now, **_checked(now, words))
    if found.model not in ("closed", "open"):
        raise Refused(f"{found.model!r} is none of closed, open", "model")
    return found


def _checked(now: Struct, words: Mapping[str, Any]) -> dict[str, Any]:
    known = asdict(now)
    found = {}
    for name, value in words.items():
        if name not in known:
            raise Refused(f"{name!r} is no setting", name)
        found[name] = _number(name, value) if name in LIMITS else value
        if not isinstance(found[name], type(known[name])):
            raise Refused(f"{name} is not {value!r:.40}", name)
    return found


def _number(name: str, value: Any) -> float | int:
    least, most, whole = 0 if name in DURATIONS else 1, LIMITS[name], name in WHOLE
    kind = "whole number" if whole else "number"
    fine = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fine or not least <= value <= most or (whole and value != int(value)):
        raise Refused(f"{name} is a {kind} from {least} to {most:g}", name)
    return int(value) if whole else float(value)
