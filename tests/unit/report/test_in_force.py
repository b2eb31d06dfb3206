"""Every format shows the effective value next to a setting that the server did not adopt."""

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
from workerlab.model.result import Document
from workerlab.report import FORMATS
from workerlab.report.values import text


def limited(worker_class: str, backlog: int, limit: int | None, *, instances: int = 1) -> TrialData:
    """A trial on four workers whose accept queues have this total limit in the kernel."""
    trial = evidence(replace(server(worker_class), backlog=backlog, instances=instances), 4)
    samples = trial.observations.queue if limit else ()
    return with_observations(trial, queue=tuple(replace(sample, limit=limit) for sample in samples))


def sweep(*trials: TrialData) -> Document:
    return sweep_document(analyse("run", {}, trials))


IGNORED = limited("asgi", 4, 100)
ADOPTED = limited("sync", 4, 4)


GEVENT = evidence(server("gevent"), 4)
TWO_SERVERS = limited("sync", 10_000, 2 * 4096, instances=2)
INVALID = with_record(
    replace(limited("asgi", 4, None), parse_error="half a line"), proof={"accept_queue_limit": 100}
)


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([IGNORED], "backlog 4 (100 effective)"),
        ([ADOPTED, IGNORED], "backlog 4 (100 effective with asgi)"),
        ([limited("sync", 10_000, 4096)], "backlog 10000 (4096 effective)"),
        ([limited("asgi", 4, None)], "backlog 4 (ignored by asgi)"),  # without samples
        ([limited("sync", 4, None)], "backlog 4,"),
        # One queue for each worker or server
        ([limited("granian", 64, 4 * 128)], "backlog 64 (128 effective)"),
        ([TWO_SERVERS], "backlog 10000 (4096 effective)"),
        ([ADOPTED, GEVENT], "1000 worker connections (ignored by sync)"),
        ([INVALID], "backlog 4 (100 effective)"),
    ],
)
def test_the_title_has_the_effective_value(trials: list[TrialData], expected: str) -> None:
    assert expected in text(sweep(*trials).title)


@pytest.mark.parametrize(
    ("trials", "word"),
    [
        ([ADOPTED], "effective"),
        ([limited("granian", 2048, 4 * 2048)], "effective"),
        ([limited("sync", 2048, 2 * 2048, instances=2)], "effective"),
        ([GEVENT], "ignored"),
        ([ADOPTED, IGNORED], "worker connections"),
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
def test_json_and_csv_have_the_effective_values(proof: bool) -> None:
    """From the kernel, or without samples from the workers themselves."""
    trial = limited("asgi", 4, None if proof else 100)
    if proof:
        trial = with_record(trial, proof={"backlog": 4, "workers": 4, "accept_queue_limit": 100})
    document = sweep(trial)
    (cell,) = json.loads(FORMATS["json"](document))["cells"]
    assert cell["backlog"] == 4
    workers = 4 if proof else None
    unknown = {"threads": None, "worker_connections": None}
    assert cell["in_force"] == {"workers": workers, "backlog": 100, **unknown}
    assert cell["not_taken"] == ["backlog", "worker_connections"]
    (row,) = csv.DictReader(io.StringIO(FORMATS["csv"](document)))
    assert (row["in_force_backlog"], row["not_taken"]) == ("100", "backlog | worker_connections")


def test_a_fault_is_followed_by_its_details() -> None:
    assert str(TrialFault("server", "x", None)) == "x"
    assert str(TrialFault("server", "x", "its log: y")) == "x; its log: y"
