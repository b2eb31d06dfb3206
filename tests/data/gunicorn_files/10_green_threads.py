"""Long polls on eventlet."""

worker_class = "eventlet"
workers = 2
worker_connections = 10_000
threads = 1
timeout = 300
keepalive = 30
reuse_port = False
sendfile = True
limit_request_fields = 100
accesslog = "access.log"
access_log_format = "%(h)s %(s)s"
