"""gthread: a pool of threads per worker.

Slots: workers x threads. A worker accepts up to `worker_connections` and queues them itself, even
while another worker idles, so it may stay below its slots: connections are dealt unevenly. With
`worker_connections` = `threads` they stay in the kernel queue and the split is even.
"""

from pathlib import Path
from runpy import run_path

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})

worker_class = "gthread"

# The only class that reads it.
threads = 2
