"""The minimal sleep app as plain WSGI: what a request costs stands in `apps/knobs.py`."""

import time

from apps.answers import wsgi_app

# Looked up at each call, so that it is the patched one under gevent and eventlet
app = wsgi_app(lambda seconds: time.sleep(seconds))
