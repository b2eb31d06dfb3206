"""Asks the interpreter that will serve the app what it has. Run there as a program, by path:

    /path/to/venv/bin/python introspect.py REQUEST          (working directory: the app's)

REQUEST is a JSON object: `config` (the user's Gunicorn file, or null), `packages` (names to import)
and `classes` (dotted paths of worker classes). Prints one JSON object: `gunicorn` (null: not
installed), `known` (worker classes that Gunicorn has a name for), `names` (of its settings),
`missing` (those of the packages), `classes` (by path: `asgi`, whether it serves ASGI, null where
its ancestors do not tell; `error`, why it cannot be imported), `settings` (of the user's file,
where JSON can say them), `error` (why the file could not be read), `python` (its version), `pip`
(whether it is there) and `requires` (the versions of Python that Gunicorn runs on; null: it does
not say).
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

# Ancestors that decide what a worker serves; aiohttp's, say, serves neither
ASGI = {"ASGIWorker", "UvicornWorker"}
WSGI = {"SyncWorker", "ThreadWorker", "AsyncWorker", "TornadoWorker"}
# Settings whose validators look at the machine: what they say depends on where and as whom Gunicorn
# is started
ELSEWHERE = {"chdir", "user", "group", "reload_extra_files"}


def is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def worker_class(path: str) -> dict[str, Any]:
    """What can be said of a class by its dotted path."""
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
    """What Gunicorn says of the first value that it does not take; None: it takes all."""
    try:
        from gunicorn.config import Config
    except ImportError:  # another package by that name
        return None
    config = Config()
    for name, value in names.items():
        if name in config.settings and name not in ELSEWHERE:
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
    gc.disable()  # it ends before it has anything to collect
    answer: dict[str, Any] = {"gunicorn": None, "known": [], "names": [], "missing": []}
    answer.update(classes={}, settings={}, error=None, python=sys.version.split()[0], requires=None)
    answer["pip"] = not is_missing("pip")
    # As Gunicorn does: the user's file and classes may be beside the app
    sys.path.insert(0, "")
    if not is_missing("gunicorn"):
        import gunicorn
        from gunicorn.workers import SUPPORTED_WORKERS

        answer.update(gunicorn=gunicorn.__version__, known=list(SUPPORTED_WORKERS))
        with contextlib.suppress(ImportError):  # of another package by that name
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
