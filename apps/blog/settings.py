"""What the blog is told by its environment, checked when it starts.

BLOG_STORAGE         sqlite:///blog.sqlite | postgresql://... | mongodb://...
BLOG_REDIS           redis://...; empty: no cache beside the workers
BLOG_LOCAL           1: each worker keeps what it has read, too
BLOG_LOCAL_EXPIRY    seconds (1): no reader sees an edit later than this after it was answered
BLOG_LOCAL_MOST      entries a worker keeps (1000)
BLOG_REDIS_EXPIRY    seconds (30)
BLOG_POOL            connections to the database per worker (10)
BLOG_UPLOADS         a directory for images (./blog-uploads)
BLOG_UPLOAD_MOST     bytes of an upload (5000000)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

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

    storage_url: str = "sqlite:///blog.sqlite"
    redis_url: str = ""
    local: bool = False
    local_expiry_s: float = 1.0
    local_most: int = 1000
    redis_expiry_s: float = 30.0
    pool: int = 10
    uploads: Path = Path("blog-uploads")
    upload_most_bytes: int = 5_000_000

    @property
    def storage(self) -> str:
        """Which file of `storage` knows it."""
        return STORAGES[urlsplit(self.storage_url).scheme]


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Raises BadSetting."""
    usual = Settings()
    url = environ.get("BLOG_STORAGE", usual.storage_url)
    if urlsplit(url).scheme not in STORAGES:
        known = ", ".join(f"{scheme}://" for scheme in STORAGES)
        raise BadSetting(f"BLOG_STORAGE must begin with one of {known}, not {url[:40]!r}.")
    redis_url = environ.get("BLOG_REDIS", "")
    if redis_url and urlsplit(redis_url).scheme not in ("redis", "rediss", "unix"):
        raise BadSetting(f"BLOG_REDIS must be a redis:// address, not {redis_url[:40]!r}.")
    local = environ.get("BLOG_LOCAL", "0")
    if local not in ("0", "1"):
        raise BadSetting(f"BLOG_LOCAL must be 0 or 1, not {local[:40]!r}.")
    return Settings(
        storage_url=url,
        redis_url=redis_url,
        local=local == "1",
        local_expiry_s=_number(environ, "BLOG_LOCAL_EXPIRY", usual.local_expiry_s, 0.0, 3600.0),
        local_most=int(_number(environ, "BLOG_LOCAL_MOST", usual.local_most, 1, 1e6)),
        redis_expiry_s=_number(environ, "BLOG_REDIS_EXPIRY", usual.redis_expiry_s, 0.1, 86400.0),
        pool=int(_number(environ, "BLOG_POOL", usual.pool, 1, 1000)),
        uploads=Path(environ.get("BLOG_UPLOADS", usual.uploads)),
        upload_most_bytes=int(
            _number(environ, "BLOG_UPLOAD_MOST", usual.upload_most_bytes, 1, 100e6)
        ),
    )


def _number(
    environ: Mapping[str, str], name: str, usual: float, least: float, most: float
) -> float:
    text = environ.get(name)
    if text is None:
        return usual
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise BadSetting(f"{name} must be a number from {least:g} to {most:g}, not {text[:40]!r}.")
    return value
