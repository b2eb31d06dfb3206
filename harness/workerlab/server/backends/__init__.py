"""Servers other than Gunicorn, one module each. To add one: its class, and a line here."""

from collections.abc import Mapping

from workerlab.server.backends.backend import Backend
from workerlab.server.backends.granian import Granian
from workerlab.server.backends.hypercorn import Hypercorn
from workerlab.server.backends.uvicorn import UvicornAlone
from workerlab.server.backends.waitress import Waitress

BACKENDS: Mapping[str, Backend] = {
    backend.ROW.name: backend for backend in (UvicornAlone(), Granian(), Hypercorn(), Waitress())
}
