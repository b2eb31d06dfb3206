"""asgi: Gunicorn's own worker for ASGI apps, on asyncio.

Slots: no limit. Every connection is accepted at once: `worker_connections` is not enforced in 25.3,
and the worker calls listen() again with a backlog of 100, whatever `backlog` says.

    gunicorn -c configs/asgi.py apps.sleep_asgi:app
    ASGI_LOOP=uvloop gunicorn -c configs/asgi.py apps.sleep_asgi:app
"""

from pathlib import Path
from runpy import run_path

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})
_choice = run_path(str(Path(__file__).with_name("choice.py")))["choice"]

worker_class = "asgi"

# Pinned: "auto" uses uvloop and a C parser if they are installed, so two machines would measure
# different things under the same name.
asgi_loop = _choice("ASGI_LOOP", {"asyncio": "asyncio", "uvloop": "uvloop"})
http_parser = _choice("ASGI_HTTP", {"python": "gunicorn", "fast": "gunicorn_h1c"})
asgi_lifespan = "auto"
