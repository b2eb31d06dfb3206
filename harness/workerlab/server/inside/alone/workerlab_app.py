"""The app wrapped in the probe, for servers other than Gunicorn, whose workers import it here.

Stdlib and Gunicorn's import of the app only, syntax of Python 3.10. Copied into the run directory,
in a directory of its own: the names of the other files must not hide modules of the app.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

from gunicorn.util import import_app


class AsgiServer(SimpleNamespace):
    """Has the attributes of a Gunicorn worker that `boot` uses."""


class WsgiServer(SimpleNamespace):
    """Like AsgiServer."""


package = ModuleType("_workerlab")
package.__path__ = [str(Path(__file__).absolute().parents[1])]
sys.modules[package.__name__] = package
boot = import_module("_workerlab.boot")
probe = import_module("_workerlab.probe")

boot.confine(boot.LAUNCH["cores"])
if os.getcwd() not in sys.path:  # as Gunicorn does
    sys.path.insert(0, os.getcwd())
boot.watch_import()
try:
    wsgi = import_app(boot.LAUNCH["app"])
except ImportError:  # waitress prints only its message
    traceback.print_exc()
    raise
worker = (AsgiServer if boot.LAUNCH["asgi"] else WsgiServer)(
    wsgi=wsgi,
    app=SimpleNamespace(app_uri=boot.LAUNCH["app"]),
    cfg=SimpleNamespace(**boot.LAUNCH["settings"], chdir=os.getcwd()),
    sockets=(),  # it has not opened them yet
)
if boot.LAUNCH["records"]:
    probe.time_all_accepts()
boot.install(worker, boot.LAUNCH)
app = worker.wsgi
