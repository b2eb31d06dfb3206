"""Identifies the server at the address of a storage or a cache, through its own client library.

Addresses contain passwords: all messages, including those of the clients, show only host and port.
Clients are optional dependencies, imported on use.
"""

import sqlite3
from collections.abc import Callable
from pkgutil import resolve_name
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from workerlab.errors import EnvironmentProblem, UsageError

TIMEOUT_S = 5
STAND_IN = "a server"  # prefix of the version of a stand-in
EXTRA = "pip install 'workerlab[ladder]'"


class NoAnswer(EnvironmentProblem):
    """The service does not respond; the message names it and the reason, without a full stop."""


class ServiceKind(Struct, frozen=True):
    """A kind of service. `option`: the option for its address; `example`: an address;
    `schemes`: valid ones in its URLs. `parse`: MODULE:NAME of its client's function that raises for
    a malformed address; `version`: returns the server's name and version."""

    name: str
    option: str
    example: str
    schemes: tuple[str, ...]
    drivers: tuple[str, ...]
    parse: str
    version: Callable[[str], str]


def _postgresql(url: str) -> str:
    import psycopg

    with psycopg.connect(url, connect_timeout=TIMEOUT_S) as db:
        ((version,),) = db.execute("SHOW server_version").fetchall()
    return f"PostgreSQL {version}"


def _redis(url: str) -> str:
    import redis

    limits_s = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    with redis.Redis.from_url(url, **limits_s) as db:
        info = db.info("server")
    for name in ("valkey", "redis"):
        if f"{name}_version" in info:
            return f"{name.capitalize()} {info[f'{name}_version']}"
    return f"{STAND_IN} that speaks the Redis protocol but does not identify itself"


def _mongodb(url: str) -> str:
    """Only MongoDB's own server reports the commit it was built from."""
    import pymongo

    limit_ms = TIMEOUT_S * 1000
    with pymongo.MongoClient[dict[str, object]](
        url, serverSelectionTimeoutMS=limit_ms, connectTimeoutMS=limit_ms, socketTimeoutMS=limit_ms
    ) as client:
        built = client.admin.command("buildInfo")
    name = f"MongoDB {built['version']}"
    return name if "gitVersion" in built else f"{STAND_IN} that claims to be {name} but is not"


KINDS = {
    "mongodb": ServiceKind(
        "MongoDB", "--mongo-url", "mongodb://127.0.0.1:27017/lab", ("mongodb", "mongodb+srv"),
        ("pymongo",), "pymongo.uri_parser:parse_uri", _mongodb,
    ),
    "postgresql": ServiceKind(
        "PostgreSQL", "--postgres-url", "postgresql://user@127.0.0.1/lab",
        ("postgresql", "postgres"), ("psycopg",), "psycopg.conninfo:conninfo_to_dict", _postgresql,
    ),
    "sqlite": ServiceKind(
        "SQLite", "", "", ("sqlite",), (), "", lambda _: f"SQLite {sqlite3.sqlite_version}"
    ),
    "redis": ServiceKind(
        "Redis", "--redis-url", "redis://127.0.0.1:6379", ("redis", "rediss", "unix"),
        ("redis",), "redis:Redis.from_url", _redis,
    ),
}  # fmt: skip


def name_of(kind: str) -> str:
    return KINDS[kind].name if kind in KINDS else kind


def ask(kind: str, url: str) -> str:
    """The server's name and version, such as "PostgreSQL 15.18". Raises NoAnswer."""
    name = KINDS[kind].name
    try:
        return KINDS[kind].version(url)
    except ModuleNotFoundError as error:
        raise NoAnswer(f"{name} needs {error.name}, which is not installed: {EXTRA}") from None
    except Exception as error:  # clients raise their own types; ValueError for an invalid address
        raise NoAnswer(f"{name} at {place(url)} does not respond: {_why(error, url)}") from None


def check_url(kind: str, url: str) -> None:
    """Raises UsageError for an address that cannot be of this kind, without connecting."""
    service = KINDS[kind]
    problem = f"{service.option} must be an address of {service.name}, such as {service.example}"
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in service.schemes:
        raise UsageError(problem)
    try:
        if scheme != "mongodb+srv":  # would query the DNS
            resolve_name(service.parse)(url)
    except ModuleNotFoundError:
        return  # reported by `ask`
    except Exception as error:  # clients raise their own types
        raise UsageError(f"{problem}: {_why(error, url)}") from None


def _why(error: Exception, url: str) -> str:
    why = without_secrets(str(error), url).strip() or type(error).__name__
    why = why.splitlines()[0].partition(" (configured timeouts")[0]  # PyMongo's are long
    return why[:300].rstrip(".")


def place(url: str) -> str:
    """Host and port (or the path) of an address: the part that messages may show."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "its address"
    if host is None:
        return parts.path or "its address"
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def without_secrets(text: str, url: str) -> str:
    """`text` without the credentials in `url`. Never raises, even if `url` is malformed."""
    credentials, at_sign, _ = url.partition("://")[2].rpartition("@")
    password = credentials.partition(":")[2] if at_sign else ""
    text = text.replace(url, place(url))
    for secret in {credentials, unquote(credentials), password, unquote(password)}:
        if secret:
            text = text.replace(secret, "***")
    return text
