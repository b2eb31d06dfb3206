"""A FastAPI service under uvicorn's worker."""

import os

worker_class = "uvicorn.workers.UvicornWorker"
workers = int(os.getenv("WEB_CONCURRENCY", "4"))
bind = os.getenv("BIND", "0.0.0.0:80")
threads = 2
worker_connections = 1000
keepalive = 120
timeout = 120
graceful_timeout = 120
limit_request_line = 8190
limit_request_field_size = 16384
access_log_format = '%(h)s %(l)s %(t)s "%(r)s" %(s)s %(b)s'
accesslog = "-"


def pre_request(worker, request):
    worker.log.debug("%s %s", request.method, request.path)


def worker_exit(server, worker):
    server.log.info("worker %s is gone", worker.pid)
