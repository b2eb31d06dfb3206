"""Determines an app's interface. Run in the interpreter that will serve it, as a program, by path:

    /path/to/venv/bin/python app_kind.py REQUEST          (working directory: the app's)

REQUEST is a JSON object: `app` (module:name), `config` (the user's Gunicorn file, which may set
`pythonpath` and `raw_env`, or null) and `limit_s`. Imports the app as Gunicorn does and prints its
kind, as returned by `app_kind`; "unimportable" if the import fails. If it takes longer than the
limit, prints the stack of each thread, and exits with 1. Stdlib only, syntax of Python 3.10: the
harness is not installed there.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import runpy
import sys
from typing import Any


def app_kind(app: Any) -> str:
    """The kind: wsgi, asgi, asgi2 or tornado; unknown if the callable is ambiguous."""
    if app is None:
        return "unknown"
    names = {f"{cls.__module__}.{cls.__name__}" for cls in type(app).__mro__}
    if "tornado.web.Application" in names:
        return "tornado"
    if "tornado.wsgi.WSGIContainer" in names:
        return "wsgi"
    # Calling a class makes an instance, so the instance's __call__ does not matter
    called = app if inspect.isclass(app) else getattr(app, "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(called):
        return "asgi"
    kinds = [kind for count, kind in enumerate(("asgi2", "wsgi", "asgi"), 1) if takes(app, count)]
    return kinds[0] if len(kinds) == 1 else "unknown"


def takes(app: Any, count: int) -> bool:
    """Whether the app can be called with `count` arguments; False also if that is unknown."""
    try:
        inspect.signature(app).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def import_app_as_gunicorn(request: dict[str, Any]) -> Any:
    """The app, as Gunicorn would find it."""
    names = runpy.run_path(request["config"]) if request["config"] else {}
    raw_env = names.get("raw_env") or []
    for pair in [raw_env] if isinstance(raw_env, str) else raw_env:
        name, _, value = pair.partition("=")
        os.environ.setdefault(name, value)
    sys.path[:0] = [os.getcwd(), *filter(None, (names.get("pythonpath") or "").split(","))]
    from gunicorn.util import import_app

    return import_app(request["app"])


def main(request: dict[str, Any]) -> None:
    del sys.path[0]  # this file's directory is not the app's
    output_fd = os.dup(1)
    os.dup2(2, 1)  # an app may print during import
    faulthandler.dump_traceback_later(request["limit_s"], exit=True, file=output_fd)
    try:
        kind = app_kind(import_app_as_gunicorn(request))
    except BaseException:  # it may do anything, sys.exit included
        kind = "unimportable"
    os.write(output_fd, kind.encode())
    os._exit(0)  # even if the app has started threads


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
