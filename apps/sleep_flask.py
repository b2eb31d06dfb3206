"""The sleep app as Flask: the same contract as `apps/sleep_wsgi.py`, with a framework's cost."""

import time

from flask import Flask, Response, request

from apps.knobs import BadValue, burn, work_for

app = Flask(__name__)


@app.route("/", defaults={"path": ""}, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
@app.route("/<path:path>", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
def sleep(path: str) -> Response:
    """Serve any path, like the plain apps."""
    request.get_data()  # a body left unread resets the connection
    work = work_for(request.query_string.decode("latin-1"))
    burn(work.cpu_ms)
    time.sleep(work.sleep_s)
    return Response(f"{work.response_text}\n", mimetype="text/plain")


@app.errorhandler(BadValue)
def refuse(problem: BadValue) -> Response:
    return Response(f"{problem}\n", status=400, mimetype="text/plain")
