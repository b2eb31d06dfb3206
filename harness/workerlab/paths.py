"""Paths of the bundled apps and Gunicorn files, in an installed workerlab or a checkout, and of the
user's cache, which persists between runs; and atomic writes of files.

A wheel contains the checkout's top-level directories `apps` and `configs` as data, in
`workerlab/bundled`: as packages they would collide with those of a project. Users name these apps
`@NAME`, which cannot be a module name.
"""

import os
from pathlib import Path

from workerlab.model.plan import App

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "bundled"
_CHECKOUT = _PACKAGE.parents[1]
BUNDLED_GUNICORN = "25.3.0"  # the last release with every worker class
# The modules below apps/ that define `app`
APPS = ("sleep_wsgi", "sleep_asgi", "sleep_flask", "blocking_asgi", "imported_sleep", "blog.wsgi",
        "blog.asgi")  # fmt: skip


def bundled_root() -> Path:
    """The directory with `apps` and `configs`."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


def target_of(name: str) -> str:
    """The Gunicorn target of `@NAME`, relative to `bundled_root()` or a copy of it."""
    return f"apps.{name.removeprefix('@')}:app"


def bundled_name(target: str) -> str | None:
    """The `@NAME` of a bundled app's target, with or without `:app`; None for any other."""
    return next((f"@{name}" for name in APPS if target_of(name) in (target, f"{target}:app")), None)


def label_of(app: App) -> str:
    """The app's target as a value of `--app`."""
    return app.target if app.chdir else bundled_name(app.target) or app.target


def user_cache(*parts: str) -> Path:
    """A path in the user's cache. Creates nothing."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser().joinpath("workerlab", *parts)


def write_atomically(path: Path, data: bytes) -> None:
    """Write the file completely or not at all: neither an error nor a signal leaves a partial file.
    Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
