"""A trap: `from time import sleep` under gevent with `preload_app`.

Gevent makes `time.sleep` give way to other requests by putting its own function in place of it,
and Gunicorn's gevent worker does that after the fork. The import below copies the *name* at the
moment this module is loaded:

- without preloading, a worker loads the app after patching: the copy is gevent's, all is well;
- with `preload_app = True` (`--preload`), the arbiter loads the app before it forks: the copy is
  the original, it stops the whole worker, and thousands of slots shrink to one per worker.

Nothing fails and nothing is logged. The cure: call `time.sleep`, looked up at each call as in
`apps/sleep_wsgi.py`, or patch first thing in the configuration file. Eventlet patches in the
arbiter, before any app is loaded, and does not fall into it.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from time import sleep  # the trap
from typing import TYPE_CHECKING

from apps.answers import wsgi_answer
from apps.knobs import BadValue, burn, work_for

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    try:
        work = work_for(environ.get("QUERY_STRING", ""))
    except BadValue as problem:
        return wsgi_answer(environ, start_response, HTTPStatus.BAD_REQUEST, str(problem))
    burn(work.cpu_ms)
    sleep(work.sleep_s)
    return wsgi_answer(environ, start_response, HTTPStatus.OK, work.done)
