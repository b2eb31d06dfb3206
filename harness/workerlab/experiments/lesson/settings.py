"""Server and load settings of a lesson and of the live page, and their bundled apps.

The limits are what a machine in a classroom can handle.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from workerlab.experiments.jobs import CPU_ENV
from workerlab.model.plan import App, Server, WorkerClass
from workerlab.numbers.units import listed
from workerlab.paths import target_of
from workerlab.plan import SLEEP_ENV
from workerlab.report.player.places import MIN_RECENT_S
from workerlab.server.worker_classes import ASGI_CLASSES, CLASSES, class_named, configured_slots

Model = Literal["closed", "open"]
Action = Mapping[str, Any]  # as a page posts it
Message = dict[str, object]  # to a page, or a part of one

# Maximum values; the minimum is 1, or 0 for durations
MAX_COUNTS: Mapping[str, int] = {
    "clients": 500, "workers": 16, "threads": 64, "worker_connections": 2000, "backlog": 4096,
}  # fmt: skip
MAX_VALUES: Mapping[str, float] = {**MAX_COUNTS, "rate": 1000, "delay_s": 10, "cpu_ms": 1000}
DURATION_FIELDS = ("delay_s", "cpu_ms")
DEFAULT_SLEEP_S = 0.001  # for requests without a query, which the lab sends before the load


class BundledApp(Struct, frozen=True):
    """`wsgi`, `asgi`: its targets, "" for none; `classes`: worker classes that serve it; `blocks`:
    a worker serves one request at a time, whatever its class."""

    title: str
    wsgi: str = ""
    asgi: str = ""
    classes: tuple[str, ...] = CLASSES
    blocks: bool = False
    preload: bool = False


BUNDLED_APPS: Mapping[str, BundledApp] = {
    "sleep": BundledApp(
        "waits", wsgi=target_of("@sleep_wsgi"), asgi=target_of("@sleep_asgi")
    ),
    "blocking": BundledApp(
        "waits, blocking: time.sleep in async def",
        asgi=target_of("@blocking_asgi"), classes=tuple(sorted(ASGI_CLASSES)), blocks=True,
    ),
    "imported": BundledApp(
        "waits, blocking: sleep imported unpatched",
        wsgi=target_of("@imported_sleep"), classes=("gevent",), blocks=True, preload=True,
    ),
}  # fmt: skip


class Field(NamedTuple):
    """A field of a lesson's file, or a setting of the live page. `requirement`: what a value must
    be; `default`: of an optional field, or `...` if the field is required."""

    requirement: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any]
    default: Any = ...


TEXT = Field(
    requirement="must be text",
    accepts=lambda value: isinstance(value, str) and bool(value.strip()),
    convert=lambda value: " ".join(value.split()),
)
FLAG = Field(
    requirement="must be true or false",
    accepts=lambda value: isinstance(value, bool),
    convert=bool,
)


def number_field(
    minimum: float, maximum: float, *, default: Any = ..., kind: type = float, unit: str = ""
) -> Field:
    noun = "whole number" if kind is int else "number"
    return Field(
        requirement=f"must be a {noun}{unit} from {minimum:g} to {maximum:g}",
        accepts=lambda value: type(value) in (int, kind) and minimum <= value <= maximum,
        convert=kind,
        default=default,
    )


def choice_field(names: Iterable[str]) -> Field:
    choices = tuple(names)
    requirement = f"must be one of {', '.join(choices)}"
    return Field(requirement, accepts=choices.__contains__, convert=str)


SETTINGS: Mapping[str, Field] = {  # those that a page may change
    **{
        name: number_field(
            0 if name in DURATION_FIELDS else 1,
            maximum,
            kind=int if name in MAX_COUNTS else float,
        )
        for name, maximum in MAX_VALUES.items()
    },
    "worker_class": choice_field(CLASSES),
    "app": choice_field(BUNDLED_APPS),
    "model": choice_field(get_args(Model)),
    "keepalive": FLAG,
}


class Refused(ValueError):
    """An invalid setting or an impossible action. `field`: the setting, or ""."""

    def __init__(self, why: str, field: str = "") -> None:
        self.field = field
        super().__init__(why)


class ServerSettings(Struct, frozen=True):
    worker_class: str = "sync"
    workers: int = 4
    threads: int = 1
    worker_connections: int = 1000
    backlog: int = 2048
    app: str = "sleep"

    @property
    def row(self) -> WorkerClass:
        return class_named(self.worker_class)

    def server(self, sleep_s: float = DEFAULT_SLEEP_S, cpu_s: float = 0.0) -> Server:
        """The server, with threads only for classes that have them: sync with more than one would
        become gthread. `sleep_s`, `cpu_s`: for requests without a query."""
        app = BUNDLED_APPS[self.app]
        env = {SLEEP_ENV: f"{sleep_s:g}"} | ({CPU_ENV: f"{1000 * cpu_s:g}"} if cpu_s else {})
        return Server(
            worker_class=self.worker_class,
            workers=self.workers,
            threads=self.threads if self.row.slots == "threads" else 1,
            backlog=self.backlog,
            worker_connections=self.worker_connections,
            app=App(
                app.asgi if self.worker_class in ASGI_CLASSES else app.wsgi,
                env=tuple(env.items()),
                sleep_s=None if cpu_s else sleep_s,
            ),
            preload=app.preload,
        )

    @property
    def many_threads(self) -> int | None:
        """Threads per worker if there is more than one, else None."""
        return self.threads if self.row.slots == "threads" and self.threads > 1 else None

    @property
    def blocks(self) -> bool:
        """Whether a request in the app blocks its worker."""
        return BUNDLED_APPS[self.app].blocks

    @property
    def at_once(self) -> int | None:
        """The most requests in the app at the same time; None: unlimited."""
        return self.workers if self.blocks else configured_slots(self.server())

    @property
    def has_own_queues(self) -> bool:
        """Whether each worker queues requests that it has accepted but does not serve yet."""
        return self.row.accepts_first or self.blocks

    @property
    def queue_capacity(self) -> int:
        """Connections that fit in the accept queue: the kernel admits one more than the backlog."""
        return self.backlog + 1

    @property
    def effective_settings(self) -> tuple[str, ...]:
        """The settings that affect the worker class."""
        names = ("workers", "threads", "worker_connections", "backlog")
        return tuple(name for name in names if name not in self.row.ignores)


class LoadSettings(Struct, frozen=True):
    """`patience_s`: seconds until a client gives up and sends another request; 0: never."""

    model: Model = "closed"
    clients: int = 8
    rate: float = 20.0
    delay_s: float = 1.0
    cpu_ms: float = 0.0
    keepalive: bool = False
    patience_s: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.model == "open"

    @property
    def cpu_s(self) -> float:
        return self.cpu_ms / 1000

    @property
    def service_s(self) -> float:
        return self.delay_s + self.cpu_s

    @property
    def recent_s(self) -> float:
        """The window of the live figures, seconds."""
        return max(MIN_RECENT_S, 2 * self.delay_s)

    @property
    def query(self) -> str:
        """The query string of each request."""
        return f"?sleep={self.delay_s:g}&cpu={self.cpu_ms:g}"


def changed_server(settings: ServerSettings, changes: Action) -> ServerSettings:
    """The settings with these changes. Raises Refused if one is not valid."""
    new_settings = replace(settings, **_valid_values(settings, changes))
    classes = BUNDLED_APPS[new_settings.app].classes
    if new_settings.worker_class not in classes:
        if "app" not in changes:  # the class was changed: use the app that all classes serve
            return replace(new_settings, app="sleep")
        supported = listed(classes)
        raise Refused(f"this app is for {supported}, not for {new_settings.worker_class}", "app")
    return new_settings


def changed_load(settings: LoadSettings, changes: Action) -> LoadSettings:
    """The settings with these changes. Raises Refused if one is not valid."""
    return replace(settings, **_valid_values(settings, changes))


def _valid_values(settings: Struct, changes: Action) -> dict[str, Any]:
    values = {}
    for name, value in changes.items():
        field = SETTINGS.get(name)
        if field is None or not hasattr(settings, name):
            raise Refused(f"{name!r} is not a setting", name)
        if not field.accepts(value):
            raise Refused(f"{name} {field.requirement}, not {value!r:.40}", name)
        values[name] = field.convert(value)
    return values
