"""tornado: an event loop per worker.

A WSGI app runs *on* the loop and blocks it. Slots: workers; connections accepted meanwhile wait in
the loop, even while another worker is idle. A native tornado application has no such limit.
"""

from pathlib import Path
from runpy import run_path

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})

worker_class = "tornado"
