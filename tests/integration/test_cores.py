"""Servers bound to cores, and requests that use CPU."""

from __future__ import annotations

import os

import pytest

from tests.integration.conftest import Lab, app_text

SLEEP_S, CPU_S = 0.05, 0.02


@pytest.mark.once
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_workers_are_bound_to_the_cores(lab: Lab) -> None:
    (lab.place / "own.py").write_text(
        app_text("sync", setup="import os", work="assert len(os.sched_getaffinity(0)) == 1")
    )
    args = ("--app", "own:app", "--server-cores", "1", "--workers", "1", "--rounds", "2")
    report = lab.report("sweep", "sync", "2", "--tool", "fast", *args)
    (cell,) = report["cells"]
    assert (cell["cores"], cell["failed"]) == (1, 0)
    assert "ServerCoresBound" in [note["code"] for note in report["notes"]]


@pytest.mark.classes("gevent", "uvicorn")  # a WSGI and an ASGI app
def test_requests_use_the_cpu_that_the_axis_sets(lab: Lab, worker_class: str) -> None:
    args = ("--sleep", str(SLEEP_S), "--cpu", f"0,{CPU_S}", "--workers", "1", "--rounds", "2")
    report = lab.report("sweep", worker_class, "1", "--tool", "fast", *args)
    idle, busy = report["cells"]
    assert (idle["cpu_s"], busy["cpu_s"]) == (0.0, CPU_S)
    assert busy["service_ms"]["mean"] >= 1000 * (SLEEP_S + CPU_S) - 1
    predicted = report["classes"][1]["knee_predicted"]
    assert predicted == pytest.approx((SLEEP_S + CPU_S) / CPU_S)
