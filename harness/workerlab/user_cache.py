"""What is kept between runs, in the user's own cache."""

import os
from pathlib import Path


def user_cache(*parts: str) -> Path:
    """A path in it. Nothing is made."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser().joinpath("workerlab", *parts)
