"""Worker classes given by their dotted paths."""

from __future__ import annotations

import pytest
from gunicorn.workers import SUPPORTED_WORKERS

from tests.integration.conftest import CommandResult, Lab, retry_if_disturbed
from workerlab.model.plan import Server
from workerlab.server.worker_classes import class_named

CONNECTIONS, N = 3, 9


def paths(worker_class: str) -> list[str]:
    """A subclass of this worker class, and other classes of Gunicorn in its family."""
    return ["workers.MyWorker"] + (
        ["gunicorn.workers.ggevent.GeventPyWSGIWorker"] if worker_class == "gevent" else []
    )


@pytest.mark.classes("sync", "gevent", "uvicorn")
def test_the_slots_of_a_class_without_a_row_are_measured(lab: Lab, worker_class: str) -> None:
    row = class_named(worker_class)
    slots = row.slots_of(Server(worker_class, 1, 1, 2048, CONNECTIONS))
    base = row.path or SUPPORTED_WORKERS[worker_class]
    module, _, name = base.rpartition(".")
    text = f"from {module} import {name}\n\n\nclass MyWorker({name}):\n    pass\n"
    (lab.place / "workers.py").write_text(text)
    args = (
        "sweep", ",".join(paths(worker_class)), str(N), "--format", "json", "--tool", "fast",
        "--workers", "1", "--worker-connections", str(CONNECTIONS),
        "--sleep", "0.4", "--rounds", "2",
    )  # fmt: skip

    def shows_its_slots(result: CommandResult) -> bool:
        measured = [series["slots_measured"] for series in result.report["classes"]]
        verdicts = {cell["verdict"] for cell in result.report["cells"]}
        # Without a limit of slots, the verdict depends on the machine
        return set(measured) == {slots or N} and (not slots or verdicts == {"saturated"})

    result = retry_if_disturbed(lab, lambda: lab(*args), shows_its_slots)
    assert result.code == 0, result.err + result.out
    assert [series["worker_class"] for series in result.report["classes"]] == paths(worker_class)
    for series in result.report["classes"]:
        assert (series["slots_configured"], series["slots_known"]) == (None, False)
        assert series["slots_measured"] == (slots or N)
    for cell in result.report["cells"]:
        if slots:
            assert cell["verdict"] == "saturated"
        assert cell["failed"] == 0
    proven = {record["proof"]["worker_class"] for record in lab.records()}
    assert proven == set(paths(worker_class))


@pytest.mark.once
def test_a_run_of_a_custom_class_is_resumed_in_another_directory(lab: Lab) -> None:
    (lab.place / "workers.py").write_text("from gunicorn.workers.sync import SyncWorker as Mine\n")
    lab.sweep("workers.Mine", "2", "--tool", "fast", "--sleep", "0.3", "--rounds", "2")
    (lab.run / "trials.jsonl").write_text("")
    elsewhere = Lab(lab.place / "elsewhere")
    elsewhere.place.mkdir()
    elsewhere.sweep("--resume", str(lab.run))
