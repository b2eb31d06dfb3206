"""Describes the interpreter that will serve the app. Run there as a program, by path:

    /path/to/venv/bin/python introspect.py REQUEST          (working directory: the app's)

REQUEST is a JSON object: `config` (the user's Gunicorn file, or null), `packages` (names to import)
and `classes` (dotted paths of worker classes). Prints one JSON object: `gunicorn` (its
version, null if not installed), `worker_classes` (names of Gunicorn's own), `names` (of its
settings), `missing` (packages), `classes` (by path: `asgi`, whether it serves ASGI, null if not
known; `error`, why it cannot be imported), `settings` (of the user's file, if JSON can express
them), `error` (why the file cannot be read), `python` (its version), `pip` (whether it is
installed) and `requires` (Python versions supported by Gunicorn, null if not known).
Stdlib only, syntax of Python 3.10: the harness is not installed there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import importlib.util
import json
import runpy
import sys
from typing import Any

# Base classes that determine what a worker serves; aiohttp's serves neither
ASGI = {"ASGIWorker", "UvicornWorker"}
WSGI = {"SyncWorker", "ThreadWorker", "AsyncWorker", "TornadoWorker"}
# Settings whose validators depend on where, and as which user, Gunicorn is started
ENVIRONMENT_DEPENDENT = {"chdir", "user", "group", "reload_extra_files"}


def is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def worker_class(path: str) -> dict[str, Any]:
    """The entry of `classes` for a dotted path."""
    module, _, name = path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except BaseException as error:  # a module may do anything, sys.exit included
        return {"asgi": None, "error": f"{type(error).__name__}: {error}"}
    if not isinstance(cls, type) or not hasattr(cls, "init_process"):
        return {"asgi": None, "error": "it is no worker class of Gunicorn"}
    ancestors = {base.__name__ for base in cls.__mro__}
    return {"asgi": True if ancestors & ASGI else False if ancestors & WSGI else None}


def refused(names: dict[str, Any]) -> str | None:
    """Gunicorn's message about the first value that it rejects; None if it accepts all."""
    try:
        from gunicorn.config import Config
    except ImportError:  # another package of that name
        return None
    config = Config()
    for name, value in names.items():
        if name in config.settings and name not in ENVIRONMENT_DEPENDENT:
            try:
                config.set(name, value)
            except Exception as error:  # of its validators
                return f"Gunicorn does not take {name} = {value!r}: {error}"
    return None


def names_of(path: str) -> dict[str, Any]:
    """What a Gunicorn file sets, as Gunicorn reads it."""
    return runpy.run_path(path, run_name="__config__")


def settings_of(names: dict[str, Any]) -> dict[str, Any]:
    settings = {}
    for name, value in names.items():
        if not name.startswith("_") and isinstance(value, (str, int, float, bool, type(None))):
            settings[name] = value
        elif name == "bind":
            settings[name] = str(value)
    return settings


def main(request: dict[str, Any]) -> None:
    gc.disable()  # short-lived
    answer: dict[str, Any] = {"gunicorn": None, "worker_classes": [], "names": [], "missing": []}
    answer.update(classes={}, settings={}, error=None, python=sys.version.split()[0], requires=None)
    answer["pip"] = not is_missing("pip")
    # As Gunicorn does: the user's file and classes may be in the app's directory
    sys.path.insert(0, "")
    if not is_missing("gunicorn"):
        import gunicorn
        from gunicorn.workers import SUPPORTED_WORKERS

        answer.update(gunicorn=gunicorn.__version__, worker_classes=list(SUPPORTED_WORKERS))
        with contextlib.suppress(ImportError):  # another package of that name
            from gunicorn.config import make_settings

            answer["names"] = sorted(make_settings())
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a checkout
            answer["requires"] = importlib.metadata.metadata("gunicorn")["Requires-Python"]
        answer["missing"] = [name for name in request["packages"] if is_missing(name)]
        answer["classes"] = {path: worker_class(path) for path in request["classes"]}
    if request["config"]:
        try:
            names = names_of(request["config"])
            answer.update(settings=settings_of(names), error=refused(names))
        except BaseException as error:  # a config file may do anything, sys.exit included
            answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
