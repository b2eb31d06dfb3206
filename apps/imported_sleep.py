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

from time import sleep  # the trap

from apps.answers import wsgi_app

app = wsgi_app(sleep)
