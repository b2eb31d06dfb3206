"""ApacheBench's own report, in every format, and what its figures are defined by."""

from __future__ import annotations

import csv
import io
import json

import pytest
from msgspec.structs import replace

from tests.builders.analysis import evidence, server
from workerlab.analysis import analyse
from workerlab.analysis.class_findings import identities
from workerlab.model import AbTimes, CellResult, Document
from workerlab.report import FORMATS, text
from workerlab.report.html import page
from workerlab.report.sweep_document import sweep_document

SPIKES = AbTimes(0.0, 0.951, 0.21, 1.002, 1.013)


def cells(tool: str = "ab") -> tuple[CellResult, ...]:
    trials = [evidence(server(), n, tool=tool) for n in (4, 8)]
    found = analyse("ab", {}, trials).cells
    return tuple(
        replace(one, ab=one.ab and replace(one.ab, times={**one.ab.times, "connect": SPIKES}))
        for one in found
    )


def document(tool: str = "ab") -> Document:
    trials = [evidence(server(), n, tool=tool) for n in (4, 8)]
    return sweep_document(replace(analyse("ab", {}, trials), cells=cells(tool)))


def test_the_block_stands_on_the_explained_screen_alone() -> None:
    explained = text.render(document(), explain=True)
    assert "Connection times as ab printed them:" in explained
    rows = [line.split() for line in explained.splitlines()]
    assert ["sync", "4", "connect", "0.00", "951", "210", "1002", "1013"] in rows
    assert "Connection times" not in text.render(document())
    assert "ab printed" not in text.render(document("fast"), explain=True)


def test_the_page_and_markdown_have_it() -> None:
    for shown in (page.render(document()), FORMATS["markdown"](document())):
        assert "Connection times as ab printed them" in shown
        assert "1013" in shown


def test_json_and_csv_have_it_in_their_units() -> None:
    cell = json.loads(FORMATS["json"](document()))["cells"][0]
    row = next(csv.DictReader(io.StringIO(FORMATS["csv"](document()))))
    connect = {"min": 0.0, "mean": 951.0, "sd": 210.0, "median": 1002.0, "max": 1013.0}
    assert cell["ab_connect_ms"] == connect
    assert row["ab_connect_max_ms"] == "1013.0"
    assert cell["ab"]["total_transferred_bytes"] == 150 * 21
    assert row["ab_time_taken_s"] == str(cell["ab"]["time_taken_s"])


def test_of_another_tool_every_figure_is_missing() -> None:
    cell = json.loads(FORMATS["json"](document("fast")))["cells"][0]
    assert set(cell["ab"].values()) == set(cell["ab_total_ms"].values()) == {None}


def codes(cell: CellResult) -> list[str]:
    """Whether the two identities hold; none where ab says too little."""
    shown = identities(cell.ab, "") if cell.ab else None
    return [str(shown.mean), str(shown.across)] if shown else []


def test_both_identities_hold_of_what_ab_prints() -> None:
    assert [codes(cell) for cell in cells()] == [["holds", "holds"]] * 2
    assert "21 = 24.0 s: holds." in " ".join(text.render(document(), explain=True).split())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("time_per_request_s", ["does not hold", "holds"]),
        ("time_per_request_across_s", ["holds", "does not hold"]),
    ],
)
def test_an_identity_that_does_not_hold(name: str, expected: list[str]) -> None:
    cell = cells()[0]
    assert cell.ab is not None
    wrong = replace(cell.ab, **{name: getattr(cell.ab, name) + 0.001})
    assert codes(replace(cell, ab=wrong)) == expected


def test_no_identity_of_a_run_that_took_no_time() -> None:
    cell = cells()[0]
    assert cell.ab is not None
    assert codes(replace(cell, ab=replace(cell.ab, time_per_request_s=None))) == []
    assert codes(cells("fast")[0]) == []
