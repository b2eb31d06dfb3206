"""Settings of the blog, read from the environment and checked when it starts.

BLOG_STORAGE         sqlite:///blog.sqlite | postgresql://... | mongodb://...
BLOG_REDIS           redis://...; empty: no shared cache
BLOG_LOCAL           1: each worker also has a cache of its own
BLOG_LOCAL_EXPIRY    seconds (1) from the response to an edit until every reader sees it
BLOG_LOCAL_MOST      entries in a worker's cache (1000)
BLOG_REDIS_EXPIRY    seconds (30)
BLOG_POOL            connections to the database per worker (10)
BLOG_ANSWER          seconds (2) until a database counts as down; for Redis a quarter of that
BLOG_UPLOADS         a directory for images (./blog-uploads)
BLOG_UPLOAD_MOST     maximum bytes of an upload (5000000)
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STORAGES = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb",
}
# (field of Settings, variable, minimum, maximum)
NUMBERS: tuple[tuple[str, str, float, float], ...] = (
    ("local_expiry_s", "BLOG_LOCAL_EXPIRY", 0.0, 3600.0),
    ("local_max_entries", "BLOG_LOCAL_MOST", 1, 1_000_000),
    ("redis_expiry_s", "BLOG_REDIS_EXPIRY", 0.1, 86400.0),
    ("pool", "BLOG_POOL", 1, 1000),
    ("answer_s", "BLOG_ANSWER", 0.1, 3600.0),
    ("upload_max_bytes", "BLOG_UPLOAD_MOST", 1, 100_000_000),
)
POSTS_PER_PAGE = 20


class BadSetting(ValueError):
    """An invalid setting; the message is one sentence for the operator."""


@dataclass(frozen=True)
class Settings:
    """Times in seconds. `redis_url`: "" for none."""

    storage_url: str = field(default="sqlite:///blog.sqlite", repr=False)  # may contain a password
    redis_url: str = field(default="", repr=False)
    local: bool = False
    local_expiry_s: float = 1.0
    local_max_entries: int = 1000
    redis_expiry_s: float = 30.0
    pool: int = 10
    answer_s: float = 2.0
    uploads: Path = Path("blog-uploads")
    upload_max_bytes: int = 5_000_000

    @property
    def storage(self) -> str:
        """The module in `storage` for this URL."""
        return STORAGES[_scheme(self.storage_url)]


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in the environment. Raises BadSetting."""
    local = environ.get("BLOG_LOCAL", "0")
    if local not in ("0", "1"):
        raise BadSetting(f"BLOG_LOCAL must be 0 or 1, not {local[:40]!r}.")
    numbers = {
        name: _number(variable, environ[variable], *bounds)
        for name, variable, *bounds in NUMBERS
        if variable in environ
    }
    return Settings(
        storage_url=_storage_url(environ.get("BLOG_STORAGE", Settings.storage_url)),
        redis_url=_redis_url(environ.get("BLOG_REDIS", "")),
        local=local == "1",
        uploads=Path(environ.get("BLOG_UPLOADS") or Settings.uploads),
        **numbers,
    )


def _storage_url(url: str) -> str:
    if _scheme(url) not in STORAGES:
        schemes = ", ".join(f"{scheme}://" for scheme in STORAGES)
        raise BadSetting(f"BLOG_STORAGE must begin with one of {schemes}{_not(url)}.")
    if STORAGES[_scheme(url)] == "sqlite" and not re.fullmatch(r"sqlite:///[^?#]+", url):
        raise BadSetting("BLOG_STORAGE must be sqlite:///FILE, or sqlite:////FILE from the root.")
    return url


def _redis_url(url: str) -> str:
    if url and _scheme(url) not in ("redis", "rediss", "unix"):
        raise BadSetting(f"BLOG_REDIS must be a redis:// address{_not(url)}.")
    return url


def _scheme(url: str) -> str:
    """The scheme of a URL; "" if it has none."""
    match = re.match(r"([a-z+]+)://", url)
    return match[1] if match else ""


def _not(url: str) -> str:
    """Names the scheme that was given, without the rest, which may contain a password."""
    return f", not {_scheme(url)}://" if _scheme(url) else ""


def _number(variable: str, text: str, minimum: float, maximum: float) -> Any:
    """The number: an int if `minimum` is one, else a float. Raises BadSetting."""
    kind = type(minimum)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not minimum <= value <= maximum or kind(value) != value:
        noun = "a whole number" if kind is int else "a number"
        allowed = f"{noun} from {minimum:g} to {maximum:g}"
        raise BadSetting(f"{variable} must be {allowed}, not {text[:40]!r}.")
    return kind(value)
