"""The effective value is shown next to a setting that the server did not take, in every format."""

from __future__ import annotations

import csv
import io
import json

import pytest
from msgspec.structs import replace

from tests.builders.analysis import evidence, server, with_observations, with_record
from tests.builders.page import rendered
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.facts import TrialFault
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model.evidence import QueueSample
from workerlab.model.result import Document
from workerlab.report import FORMATS
from workerlab.report.values import text


def limited(worker_class: str, backlog: int, limit: int | None, *, instances: int = 1) -> TrialData:
    """A trial on four workers whose accept queues have this limit in the kernel, added up."""
    trial = evidence(replace(server(worker_class), backlog=backlog, instances=instances), 4)
    queue = tuple(
        QueueSample(sample.at_ns, sample.length, limit)
        for sample in trial.observations.queue
        if limit
    )
    return with_observations(trial, queue=queue)


def sweep(*trials: TrialData) -> Document:
    return sweep_document(analyse("run", {}, trials))


IGNORED = limited("asgi", 4, 100)
TAKEN = limited("sync", 4, 4)


TITLES = {
    "ignored": ([IGNORED], "backlog 4 (100 effective)"),
    "ignored by one class": ([TAKEN, IGNORED], "backlog 4 (100 effective with asgi)"),
    "cut off": ([limited("sync", 10_000, 4096)], "backlog 10000 (4096 effective)"),
    "without samples": ([limited("asgi", 4, None)], "backlog 4 (ignored by asgi)"),
    "unknown": ([limited("sync", 4, None)], "backlog 4,"),
    "of a queue for each worker": ([limited("granian", 64, 4 * 128)], "backlog 64 (128 effective)"),
    "of a queue for each server": (
        [limited("sync", 10_000, 2 * 4096, instances=2)],
        "backlog 10000 (4096 effective)",
    ),
    "of another class": (
        [TAKEN, evidence(server("gevent"), 4)],
        "1000 worker connections (ignored by sync)",
    ),
    "invalid": (
        [with_record(replace(limited("asgi", 4, None), parse_error="half a line"),
                     proof={"accept_queue_limit": 100})],
        "backlog 4 (100 effective)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TITLES)
def test_the_title_has_the_value_in_force(name: str) -> None:
    trials, expected = TITLES[name]
    assert expected in text(sweep(*trials).title)


@pytest.mark.parametrize(
    ("trials", "word"),
    [
        ([TAKEN], "effective"),
        ([limited("granian", 2048, 4 * 2048)], "effective"),
        ([limited("sync", 2048, 2 * 2048, instances=2)], "effective"),
        ([evidence(server("gevent"), 4)], "ignored"),
        ([TAKEN, IGNORED], "worker connections"),
    ],
)
def test_the_title_does_not_comment_on_other_settings(trials: list[TrialData], word: str) -> None:
    assert word not in text(sweep(*trials).title)


def test_on_an_axis_each_series_has_both_values_in_its_name() -> None:
    document = sweep(limited("asgi", 4, 100), limited("asgi", 2048, 100))
    assert [text(finding.values["name"]) for finding in document.findings[:2]] == [
        "asgi (backlog 4, 100 effective)",
        "asgi (backlog 2048, 100 effective)",
    ]
    for name in ("table", "markdown"):
        assert "4 (100 effective)" in FORMATS[name](document)
    assert "4 (100 effective)" in rendered(document).text


@pytest.mark.parametrize("proof", [False, True])
def test_json_and_csv_have_the_values_in_force(proof: bool) -> None:
    """From the kernel, or without samples from the workers themselves."""
    trial = limited("asgi", 4, None if proof else 100)
    if proof:
        trial = with_record(trial, proof={"backlog": 4, "workers": 4, "accept_queue_limit": 100})
    document = sweep(trial)
    (cell,) = json.loads(FORMATS["json"](document))["cells"]
    assert cell["backlog"] == 4
    assert cell["in_force"] == {
        "workers": 4 if proof else None,
        "threads": None,
        "backlog": 100,
        "worker_connections": None,
    }
    assert cell["not_taken"] == ["backlog", "worker_connections"]
    (row,) = csv.DictReader(io.StringIO(FORMATS["csv"](document)))
    assert (row["in_force_backlog"], row["not_taken"]) == ("100", "backlog | worker_connections")


def test_a_fault_is_followed_by_its_details() -> None:
    assert str(TrialFault("server", "x", None)) == "x"
    assert str(TrialFault("server", "x", "its log: y")) == "x; its log: y"
