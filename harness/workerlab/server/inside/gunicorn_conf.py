"""Gunicorn's configuration file for the server under test, copied into the run directory.

It reads `launch.json` in the directory WORKERLAB_TRIAL:

    configs   paths: the worker class's file, then the user's; later values win
    worker_class  the dotted path of a class without such a file; else null
    settings  from the plan, override those of the files
    env       NAME=VALUE, added to the files' raw_env
    cores     number of cores the server may run on; null: all
    records   how many spans each worker's map can hold
    named     whether requests carry ids
    kept      whether the load keeps its connections alive
    beats     whether the event loop's beats are recorded
    inside    other measurements in the workers: "" (none), "needs" or "stacks"
    routes    method and path of each kind of request, for "needs"

and chains the user's hooks with the lab's (`boot.py`). Names start with an underscore: Gunicorn
takes all other names for settings.
"""

from __future__ import annotations as _annotations

import sys as _sys
from importlib import import_module as _import_module
from pathlib import Path as _Path
from types import ModuleType as _ModuleType
from typing import Any as _Any

# This interpreter may not have workerlab installed, so the files next to this one form a package,
# which a reload of the configuration loads again
for _name in [name for name in _sys.modules if name.partition(".")[0] == "_workerlab"]:
    del _sys.modules[_name]
_package = _ModuleType("_workerlab")
_package.__path__ = [str(_Path(__file__).absolute().parent)]
_sys.modules[_package.__name__] = _package
_inside = _import_module("_workerlab.boot")
_inside.confine(_inside.LAUNCH["cores"])
_settings = _inside.compose(_inside.LAUNCH)
_user_hooks = {
    name: _settings.pop(name, None) or (lambda *_: None)
    for name in ("pre_fork", "post_fork", "post_worker_init", "when_ready")
}
globals().update(_settings)
_inside.watch_import()  # with preload_app, the app is imported here


def pre_fork(server: _Any, worker: _Any) -> None:
    """With preload_app, called after the import of the app, also after a reload."""
    _inside.end_import_watch()
    _user_hooks["pre_fork"](server, worker)


def post_fork(server: _Any, worker: _Any) -> None:
    """The import of the app follows."""
    _inside.watch_import()
    _user_hooks["post_fork"](server, worker)


def post_worker_init(worker: _Any) -> None:
    """The user's hook comes first, since it may replace the app."""
    _user_hooks["post_worker_init"](worker)
    _inside.install(worker, _inside.LAUNCH)


def when_ready(server: _Any) -> None:
    """Write the port that the kernel chose."""
    _inside.versions()
    _inside.write_json(_inside.LISTENING, {"address": list(server.LISTENERS[0].getsockname()[:2])})
    _user_hooks["when_ready"](server)
