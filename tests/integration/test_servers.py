"""Servers other than Gunicorn: their slots, proofs and spans; `compare` and `advise` with them; no
process remains after a kill."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from importlib.util import find_spec

import pytest

from tests.integration.conftest import Lab, advise, app_text, listening_ports, processes, until
from workerlab.server.worker_classes import SERVERS, class_named

WORKERS, THREADS, N = 2, 2, 12
SLOTS = {"granian": WORKERS * THREADS, "waitress": THREADS}
MISSING = {name for name in SERVERS if not all(map(find_spec, class_named(name).packages))}

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", SERVERS)
def test_another_server_has_its_documented_slots(lab: Lab, name: str) -> None:
    row = class_named(name)
    if name in MISSING:
        pytest.skip(f"{name} is not installed: extra `servers`")
    (cell,) = lab.sweep(
        name, str(N), "--workers", str(WORKERS), "--threads", str(THREADS), "--tool", "fast",
        "--sleep", "0.3", "--rounds", "2",
    )  # fmt: skip
    slots = SLOTS.get(name)
    assert (cell["slots_configured"], cell["slots_measured"]) == (slots, slots or N)
    assert cell["failed"] == 0
    in_worker_ms = cell["waiting_split_ms"]["in_worker"]
    assert (in_worker_ms is None) == bool(row.unmeasured)  # missing, not 0
    (record,) = lab.records()
    assert len(record["worker_pids"]) == (1 if "workers" in row.ignores else WORKERS)
    assert record["proof"]["versions"][row.packages[0]]
    assert record["proof"]["gunicorn"] is None


needs_granian = pytest.mark.skipif("granian" in MISSING, reason="granian is not installed")


@needs_granian
def test_compare_accepts_another_server(lab: Lab) -> None:
    report = lab.report(
        "compare", "gthread", "8", "--a", "threads=2", "--b", "class=granian threads=4",
        "--workers", "1", "--duration", "1", "--sleep", "0.1", "--budget", "30s",
    )  # fmt: skip
    answer = report["findings"][0]["answer"]
    assert answer["values"]["group"] == "gthread against granian at 8 connections"
    # A busy machine may leave the result uncertain, but never reverses it
    assert answer["code"] in ("BDiffers", "DifferenceInconclusive")
    assert any("granian accepts and reads requests outside Python" in note["text"]
               for note in report["notes"])  # fmt: skip
    evidence = report["findings"][0]["evidence"]
    metrics = {change["values"]["name"]: change["values"] for change in evidence}
    assert 0 < metrics["throughput_rps"]["a"] <= 2 / 0.099  # each slot is held for 100 ms
    assert metrics["throughput_rps"]["a"] < metrics["throughput_rps"]["b"] <= 4 / 0.099
    assert metrics["service_s"]["a"] == pytest.approx(metrics["service_s"]["b"], rel=0.2)
    assert "in_worker_s" not in metrics  # not observable with granian


@needs_granian
def test_advise_writes_the_command_line_of_another_server(lab: Lab) -> None:
    """The unit tests in `test_conf_file.py` start the command lines of all servers."""
    (lab.place / "waits.py").write_text(app_text("sync", wait_s=0.05))
    report = advise(
        lab, "--app", "waits:app", "--rate", "10", "--slo", "p50<400ms",
        "--classes", "granian", "--max-workers", "1",
    )  # fmt: skip
    assert report["findings"][0]["answer"]["code"] == "Recommended"
    values = (finding["answer"]["values"] for finding in report["findings"])
    (file,) = (entry for entry in values if "start" in entry)
    assert file["start"] == f"sh {file['place']}"
    assert file["gunicorn"] is None
    script = (lab.run / "start-server.sh").read_text()
    assert script.startswith("#!/bin/sh\n# Chosen by `workerlab advise`")
    assert "-m granian " in script
    assert script.endswith("\n")
    subprocess.run(["sh", "-n", file["place"]], check=True)
    assert not (lab.run / "gunicorn.conf.py").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_time_leaves_no_process_or_file(lab: Lab, number: signal.Signals) -> None:
    generator, names = random.Random(number), sorted({*SERVERS} - MISSING)
    temporary = lab.place / "tmp"
    temporary.mkdir()
    lab.env["TMPDIR"] = str(temporary)
    ports = listening_ports()
    for attempt in range(3):
        jobs = ("--jobs", "1") if attempt == 0 else ()
        process = lab.start(
            "sweep", ",".join(names), "1,2", "--workers", "2", "--threads", "2", "--sleep", "0.3",
            "--rounds", "3", "--tool", "fast", "--out", f"runs-{attempt}", *jobs,
        )  # fmt: skip
        time.sleep(generator.uniform(0.5, 5.0))
        result = lab.end(process, number)
        assert "Traceback" not in result.err
        until(lambda: not processes(str(lab.place)), "everything gone")
        assert list(lab.place.rglob("*.part")) == []
        assert list(temporary.iterdir()) == []
    assert listening_ports() <= ports
