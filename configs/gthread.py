"""gthread: a pool of threads per worker.

Slots: workers x threads. A worker accepts up to `worker_connections` and queues them itself, even
while another worker is idle: the distribution is uneven, and slots may stay empty. With
`worker_connections` = `threads` connections stay in the kernel queue, and the split is even.
"""

from pathlib import Path
from runpy import run_path

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})

worker_class = "gthread"

# The only class that reads it.
threads = 2
