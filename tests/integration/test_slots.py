"""Every class, for real: its slots, its knee, its proof."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from gunicorn.workers import SUPPORTED_WORKERS

from harness.model import Server
from harness.server.worker_classes import class_named, configured_slots
from tests.integration.conftest import Lab

# For gthread worker_connections keeps connections in the kernel's queue, so that no worker hoards
# more than 3, and each fills its threads
THREADS, CONNECTIONS = 2, 3
HIGH = 12
SLEEP_S = 0.2
LEAST_S = SLEEP_S - 0.001  # a timer may fire so much before its time


def workers_for(worker_class: str) -> int:
    """tornado accepts all it can get and answers in batches, so that a second worker may starve
    for a whole run: nothing guarantees that both serve at once."""
    return 1 if worker_class == "tornado" else 2


def slots_of(worker_class: str) -> int | None:
    return configured_slots(
        Server(worker_class, workers_for(worker_class), THREADS, 2048, CONNECTIONS)
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> dict[str, Any]:
    lab = Lab(tmp_path_factory.mktemp("slots"))
    done = lab(
        "sweep", worker_class, f"1,{HIGH}", "--format", "json", "--tool", "fast",
        "--workers", str(workers_for(worker_class)), "--threads", str(THREADS),
        "--worker-connections", str(CONNECTIONS), "--sleep", str(SLEEP_S),
    )  # fmt: skip
    assert done.code == 0, done.err + done.out
    return {**done.report, "records": lab.records()}


def test_slots_measured_are_the_slots_of_the_class(
    swept: dict[str, Any], worker_class: str
) -> None:
    (found,) = swept["classes"]
    assert found["slots_configured"] == slots_of(worker_class)
    assert found["slots_measured"] == (slots_of(worker_class) or HIGH)


def test_no_number_is_impossible(swept: dict[str, Any]) -> None:
    """A slot is held, and a client waits, at least as long as the app sleeps.

    That the mean response is longer than the mean service is no law: a worker closes its span
    when the app is through, and by then the client may have had the answer for a while.
    """
    for cell in swept["cells"]:
        held = min(cell["concurrency"], slots_of(cell["worker_class"]) or cell["concurrency"])
        assert 0 < cell["throughput_rps"] <= held / LEAST_S
        assert cell["service_ms"]["mean"] >= 1000 * LEAST_S
        assert cell["response_ms"]["mean"] >= 1000 * LEAST_S
        assert cell["failed"] == 0
        assert cell["requests"] == 1 + 5 * cell["concurrency"]
        assert sum(cell["requests_per_worker"].values()) == cell["requests"]


def test_saturation(swept: dict[str, Any], worker_class: str) -> None:
    low, high = swept["cells"]
    assert low["verdict"] != "saturated"
    if slots_of(worker_class):
        assert high["verdict"] == "saturated"
    else:
        (found,) = swept["classes"]
        assert found["knee"] is None
        assert found["knee_note"]["values"]["highest"] == HIGH


PINNED = {"uvicorn": "__config__.PinnedUvicornWorker"}  # by its configuration file


def test_proof_from_inside_the_server(swept: dict[str, Any], worker_class: str) -> None:
    row = class_named(worker_class)
    patching = {"gevent", "eventlet"} & {*row.packages}
    for record in swept["records"]:
        proof = record["proof"]
        assert proof["worker_class"] == (PINNED | SUPPORTED_WORKERS)[worker_class]
        assert proof["patched"] == next(iter(patching), None)
        assert proof["workers"] == workers_for(worker_class)
        assert proof["threads"] == (THREADS if worker_class == "gthread" else 1)
        assert proof["worker_connections"] == CONNECTIONS
        assert proof["backlog"] == 2048
        assert proof["timeout_s"] > 1
        assert proof["gunicorn"] == "25.3.0"
        assert len(record["worker_pids"]) == workers_for(worker_class)
        assert (proof["event_loop"] is not None) == (row.loop or worker_class == "tornado")
        # the native asgi worker listens again, with a queue of its own length
        assert proof["accept_queue_limit"] == (100 if worker_class == "asgi" else 2048)


@pytest.mark.parametrize("tool", ["ab", "wrk"])
def test_the_tools_agree(worker_class: str, tool: str, lab: Lab) -> None:
    """Same cell, other tool: the workers saw what the client counted (or the cell were invalid),
    and the numbers stand under the same bound."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    done = lab(
        "sweep", worker_class, f"{HIGH}", "--format", "json", "--tool", tool,
        "--workers", str(workers_for(worker_class)), "--threads", str(THREADS),
        "--worker-connections", str(CONNECTIONS), "--sleep", str(SLEEP_S),
    )  # fmt: skip
    assert done.code == 0, done.err + done.out
    (cell,) = done.report["cells"]
    if slots_of(worker_class):  # without a limit of slots, a busy machine decides
        assert cell["verdict"] == "saturated"
    assert cell["slots_measured"] == (slots_of(worker_class) or HIGH)
    assert cell["throughput_rps"] <= cell["slots_measured"] / LEAST_S
