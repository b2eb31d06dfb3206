"""The directory for files kept between runs: the user's cache."""

import os
from pathlib import Path


def user_cache(*parts: str) -> Path:
    """A path in the cache. Creates nothing."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser().joinpath("workerlab", *parts)
