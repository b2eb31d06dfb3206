"""uvicorn: ASGI apps on uvicorn's server, in a Gunicorn worker of the package uvicorn-worker.

Slots: no limit. Everything is accepted at once: `threads` and `worker_connections` are not passed
on. A subclass that sets `limit_concurrency` answers 503 beyond it.

    gunicorn -c configs/uvicorn.py apps.sleep_asgi:app
    ASGI_LOOP=uvloop UVICORN_HTTP=httptools gunicorn -c configs/uvicorn.py apps.sleep_asgi:app
"""

from pathlib import Path
from runpy import run_path

from uvicorn_worker import UvicornWorker

_common = run_path(str(Path(__file__).with_name("common.py")))
globals().update({name: value for name, value in _common.items() if not name.startswith("_")})
_choice = run_path(str(Path(__file__).with_name("choice.py")))["choice"]


class PinnedUvicornWorker(UvicornWorker):
    """UvicornWorker with its event loop and HTTP parser named instead of found.

    "auto" takes uvloop and httptools when they happen to be installed, and two machines would
    measure two different things under one name.
    """

    CONFIG_KWARGS = {  # noqa: RUF012 - uvicorn's own spelling
        "loop": _choice("ASGI_LOOP", {"asyncio": "asyncio", "uvloop": "uvloop"}),
        "http": _choice("UVICORN_HTTP", {"h11": "h11", "httptools": "httptools"}),
        "lifespan": "auto",
    }


worker_class = PinnedUvicornWorker
