"""eventlet: a green thread per connection; what waits (sleep, sockets) gives way to the others.

Slots: workers x worker_connections. Each worker accepts one more, which waits inside; the rest
waits in the kernel. Patched in the arbiter, before any app is loaded. Gunicorn 26 removed it.
"""

from pathlib import Path
from runpy import run_path

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})

worker_class = "eventlet"
