"""eventlet: a green thread per connection; one that waits (sleep, sockets) lets other threads run.

Slots: workers x worker_connections. Each worker accepts one more connection, which waits inside;
further ones wait in the kernel. Patches in the arbiter, before any app is loaded. Removed in
Gunicorn 26.
"""

from pathlib import Path
from runpy import run_path

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})

worker_class = "eventlet"
