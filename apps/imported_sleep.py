"""A trap: `from time import sleep` under gevent with `preload_app`.

Gevent replaces `time.sleep` with a function that lets other requests run, and Gunicorn's gevent
worker applies this patch after the fork. The import below binds the function that `time.sleep` is
at the moment this module is loaded:

- without preloading, a worker loads the app after patching, and gets gevent's function;
- with `preload_app = True` (`--preload`), the arbiter loads the app before it forks, and gets the
  original: it blocks the whole worker, and thousands of slots shrink to one per worker.

Nothing fails and nothing is logged. The fix: call `time.sleep`, which is looked up at each call
(`apps/sleep_wsgi.py`), or patch at the top of the configuration file. Eventlet is not affected: it
patches in the arbiter, before any app is loaded.
"""

from time import sleep  # the trap

from apps.responses import wsgi_app

app = wsgi_app(sleep)
