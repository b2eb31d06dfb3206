"""Workers by the number of cores, threads for a database that is slow."""

import multiprocessing

bind = "0.0.0.0:8000"
workers = multiprocessing.cpu_count() * 2 + 1
worker_class = "gthread"
threads = 4
worker_connections = 1000
keepalive = 75
max_requests = 1000
max_requests_jitter = 100
preload_app = True
