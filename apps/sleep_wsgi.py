"""The minimal sleep app as plain WSGI; `apps/knobs.py` sets the cost of a request."""

import time

from apps.responses import wsgi_app

# Looked up at each call: under gevent and eventlet this is the patched function
app = wsgi_app(lambda seconds: time.sleep(seconds))
