# The app's own Gunicorn file
workers = 3
timeout = 60
errorlog = "-"


def post_fork(server, worker):
    server.log.info("a worker of ours")
