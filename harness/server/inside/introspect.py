"""Asks the interpreter that will serve the app what it has. Run there as a program, by path:

    /path/to/venv/bin/python introspect.py [own.conf.py]     (working directory: the app's)

Prints one JSON object: `python`, `gunicorn` (None: not installed), `classes` (those this Gunicorn
knows), `missing` (class -> packages it needs and this interpreter lacks), `settings` (of the
user's file, where JSON can say them) and `error` (the file could not be read).
Stdlib only, syntax of Python 3.10: the harness is not installed there.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from collections.abc import Sequence
from typing import Any

PACKAGES: dict[str, tuple[str, ...]] = {
    "sync": (),
    "gthread": (),
    "eventlet": ("eventlet",),
    "gevent": ("gevent", "packaging"),
    "tornado": ("tornado",),
    "asgi": (),
    "uvicorn": ("uvicorn", "uvicorn_worker"),
}


def missing() -> dict[str, list[str]]:
    return {
        name: [package for package in packages if importlib.util.find_spec(package) is None]
        for name, packages in PACKAGES.items()
    }


def known_classes() -> list[str]:
    """Gunicorn's own table; uvicorn comes from a package of its own, so it is always possible."""
    from gunicorn.workers import SUPPORTED_WORKERS

    return [name for name in PACKAGES if name in SUPPORTED_WORKERS or name == "uvicorn"]


def settings_of(path: str) -> dict[str, Any]:
    names = runpy.run_path(path, run_name="__config__")
    kept = {}
    for name, value in names.items():
        if not name.startswith("_") and isinstance(value, (str, int, float, bool, type(None))):
            kept[name] = value
        elif name == "bind":
            kept[name] = str(value)
    return kept


def main(paths: Sequence[str]) -> None:
    found: dict[str, Any] = {"python": sys.version.split()[0], "gunicorn": None, "classes": []}
    found.update(missing={}, settings={}, error=None)
    # As Gunicorn does: the user's file may import what stands beside the app
    sys.path.insert(0, "")
    if importlib.util.find_spec("gunicorn") is not None:
        import gunicorn

        found.update(gunicorn=gunicorn.__version__, classes=known_classes(), missing=missing())
    for path in paths:
        try:
            found["settings"] = settings_of(path)
        except BaseException as error:  # a config file may do anything, sys.exit included
            found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
