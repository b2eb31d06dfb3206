"""The configuration file the server under test is started with. Copied into the run directory.

It reads `launch.json` in the directory named by WORKERLAB_TRIAL:

    configs   paths: the worker class's file, then the user's own, later values win
    worker_class  of a class that has no file: its dotted path; else null
    settings  what the plan fixes on top of them
    env       NAME=VALUE, on top of the files' own raw_env
    cores     how many of them the server may run on; null: all
    records   how many spans each worker's map can hold
    named     whether the load names its requests
    kept      whether it sends more than one of them on a connection
    beats     whether the event loop is looked at
    inside    what else is measured in the workers: nothing (""), "needs" or "stacks"
    routes    method and path of each kind of request, for "needs"

and chains the user's hooks with the lab's (`boot.py`). Names start with an underscore: every other
one is a setting to Gunicorn.
"""

from __future__ import annotations as _annotations

import importlib.util as _util
from pathlib import Path as _Path
from typing import Any as _Any

_spec = _util.spec_from_file_location("_workerlab_inside", _Path(__file__).with_name("boot.py"))
assert _spec is not None
assert _spec.loader is not None
_inside = _util.module_from_spec(_spec)
_spec.loader.exec_module(_inside)
_inside.confine(_inside.LAUNCH["cores"])
_settings = _inside.compose(_inside.LAUNCH)
_users = {name: _settings.pop(name, None) for name in ("post_worker_init", "when_ready")}
globals().update(_settings)


def post_worker_init(worker: _Any) -> None:
    """The user's hook first: it may replace the app, and what serves is what is measured."""
    if _users["post_worker_init"] is not None:
        _users["post_worker_init"](worker)
    _inside.install(worker, _inside.LAUNCH)


def when_ready(server: _Any) -> None:
    """Say which port the kernel chose."""
    _inside.versions()
    _inside.write_json(_inside.LISTENING, {"address": list(server.LISTENERS[0].getsockname()[:2])})
    if _users["when_ready"] is not None:
        _users["when_ready"](server)
