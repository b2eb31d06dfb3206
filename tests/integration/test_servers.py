"""Servers other than Gunicorn, for real: their slots, proofs, spans and what cannot be seen."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.integration.conftest import Lab
from workerlab.server.worker_classes import SERVERS, class_named

WORKERS, THREADS, N = 2, 2, 12
SLOTS = {"granian": WORKERS * THREADS, "waitress": THREADS}


@pytest.mark.once
@pytest.mark.parametrize("name", SERVERS)
def test_another_server_has_the_slots_that_its_documentation_promises(lab: Lab, name: str) -> None:
    row = class_named(name)
    if missing := [package for package in row.packages if find_spec(package) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed: extra `servers`")
    cells = lab.sweep(
        name, f"2,{N}", "--workers", str(WORKERS), "--threads", str(THREADS), "--tool", "fast",
        "--sleep", "0.3", "--rounds", "2",
    )  # fmt: skip
    slots, last = SLOTS.get(name), cells[-1]
    assert (last["slots_configured"], last["slots_measured"]) == (slots, slots or N)
    assert [cell["failed"] for cell in cells] == [0, 0]
    assert (last["waiting_split_ms"]["in_worker"] is None) == bool(row.unseen)  # missing, and not 0
    for record in lab.records():
        assert len(record["worker_pids"]) == (1 if "workers" in row.ignores else WORKERS)
        assert record["proof"]["versions"][row.packages[0]]
        assert record["proof"]["gunicorn"] is None
