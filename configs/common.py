"""What the config files of all worker classes share, so that a comparison changes one thing only.

Each class's file reads this one by its path, next to itself: `gunicorn -c` puts neither the
directory of the file nor the checkout on the import path.
"""

# Loopback only: a benchmark is nothing to expose.
bind = "127.0.0.1:8000"

workers = 4

# Connections the kernel holds for us, already established but not yet accepted. It is cut to
# net.core.somaxconn without a word.
backlog = 2048

# Per worker. For gevent and eventlet these are the slots; gthread accepts up to so many and queues
# them itself; asgi, uvicorn, tornado and sync do not enforce it.
worker_connections = 1000

# A heartbeat, not a limit on requests: a worker that has not reported for so long is killed. A
# blocked sync, gevent or async worker does not report, so it must exceed the longest request; and
# a sync worker does not while it waits for a request, so that Gunicorn's default ends that wait.
timeout = 30

# How long requests may go on after TERM. The asgi class waits all of it, whatever is running.
graceful_timeout = 1

# Seconds an idle kept-alive connection stays open: Gunicorn's default. Sync never keeps alive.
keepalive = 2

# A worker that restarts under load is a dip in the curve.
max_requests = 0
max_requests_jitter = 0

# One socket for all workers. With reuse_port each has its own queue and the kernel picks one by
# hash, so that requests wait behind a busy worker while another idles.
reuse_port = False

# Each worker loads the app for itself. Preloading changes when gevent patches: see
# apps/imported_sleep.py.
preload_app = False

# Writing a line per request is work that this lab does not want to measure.
accesslog = None
loglevel = "info"

# Otherwise Gunicorn 25.1 and later puts a socket under the user's home. Older ones ignore the name.
control_socket_disable = True
