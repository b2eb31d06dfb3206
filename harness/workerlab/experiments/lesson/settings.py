"""What can be set in the live lesson: the servers and the load, each within bounds. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from workerlab.analysis.places import RECENT_S
from workerlab.experiments.own_apps import MOST, OWN_APPS, server_of
from workerlab.model import Server
from workerlab.server.worker_classes import CLASSES, class_named

Model = Literal["closed", "open"]

# The most of each; the least is 1, of durations 0
LIMITS: Mapping[str, float] = {**MOST, "rate": 1000, "delay_s": 10, "cpu_ms": 1000}
DURATIONS = ("delay_s", "cpu_ms")
LESSON_ONLY = "patience_s"
BRIEF_S = 0.001  # of a request that says nothing else: those that the lab sends before the load


class Refused(ValueError):
    """What cannot be set, in a sentence; `field`: which, "" where it is none of them."""

    def __init__(self, why: str, field: str = "") -> None:
        self.field = field
        super().__init__(why)


class ServerAsked(Struct, frozen=True):
    worker_class: str = "sync"
    workers: int = 4
    threads: int = 1
    worker_connections: int = 1000
    backlog: int = 2048
    app: str = "sleep"

    @property
    def server(self) -> Server:
        amounts = (self.workers, self.threads, self.backlog, self.worker_connections)
        return server_of(self.app, self.worker_class, *amounts, BRIEF_S)

    @property
    def blocks(self) -> bool:
        """Its app lets nobody else run in its worker."""
        return OWN_APPS[self.app].blocks

    @property
    def heeds(self) -> tuple[str, ...]:
        """The settings among these that its class makes something of."""
        ignored = class_named(self.worker_class).ignores
        names = ("workers", "threads", "worker_connections", "backlog")
        return tuple(name for name in names if name not in ignored)


class LoadAsked(Struct, frozen=True):
    """`patience_s`: when a client gives up and sends another request; 0: never."""

    model: Model = "closed"
    clients: int = 8
    rate: float = 20.0
    delay_s: float = 1.0
    cpu_ms: float = 0.0
    keepalive: bool = False
    patience_s: float = 0.0

    @property
    def recent_s(self) -> float:
        """Of the answers that figures are of while it runs."""
        return max(RECENT_S, 2 * self.delay_s)

    @property
    def query(self) -> str:
        """What each request asks of the app."""
        return f"?sleep={self.delay_s:g}&cpu={self.cpu_ms:g}"


def changed_server(now: ServerAsked, words: Mapping[str, Any]) -> ServerAsked:
    """With what the page asks for. Raises Refused."""
    found = replace(now, **_checked(now, words))
    if found.worker_class not in CLASSES:
        raise Refused(f"{found.worker_class!r} is none of {', '.join(CLASSES)}", "worker_class")
    if found.app not in OWN_APPS:
        raise Refused(f"{found.app!r} is none of {', '.join(OWN_APPS)}", "app")
    if found.worker_class not in OWN_APPS[found.app].classes:
        if "app" not in words:  # the class was changed: the app that all of them serve
            return replace(found, app="sleep")
        able = " and ".join(OWN_APPS[found.app].classes)
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
        if name not in known or name == LESSON_ONLY:
            raise Refused(f"{name!r} is no setting", name)
        found[name] = _number(name, value) if name in LIMITS else value
        if not isinstance(found[name], type(known[name])):
            raise Refused(f"{name} is not {value!r:.40}", name)
    return found


def _number(name: str, value: Any) -> float | int:
    least, most, whole = 0 if name in DURATIONS else 1, LIMITS[name], name in MOST
    kind = "whole number" if whole else "number"
    fine = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fine or not least <= value <= most or (whole and value != int(value)):
        raise Refused(f"{name} is a {kind} from {least} to {most:g}", name)
    return int(value) if whole else float(value)
