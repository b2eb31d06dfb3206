"""Prometheus in several processes: workers tell the registry when they go."""

workers = 4
worker_class = "sync"
reuse_port = True
statsd_host = "127.0.0.1:9125"
worker_connections = 100
raw_env = ["PROMETHEUS_MULTIPROC_DIR=/tmp/metrics"]


def when_ready(server):
    server.log.info("ready")


def child_exit(server, worker):
    server.log.info("worker %s has left its metrics", worker.pid)
