"""Gunicorn's own class for ASGI apps."""

worker_class = "asgi"
workers = 2
backlog = 512
worker_connections = 500
keepalive = 15
graceful_timeout = 20
limit_request_fields = 50
header_map = "refuse"
proxy_protocol = True
forwarded_allow_ips = "10.0.0.0/8"
