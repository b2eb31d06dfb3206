"""The worker classes as of Gunicorn 25.3, one row each. How to add one: `docs/extending.md`.

All commands and reports use these rows. Any other class can be given by its dotted path: its slots
are then "not known", and everything else is measured.

Settings do not always determine how many requests are served at once, so that is measured as well:
gthread's `worker_connections` limits what it accepts, not what it serves; native asgi stores the
setting but does not enforce it; uvicorn does not receive it; tornado runs a WSGI app inside its
loop, so requests block each other; a blocking sleep in an `async def` serves one request at a time
under any class.
"""

from collections.abc import Mapping

from workerlab.model.plan import Server, WorkerClass

ASGI = ("asgi", "asgi2")
CLOSES = "then closes each connection"  # as h11 does for an HTTP/1.0 client

# Settings of Gunicorn's own HTTP parser
_OF_GUNICORNS_PARSER = ("header_map", "secure_scheme_headers", "proxy_protocol")
_LIMITS = ("limit_request_line", "limit_request_fields", "limit_request_field_size")
_HOOKS = ("pre_request", "post_request")
MORE_CONNECTIONS = "a higher --worker-connections or more workers serve more at once"
# `ignores`: from `workerlab settings` with Gunicorn 25.3; a test checks it
# fmt: off
_ROWS = (
    WorkerClass("sync", "one", alias="gunicorn.workers.sync.SyncWorker",
                ignores=("threads", "worker_connections", "keepalive"),
                advice="more workers, threads (gthread) or an asynchronous class serve more at"
                " once"),
    WorkerClass("gthread", "threads", alias="gunicorn.workers.gthread.ThreadWorker",
                accepts_first=True,
                advice="more threads or workers, or an asynchronous class, serve more at once"),
    WorkerClass("eventlet", "worker_connections",
                alias="gunicorn.workers.geventlet.EventletWorker", loop=True,
                ignores=("threads", "sendfile"),
                packages=("eventlet",), advice=MORE_CONNECTIONS, removed_in="26"),
    WorkerClass("gevent", "worker_connections", alias="gunicorn.workers.ggevent.GeventWorker",
                loop=True, ignores=("threads", "sendfile"),
                packages=("gevent", "packaging"), advice=MORE_CONNECTIONS),
    WorkerClass("tornado", "one", alias="gunicorn.workers.gtornado.TornadoWorker",
                serves=("wsgi", "tornado"), accepts_first=True,
                ignores=("threads", "worker_connections", "keepalive", "sendfile",
                         "forwarded_allow_ips", "accesslog", "access_log_format", *_LIMITS,
                         *_OF_GUNICORNS_PARSER, *_HOOKS),
                packages=("tornado",),
                advice="a WSGI app blocks tornado's loop: more workers, or threads (gthread), serve"
                " more at once"),
    WorkerClass("asgi", "unlimited", alias="gunicorn.workers.gasgi.ASGIWorker",
                serves=ASGI, accepts_first=True, loop=True,
                ignores=("threads", "worker_connections", "keepalive", "backlog", "sendfile",
                         "forwarded_allow_ips", *_OF_GUNICORNS_PARSER),
                effective_from={"keepalive": "27", "forwarded_allow_ips": "27", "header_map": "27",
                            "secure_scheme_headers": "27", "proxy_protocol": "26.2"},
                closes_http_1_0="never sends the keep-alive header that such a client expects"),
    WorkerClass("uvicorn", "unlimited", serves=ASGI, accepts_first=True, loop=True,
                ignores=("threads", "worker_connections", "sendfile", "access_log_format",
                         *_LIMITS, *_OF_GUNICORNS_PARSER, *_HOOKS,
                         "worker_int", "worker_abort", "worker_exit",
                         "reload", "reload_extra_files"),
                packages=("uvicorn", "uvicorn_worker"), path="uvicorn_worker.UvicornWorker",
                alias="uvicorn.workers.UvicornWorker",  # deprecated
                closes_http_1_0=CLOSES),
)
# Servers other than Gunicorn, each started by its command line in `backends`
_OTHER_ROWS = (
    WorkerClass("uvicorn-alone", "unlimited", serves=ASGI, accepts_first=True, loop=True,
                ignores=("threads", "worker_connections"), packages=("uvicorn",), alone=True,
                closes_http_1_0=CLOSES),
    WorkerClass("granian", "threads", accepts_first=True, packages=("granian",), alone=True,
                shares_port=True,
                advice="more threads or workers serve more at once",
                unmeasured="granian accepts and reads requests outside Python: their wait inside a"
                " worker is not measured, and the rest of the response time includes it"),
    WorkerClass("hypercorn", "unlimited", serves=("asgi",), accepts_first=True, loop=True,
                ignores=("threads", "worker_connections"), packages=("hypercorn",), alone=True,
                closes_http_1_0=CLOSES),
    WorkerClass("waitress", "threads", accepts_first=True, ignores=("workers",),
                packages=("waitress",), alone=True, advice="more threads serve more at once"),
)
# fmt: on
WORKER_CLASSES: Mapping[str, WorkerClass] = {row.name: row for row in _ROWS}
_SERVERS: Mapping[str, WorkerClass] = {row.name: row for row in _OTHER_ROWS}
CLASSES = tuple(WORKER_CLASSES)
SERVERS = tuple(_SERVERS)  # can be given in place of a class, and need no Gunicorn
ASGI_CLASSES = frozenset(row.name for row in _ROWS if row.asgi)


def class_named(name: str) -> WorkerClass:
    """The row of a class or another server; for a dotted path, one with unknown slots."""
    row = WORKER_CLASSES.get(name) or _SERVERS.get(name)
    return row or WorkerClass(name, "unknown", serves=(), path=name)


def ignored_settings(row: WorkerClass, gunicorn: str) -> tuple[str, ...]:
    """The settings that have no effect on the class in this version of Gunicorn."""
    from packaging.version import Version  # not needed for --help

    return tuple(
        setting for setting in row.ignores
        if setting not in row.effective_from
        or Version(gunicorn) < Version(row.effective_from[setting])
    )  # fmt: skip


KINDS = {"wsgi": "a WSGI", "asgi": "an ASGI", "asgi2": "an ASGI 2", "tornado": "a Tornado"}


def why_not_served(worker_class: str, target: str, kind: str) -> str | None:
    """The reason why the class cannot serve an app of this kind (see `inside.app_kind`): Gunicorn
    would respond with 500. None if it can, or if that is unknown."""
    row = class_named(worker_class)
    if not row.serves or kind in (*row.serves, "unknown", "unimportable"):
        return None
    expected = "ASGI" if row.asgi else "WSGI"
    return (
        f"{target} is {KINDS.get(kind, kind)} app, but would be served as {expected}: choose"
        " another class or another callable"
    )


def configured_slots(server: Server) -> int | None:
    """Requests served at once according to the settings; None: unlimited or unknown."""
    return class_named(server.worker_class).slots_of(server)
