"""gevent: a greenlet per connection; one that waits (sleep, sockets) lets other greenlets run.

Slots: workers x worker_connections; other connections wait in the kernel. Patches in each worker,
after the fork: with `preload_app`, names imported before that stay unpatched and block, see
apps/imported_sleep.py.
"""

from pathlib import Path
from runpy import run_path

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})

worker_class = "gevent"
