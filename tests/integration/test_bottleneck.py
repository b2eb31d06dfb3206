"""Whose limit it is, on real servers: two of them at once, ceilings, and the hunt itself."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.experiments import calibration
from harness.experiments.calibration import Wanted
from harness.measure.http import ask
from harness.measure.running import Launch
from harness.measure.server import running
from harness.model import App, Server
from harness.spanmap import read_spans
from harness.store import copy_code
from tests.integration.conftest import Lab, fake_program, until

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


def launch(place: Path, worker_class: str, instances: int) -> Launch:
    text = ASGI if worker_class in ("asgi", "uvicorn") else APP
    (place / "own.py").write_text(text)
    for name in ("code", "trial"):
        (place / name).mkdir()
    copy_code(place / "code")
    return Launch(
        server=Server(worker_class, 2, 1, 64, 100, instances),
        app=App("own:app", str(place)),
        python=sys.executable,
        code=place / "code",
        trial=place / "trial",
        config=None,
        records=10_000,
    )


def test_two_servers_are_two_and_leave_their_spans_together(
    tmp_path: Path, worker_class: str
) -> None:
    with running(launch(tmp_path, worker_class, 2)) as server:
        (other,) = server.others
        assert server.port != other.port
        assert len(server.proofs) == 4
        assert len(other.proofs) == 2
        for one in (server, other):
            answer = ask(one.launch.app, one.host, one.port, path="/", timeout_s=30)
            assert answer.status == 200
        assert server.lost() is None
        processes = [server.process, other.process]
    assert not any(process.running for process in processes)
    seen = {span.pid for span in read_spans(tmp_path / "trial").spans}
    assert seen & set(other.proofs)
    assert seen & (set(server.proofs) - set(other.proofs))


def test_the_death_of_the_second_server_is_told(tmp_path: Path, worker_class: str) -> None:
    with running(launch(tmp_path, worker_class, 2)) as server:
        (other,) = server.others
        other.process.kill()
        until(lambda: not other.process.running, "the second server ends")
        fault = server.lost()
        assert fault is not None
        assert fault.kind == "server"
        assert "the server ended under the load" in fault.reason


# --- ceilings -------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "workerlab" / "ceilings.json"


def swept(lab: Lab, worker_class: str, cache: Path, *words: str) -> Any:
    """The report of a small sweep of an app that does nothing."""
    lab.env["XDG_CACHE_HOME"] = str(cache.parents[1])
    done = lab("sweep", worker_class, "4", "--workers", "2", "--sleep", "0", "--rounds", "50",
               "--tool", "fast", "--format", "json", *words)  # fmt: skip
    assert done.code == 0, done.err
    return done


def test_a_sweep_measures_its_tools_ceiling_once(lab: Lab, worker_class: str, cache: Path) -> None:
    first = swept(lab, worker_class, cache)
    assert "measuring what fast, 16 connections can do here" in first.err
    (ceiling,) = first.report["environment"]["ceilings"]
    assert ceiling["tool"] == "fast"
    assert ceiling["rps"] > 0
    again = swept(lab, worker_class, cache)
    assert "measuring" not in again.err
    assert again.report["environment"]["ceilings"] == [ceiling]


def test_a_tool_that_reaches_no_more_elsewhere_is_the_limit(
    lab: Lab, worker_class: str, cache: Path
) -> None:
    """The same sweep, once its tool is known to be as slow as what came out."""
    swept(lab, worker_class, cache)
    kept = json.loads(cache.read_text())
    for one in kept["ceilings"].values():
        one.update(rps=1.0, at_least=False)
    cache.write_text(json.dumps(kept))
    (cell,) = swept(lab, worker_class, cache).report["cells"]
    assert cell["generator_bound"] is True
    assert cell["verdict"] == "generator-bound"
    assert "against a server that does nothing it reaches 1.0 requests/s" in cell["reason"]
    assert cell["throughput_rps"] > 0


def test_processes_of_the_tool_are_an_axis(lab: Lab, worker_class: str) -> None:
    done = lab("sweep", worker_class, "4", "--workers", "2", "--sleep", "0.2", "--tool", "fast",
               "--tool-processes", "1,2", "--format", "json")  # fmt: skip
    assert done.code == 0, done.err
    cells = done.report["cells"]
    assert [cell["tool_processes"] for cell in cells] == [1, 2]
    assert not any(cell["generator_bound"] for cell in cells)
    assert "measuring" not in done.err  # a server that sleeps is nobody's limit


def test_a_ceiling_that_cannot_be_had_is_missing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_program(tmp_path, "ab", "#!/bin/sh\necho nonsense\n") as place:
        monkeypatch.setenv("PATH", str(place), prepend=":")
        one = Wanted("ab", keepalive=False, processes=1, connections=4)
        found = calibration.measure(one, tmp_path / "calibration")
    assert isinstance(found, str)
    assert found


# --- the hunt -------------------------------------------------------------------------------


def test_the_hunt_ends_in_a_verdict_and_can_be_resumed(
    lab: Lab, worker_class: str, cache: Path
) -> None:
    if worker_class != "gthread":
        pytest.skip("the hunt is on gthread")
    lab.env["XDG_CACHE_HOME"] = str(cache.parents[1])
    first = lab.start("bottleneck", "--quick")
    until(
        lambda: list(lab.place.glob("results/*/trials.jsonl")) and lab.records(),
        "a first cell is done",
    )
    first.send_signal(signal.SIGINT)
    out, err = first.communicate()
    assert first.returncode == 130, err
    assert "bottleneck --resume" in err
    assert "is not finished" in out or "are not finished" in out
    done = lab("bottleneck", "--resume", str(lab.run), "--format", "json")
    assert done.code == 0, done.err
    found = done.report
    assert found["kind"] == "bottleneck"
    verdict = found["findings"][0]
    assert verdict["question"] == "Is it the server or the load generator?"
    assert "bottleneck" in verdict["answer"] or "cannot be told" in verdict["answer"]
    titles = [table["title"] for table in found["tables"]]
    assert titles[:3] == [
        "More users",
        "More threads in the server",
        "A second server, on a port of its own",
    ]
    again = lab("report", str(lab.run), "--format", "json")
    assert again.report == found
