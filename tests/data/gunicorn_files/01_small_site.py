"""A small Django site behind nginx."""

bind = "unix:/run/site/gunicorn.sock"
workers = 3
umask = 0o007
timeout = 60
keepalive = 5
accesslog = "/var/log/site/access.log"
errorlog = "/var/log/site/error.log"
loglevel = "warning"
