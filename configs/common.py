"""Settings that all worker classes share, so that a comparison changes only one.

The config file of each class runs this file by its path, because `gunicorn -c` puts neither the
directory of the file nor the checkout on the import path.
"""

# Loopback only: do not expose a benchmark.
bind = "127.0.0.1:8000"

workers = 4

# Established connections that the kernel queues until they are accepted. Silently capped at
# net.core.somaxconn.
backlog = 2048

# Per worker. For gevent and eventlet these are the slots; gthread accepts up to this many and
# queues them itself; asgi, uvicorn, tornado and sync do not enforce it.
worker_connections = 1000

# A heartbeat, not a limit on requests: a worker that has not reported for this long is killed. A
# blocked sync, gevent or async worker does not report, so it must exceed the longest request. Nor
# does a sync worker report while it waits for a request on a connection that it has accepted: this
# value, Gunicorn's default, ends that wait.
timeout = 30

# Seconds for requests to finish after TERM. The asgi class always waits the full time.
graceful_timeout = 1

# Seconds that an idle keep-alive connection stays open: Gunicorn's default. Sync has no keep-alive.
keepalive = 2

# Disabled: a worker that restarts under load would show as a dip in the curve.
max_requests = 0
max_requests_jitter = 0

# One socket for all workers. With reuse_port each worker has its own queue and the kernel picks one
# by hash, so requests can wait for a busy worker while another is idle.
reuse_port = False

# Each worker loads the app itself. With preloading, the app is loaded before gevent patches: see
# apps/imported_sleep.py.
preload_app = False

# Disabled: the cost of a log line per request would be measured, too.
accesslog = None
loglevel = "info"

# Otherwise Gunicorn 25.1 or later creates a socket in the user's home. Older versions ignore this.
control_socket_disable = True
