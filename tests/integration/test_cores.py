"""A server on fewer cores, and requests that compute."""

from __future__ import annotations

import os

import pytest

from tests.integration.conftest import Lab

SLEEP_S, CPU_S = 0.05, 0.02
APP = """
import os

def app(environ, start_response):
    cores = len(os.sched_getaffinity(0))
    start_response("200 OK" if cores == 1 else "500 Too Many Cores", [("Content-Length", "0")])
    return []
"""


@pytest.mark.once
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_workers_are_bound_to_the_cores(lab: Lab) -> None:
    (lab.place / "own.py").write_text(APP)
    words = ("--app", "own:app", "--server-cores", "1", "--workers", "1", "--rounds", "2")
    done = lab("sweep", "sync", "2", "--tool", "fast", *words, "--format", "json")
    assert done.code == 0, done.err
    (cell,) = done.report["cells"]
    assert (cell["cores"], cell["failed"]) == (1, 0)
    assert "ServerCoresBound" in [note["code"] for note in done.report["notes"]]


@pytest.mark.classes("gevent", "eventlet", "uvicorn")
def test_requests_compute_as_long_as_the_axis_says(lab: Lab, worker_class: str) -> None:
    words = ("--sleep", str(SLEEP_S), "--cpu", f"0,{CPU_S}", "--workers", "1", "--rounds", "2")
    done = lab("sweep", worker_class, "1", "--tool", "fast", *words, "--format", "json")
    assert done.code == 0, done.err
    idle, busy = done.report["cells"]
    assert (idle["cpu_s"], busy["cpu_s"]) == (0.0, CPU_S)
    assert busy["service_ms"]["mean"] >= 1000 * (SLEEP_S + CPU_S) - 1
    predicted = done.report["classes"][1]["knee_predicted"]
    assert predicted == pytest.approx((SLEEP_S + CPU_S) / CPU_S)
