"""What the server did not take stands beside the setting, in every format."""

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
from workerlab.model import Document, QueueSample
from workerlab.report import FORMATS
from workerlab.report.sweep_document import sweep_document
from workerlab.report.values import text


def limited(worker_class: str, backlog: int, has: int | None) -> TrialData:
    """A trial whose accept queue the kernel gave another limit."""
    trial = evidence(replace(server(worker_class), backlog=backlog), 4)
    queue = tuple(
        QueueSample(one.at_ns, one.length, has) for one in trial.observations.queue if has
    )
    return with_observations(trial, queue=queue)


def sweep(*trials: TrialData) -> Document:
    return sweep_document(analyse("run", {}, trials))


def test_a_backlog_that_the_class_does_not_take() -> None:
    title = text(sweep(limited("asgi", 4, 100)).title)
    assert "backlog 4 (100 in force)" in title
    both = text(sweep(limited("sync", 4, 4), limited("asgi", 4, 100)).title)
    assert "backlog 4 (100 in force with asgi)" in both
    assert "1000 worker connections" not in both  # neither takes any


def test_a_backlog_that_the_kernel_has_cut() -> None:
    assert "backlog 10000 (4096 in force)" in text(sweep(limited("sync", 10_000, 4096)).title)


def test_without_the_kernel_the_class_still_ignores_it() -> None:
    assert "backlog 4 (ignored by asgi)" in text(sweep(limited("asgi", 4, None)).title)
    assert "backlog 4," in text(sweep(limited("sync", 4, None)).title)


def test_what_is_taken_needs_no_word() -> None:
    assert "in force" not in text(sweep(limited("sync", 4, 4)).title)
    assert "ignored" not in text(sweep(evidence(server("gevent"), 4)).title)


def test_worker_connections_that_a_class_ignores() -> None:
    title = text(sweep(evidence(server("sync"), 4), evidence(server("gevent"), 4)).title)
    assert "1000 worker connections (ignored by sync)" in title


def test_as_an_axis_each_series_is_named_by_both() -> None:
    document = sweep(limited("asgi", 4, 100), limited("asgi", 2048, 100))
    assert [text(one.values["name"]) for one in document.findings[:2]] == [
        "asgi (backlog 4, 100 in force)",
        "asgi (backlog 2048, 100 in force)",
    ]
    for name in ("table", "markdown"):
        assert "4 (100 in force)" in FORMATS[name](document)
    assert "4 (100 in force)" in rendered(document).text


@pytest.mark.parametrize("proof", [False, True])
def test_programs_get_numbers(proof: bool) -> None:
    """By the kernel, or where nobody looked on, by the workers' own word."""
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


def test_an_invalid_cell_tells_it_as_well() -> None:
    broken = with_record(replace(limited("asgi", 4, None), parse_error="half a line"),
                       proof={"accept_queue_limit": 100})  # fmt: skip
    assert "backlog 4 (100 in force)" in text(sweep(broken).title)


def test_findings_of_one_cause_differ_by_their_details_only() -> None:
    assert str(TrialFault("server", "x", None)) == "x"
    assert str(TrialFault("server", "x", "its log: y")) == "x; its log: y"
