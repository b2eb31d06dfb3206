"""sync: one request per worker at a time; further requests wait in the kernel's accept queue.

Slots: workers. It closes every connection after its response, whatever `keepalive` says, and it
becomes gthread if `threads` exceeds 1.
"""

from pathlib import Path
from runpy import run_path

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})

worker_class = "sync"
