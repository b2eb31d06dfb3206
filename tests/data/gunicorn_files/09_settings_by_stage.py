"""One file for several stages."""

import os

STAGE = os.environ.get("STAGE", "production")

chdir = "/srv/app"
worker_class = "gunicorn.workers.sync.SyncWorker"
if STAGE == "production":
    workers = 8
    preload_app = True
else:
    workers = 1
    reload = True
try:
    timeout = int(os.environ["TIMEOUT"])
except KeyError:
    timeout = 30
keepalive = 65
proxy_protocol = False
sendfile = True
