"""Two servers at once, each with its own workers and its own port."""

from __future__ import annotations

from pathlib import Path

from tests.builders.launch import launch
from tests.integration.conftest import until
from workerlab.model import App, Route, Server
from workerlab.observe.spans import read_spans
from workerlab.server.gunicorn import running
from workerlab.server.running import Launch
from workerlab.server.warmup import ask
from workerlab.server.worker_classes import ASGI_CLASSES

APP = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""
ASGI = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""


def two(place: Path, worker_class: str) -> Launch:
    (place / "own.py").write_text(ASGI if worker_class in ASGI_CLASSES else APP)
    return launch(place, Server(worker_class, 2, 1, 64, 100, 2), App("own:app", str(place)))


def test_two_servers_are_two_and_the_death_of_one_is_told(
    tmp_path: Path, worker_class: str
) -> None:
    with running(two(tmp_path, worker_class)) as server:
        (other,) = server.others
        assert server.port != other.port
        assert len(server.proofs) == 4
        assert len(other.proofs) == 2
        for instance in (server, other):
            assert ask(instance, Route("/")).status == 200
        assert server.lost() is None
        other.process.kill()
        until(lambda: not other.process.running, "the second server ends")
        fault = server.lost()
        assert fault.kind == "server"
        assert "the server ended under the load" in fault.reason
    assert not server.process.running
    # They leave their spans together
    serving_pids = {span.pid for span in read_spans(tmp_path / "trial").spans}
    assert serving_pids & set(other.proofs)
    assert serving_pids & (set(server.proofs) - set(other.proofs))
