"""A sweep over CPU per request and cores: the predicted and the measured knee."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.builders.analysis import evidence, server
from workerlab.analysis import analyse
from workerlab.analysis.knee import max_closed_rps
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model.plan import App
from workerlab.model.result import Document
from workerlab.report import FORMATS, text

SLEEP_S, CPU_S, WORKERS = 0.08, 0.02, 2


def document(*cores: int, cpu_s: float | None = CPU_S) -> Document:
    """An ideal gevent server that serves as many requests at once as its cores can compute."""
    app = App("apps.sleep_wsgi:app", sleep_s=SLEEP_S)
    settings = replace(server("gevent", WORKERS), app=app, cpu_s=cpu_s)
    slots = {count: round(min(WORKERS, count) * (SLEEP_S + CPU_S) / CPU_S) for count in cores}
    trials = [
        evidence(replace(settings, cores=count), n, slots=[slots[count]], delay_s=SLEEP_S + CPU_S)
        for count in cores
        for n in (2, 4, 8, 16, 32)
    ]
    return sweep_document(analyse("cpu", {}, trials))


@pytest.mark.parametrize(
    ("workers", "slots", "cores", "wait_s", "cpu_s", "expected_rps"),
    [
        (2, None, 1, 0.08, 0.02, 50),  # one core computes
        (2, None, 2, 0.08, 0.02, 100),
        (2, None, 8, 0.08, 0.02, 100),  # a worker uses one core
        (4, 4, 8, 1.0, 0.0, 4),  # the slots
        (4, 4, 1, 0.08, 0.02, 40),  # the slots, before the core
        (4, None, 8, 1.0, 0.0, None),
        (4, 4, 8, 0.0, 0.0, None),
    ],
)
def test_what_bounds_a_closed_loop(
    workers: int, slots: int | None, cores: float, wait_s: float, cpu_s: float,
    expected_rps: float | None,
) -> None:  # fmt: skip
    assert max_closed_rps(workers, slots, cores, wait_s, cpu_s) == pytest.approx(expected_rps)


def test_the_predicted_knee_is_next_to_the_measured_one() -> None:
    of_one, of_two = json.loads(FORMATS["json"](document(1, 2)))["classes"]
    assert (of_one["cores"], of_one["cpu_s"], of_one["knee_predicted"]) == (1, CPU_S, 5.0)
    assert (of_two["cores"], of_two["knee_predicted"]) == (2, 10.0)
    assert of_one["knee"] == pytest.approx(5.0, rel=0.02)
    explained = text.render(document(1, 2), explain=True)
    row = next(line for line in explained.splitlines() if line.startswith("gevent (server on 1"))
    assert row.split()[-2:] == ["2.50", "2.50"]
    title = " ".join(text.render(document(1)).partition(";")[0].split())
    assert "20.0 ms of CPU per request, server on 1 core" in title


def test_without_cpu_per_request_there_is_no_prediction() -> None:
    assert "predicted" not in text.render(document(1, cpu_s=None), explain=True)
    (group,) = json.loads(FORMATS["json"](document(1, cpu_s=None)))["classes"]
    assert group["knee_predicted"] is None
