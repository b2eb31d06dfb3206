"""An API that waits for other services, on greenlets."""

worker_class = "gevent"
workers = 4
worker_connections = 2000
threads = 8
backlog = 4096
timeout = 120
graceful_timeout = 30
keepalive = 2
max_requests = 5000
sendfile = False


def post_fork(server, worker):
    server.log.info("worker %s is up", worker.pid)


def worker_abort(worker):
    worker.log.info("worker %s was aborted", worker.pid)
