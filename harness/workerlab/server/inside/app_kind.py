"""Which interface an app has. Run in the interpreter that will serve it, as a program, by path:

    /path/to/venv/bin/python app_kind.py REQUEST          (working directory: the app's)

REQUEST is a JSON object: `app` (module:name) and `config` (the user's Gunicorn file, or null, which
may set `pythonpath` and `raw_env`). Imports the app as Gunicorn does, and prints its kind, one of
those of `app_kind`; unknown, too, where it cannot be imported.
Stdlib only, syntax of Python 3.10: the harness is not installed there.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
from typing import Any


def app_kind(app: Any) -> str:
    """wsgi, asgi, asgi2, tornado, or unknown where the callable does not say."""
    if app is None:
        return "unknown"
    names = {f"{cls.__module__}.{cls.__name__}" for cls in type(app).__mro__}
    if "tornado.web.Application" in names:
        return "tornado"
    if "tornado.wsgi.WSGIContainer" in names:
        return "wsgi"
    # A class is called to make an instance; what calling that one does says nothing about it
    called = app if inspect.isclass(app) else getattr(app, "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(called):
        return "asgi"
    fits = [kind for count, kind in enumerate(("asgi2", "wsgi", "asgi"), 1) if takes(app, count)]
    return fits[0] if len(fits) == 1 else "unknown"


def takes(app: Any, count: int) -> bool:
    """Whether it can be called with so many arguments; False also where that cannot be known."""
    try:
        inspect.signature(app).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def imported(request: dict[str, Any]) -> Any:
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
    del sys.path[0]  # the modules beside this one are none of the app's
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # an app may print as it is imported
    try:
        kind = app_kind(imported(request))
    except BaseException:  # it may do anything, sys.exit included
        kind = "unknown"
    os.write(answer_fd, kind.encode())
    os._exit(0)  # whatever threads it has started


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
