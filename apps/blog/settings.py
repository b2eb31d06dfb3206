"""What the blog is told by its environment, checked when it starts.

BLOG_STORAGE         sqlite:///blog.sqlite | postgresql://... | mongodb://...
BLOG_REDIS           redis://...; empty: no cache beside the workers
BLOG_LOCAL           1: each worker keeps what it has read, too
BLOG_LOCAL_EXPIRY    seconds (1): no reader sees an edit later than this after it was answered
BLOG_LOCAL_MOST      entries a worker keeps (1000)
BLOG_REDIS_EXPIRY    seconds (30)
BLOG_POOL            connections to the database per worker (10)
BLOG_ANSWER          seconds (2): a database that takes longer is down, a Redis in a quarter of it
BLOG_UPLOADS         a directory for images (./blog-uploads)
BLOG_UPLOAD_MOST     bytes of an upload (5000000)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STORAGES = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb",
}
POSTS_PER_PAGE = 20


class BadSetting(ValueError):
    """A setting that cannot be; the message is one sentence for the one who starts the blog."""


@dataclass(frozen=True)
class Settings:
    """Times in seconds. `redis_url` "": none."""

    storage_url: str = field(default="sqlite:///blog.sqlite", repr=False)  # may hold a password
    redis_url: str = field(default="", repr=False)
    local: bool = False
    local_expiry_s: float = 1.0
    local_most: int = 1000
    redis_expiry_s: float = 30.0
    pool: int = 10
    answer_s: float = 2.0
    uploads: Path = Path("blog-uploads")
    upload_most_bytes: int = 5_000_000

    @property
    def storage(self) -> str:
        """Which file of `storage` knows it."""
        return STORAGES[_scheme(self.storage_url)]


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Raises BadSetting."""
    default = Settings()
    whole = {
        name: int(_number(environ, f"BLOG_{name.upper()}", getattr(default, name), 1, most, step=1))
        for name, most in (("local_most", 1e6), ("pool", 1000))
    }
    most_bytes = _number(environ, "BLOG_UPLOAD_MOST", default.upload_most_bytes, 1, 100e6, step=1)
    local = environ.get("BLOG_LOCAL", "0")
    if local not in ("0", "1"):
        raise BadSetting(f"BLOG_LOCAL must be 0 or 1, not {local[:40]!r}.")
    return Settings(
        storage_url=_storage_url(environ.get("BLOG_STORAGE", default.storage_url)),
        redis_url=_redis_url(environ.get("BLOG_REDIS", "")),
        local=local == "1",
        local_expiry_s=_number(environ, "BLOG_LOCAL_EXPIRY", default.local_expiry_s, 0.0, 3600.0),
        redis_expiry_s=_number(environ, "BLOG_REDIS_EXPIRY", default.redis_expiry_s, 0.1, 86400.0),
        answer_s=_number(environ, "BLOG_ANSWER", default.answer_s, 0.1, 3600.0),
        uploads=Path(environ.get("BLOG_UPLOADS") or default.uploads),
        upload_most_bytes=int(most_bytes),
        **whole,
    )


def _storage_url(url: str) -> str:
    if _scheme(url) not in STORAGES:
        known = ", ".join(f"{scheme}://" for scheme in STORAGES)
        raise BadSetting(f"BLOG_STORAGE must begin with one of {known}{_not(url)}.")
    if STORAGES[_scheme(url)] == "sqlite" and not re.fullmatch(r"sqlite:///[^?#]+", url):
        raise BadSetting("BLOG_STORAGE must be sqlite:///FILE, or sqlite:////FILE from the root.")
    return url


def _redis_url(url: str) -> str:
    if url and _scheme(url) not in ("redis", "rediss", "unix"):
        raise BadSetting(f"BLOG_REDIS must be a redis:// address{_not(url)}.")
    return url


def _scheme(url: str) -> str:
    """ "": it has none."""
    match = re.match(r"([a-z+]+)://", url)
    return match[1] if match else ""


def _not(url: str) -> str:
    """What stands there instead, without a password that may follow."""
    return f", not {_scheme(url)}://" if _scheme(url) else ""


def _number(
    environ: Mapping[str, str],
    name: str,
    default: float,
    least: float,
    most: float,
    step: float = 0,
) -> float:
    """`step`: what it must be a multiple of; 0: any number."""
    text = environ.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most or (step and value % step):
        kind = "a whole number" if step else "a number"
        raise BadSetting(f"{name} must be {kind} from {least:g} to {most:g}, not {text[:40]!r}.")
    return value
