"""Two instances of a server, each with its own workers and port."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.launch import launch
from tests.integration.conftest import app_text, until
from workerlab.model.plan import App, Route, Server
from workerlab.observe.spans import read_spans
from workerlab.server.serve import serve
from workerlab.server.warmup import ask


@pytest.mark.classes("sync", "gevent", "uvicorn")
def test_the_death_of_the_second_instance_is_a_fault(tmp_path: Path, worker_class: str) -> None:
    (tmp_path / "own.py").write_text(app_text(worker_class))
    app, planned = App("own:app", str(tmp_path)), Server(worker_class, 2, 1, 64, 100, 2)
    with serve(launch(tmp_path, planned, app, records=1_000)) as server:
        (other,) = server.other_instances
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
        assert "the server exited under load" in fault.reason
    assert not server.process.running
    # Both write spans to the same directory
    serving_pids = {span.pid for span in read_spans(tmp_path / "trial").spans}
    assert serving_pids & set(other.proofs)
    assert serving_pids & (set(server.proofs) - set(other.proofs))
