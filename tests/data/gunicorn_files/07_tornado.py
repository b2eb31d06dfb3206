"""An old chat server, still on tornado."""

worker_class = "tornado"
workers = 1
worker_connections = 4000
keepalive = 10
accesslog = "/var/log/chat/access.log"
access_log_format = '%(h)s "%(r)s" %(s)s %(L)s'
limit_request_line = 4094
max_requests = 10000
statsd_host = "localhost:8125"
statsd_prefix = "chat"


def post_request(worker, request, environ, response):
    worker.log.info("%s", request.path)
