"""uvicorn: ASGI apps on uvicorn's server, in a Gunicorn worker of the package uvicorn-worker.

Slots: no limit. Every connection is accepted at once: `threads` and `worker_connections` are not
passed on to uvicorn. A subclass that sets `limit_concurrency` returns 503 above that limit.

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
    """UvicornWorker with a fixed event loop and HTTP parser.

    "auto" uses uvloop and httptools if they are installed, so two machines would measure different
    things under the same name.
    """

    CONFIG_KWARGS = {  # noqa: RUF012 - uvicorn's own spelling
        "loop": _choice("ASGI_LOOP", {"asyncio": "asyncio", "uvloop": "uvloop"}),
        "http": _choice("UVICORN_HTTP", {"h11": "h11", "httptools": "httptools"}),
        "lifespan": "auto",
    }


worker_class = PinnedUvicornWorker
