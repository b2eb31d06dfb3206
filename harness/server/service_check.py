"""Who answers at an address of a storage or a cache: asked by its own client, within seconds.

Passwords are in addresses: nothing that is said here repeats more of one than host and port, not
even what a client says of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

ANSWER_S = 5
NAMES = {
    "mongodb": "MongoDB",
    "postgresql": "PostgreSQL",
    "sqlite": "SQLite",
    "redis": "Redis",
}


class Silent(Exception):
    """It does not answer; says who and why, in one sentence without a full stop."""


def ask(kind: str, url: str) -> str:
    """ "PostgreSQL 15.18 (Debian 15.18-0+deb12u1)". Raises Silent."""
    name = NAMES[kind]
    try:
        return WHO[kind](url)
    except ModuleNotFoundError as error:
        raise Silent(
            f"{name} needs {error.name}, which is not installed: pip install 'workerlab[ladder]'"
        ) from None
    except Exception as error:  # each client has kinds of its own, and ValueError for an address
        why = without_secrets(str(error), url).strip() or type(error).__name__
        why = why.splitlines()[0].partition(" (configured timeouts")[0]  # PyMongo's are long
        raise Silent(f"{name} at {place(url)} does not answer: {why[:300].rstrip('.')}") from None


def place(url: str) -> str:
    """Host and port (or the path) of an address: what may be shown of it."""
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
    """Raises nothing, whatever the address looks like."""
    before, found, _ = url.partition("://")[2].rpartition("@")
    password = before.partition(":")[2] if found else ""
    text = text.replace(url, place(url))
    for secret in {before, unquote(before), password, unquote(password)}:
        if secret:
            text = text.replace(secret, "***")
    return text


def _postgresql(url: str) -> str:
    import psycopg

    with psycopg.connect(url, connect_timeout=ANSWER_S) as db:
        ((version,),) = db.execute("SHOW server_version").fetchall()
    return f"PostgreSQL {version}"


def _redis(url: str) -> str:
    import redis

    with redis.Redis.from_url(url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S) as one:
        said = one.info("server")
    for name in ("valkey", "redis"):
        if f"{name}_version" in said:
            return f"{name.capitalize()} {said[f'{name}_version']}"
    return "a server that speaks Redis' protocol and does not say who it is"


def _mongodb(url: str) -> str:
    """MongoDB's own server tells what it was built from."""
    import pymongo

    limit_ms = ANSWER_S * 1000
    with pymongo.MongoClient[dict[str, object]](
        url, serverSelectionTimeoutMS=limit_ms, connectTimeoutMS=limit_ms, socketTimeoutMS=limit_ms
    ) as one:
        built = one.admin.command("buildInfo")
    said = f"MongoDB {built['version']}"
    return said if "gitVersion" in built else f"a server that calls itself {said} and is not it"


def _sqlite(_: str) -> str:
    return f"SQLite {sqlite3.sqlite_version}"


WHO: dict[str, Callable[[str], str]] = {
    "postgresql": _postgresql,
    "redis": _redis,
    "mongodb": _mongodb,
    "sqlite": _sqlite,
}
