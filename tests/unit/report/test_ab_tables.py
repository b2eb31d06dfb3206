"""ApacheBench's own report in every format, and the identities between its figures."""

from __future__ import annotations

import csv
import io
import json

from msgspec.structs import replace

from tests.builders.analysis import evidence, server
from workerlab.analysis import analyse
from workerlab.analysis.class_findings import identities
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model.evidence import AbTimes
from workerlab.model.result import Document, Report, Result
from workerlab.report import FORMATS, text
from workerlab.report.html.page import render

SPIKES = AbTimes(0.0, 0.951, 0.21, 1.002, 1.013)


def report(tool: str = "ab") -> Report:
    analysed = analyse("ab", {}, [evidence(server(), n, tool=tool) for n in (4, 8)])
    cells = (
        replace(cell, ab=cell.ab and replace(cell.ab, times={**cell.ab.times, "connect": SPIKES}))
        for cell in analysed.cells
    )
    return replace(analysed, cells=tuple(cells))


def document(tool: str = "ab") -> Document:
    return sweep_document(report(tool))


def test_every_format_has_connection_times() -> None:
    """The terminal only with --explain; JSON and CSV in milliseconds."""
    explained = text.render(document(), explain=True)
    assert "Connection times as ab printed them:" in explained
    rows = [line.split() for line in explained.splitlines()]
    assert ["sync", "4", "connect", "0.00", "951", "210", "1002", "1013"] in rows
    assert "Connection times" not in text.render(document())
    for output in (render(document()), FORMATS["markdown"](document())):
        assert "Connection times as ab printed them" in output
        assert "1013" in output
    cell = json.loads(FORMATS["json"](document()))["cells"][0]
    row = next(csv.DictReader(io.StringIO(FORMATS["csv"](document()))))
    connect = {"min": 0.0, "mean": 951.0, "sd": 210.0, "median": 1002.0, "max": 1013.0}
    assert cell["ab_connect_ms"] == connect
    assert row["ab_connect_max_ms"] == "1013.0"
    assert cell["ab"]["total_transferred_bytes"] == 150 * 21
    assert row["ab_time_taken_s"] == str(cell["ab"]["time_taken_s"])


def test_the_figures_of_ab_are_missing_for_other_tools() -> None:
    cell = json.loads(FORMATS["json"](document("fast")))["cells"][0]
    assert set(cell["ab"].values()) == set(cell["ab_total_ms"].values()) == {None}
    assert "ab printed" not in text.render(document("fast"), explain=True)


def identity_results(cell: Result, **changes: float | None) -> list[str]:
    """Whether each of the two identities holds with these changes of ab's figures; empty if ab
    reports too little."""
    finding = identities(replace(cell.ab, **changes), "") if cell.ab else None
    return [str(finding.mean), str(finding.across)] if finding else []


def test_the_identities_between_the_figures_of_ab() -> None:
    cell, other = report().cells
    mean_s, across_s = cell.ab.time_per_request_s, cell.ab.time_per_request_across_s
    assert identity_results(cell) == identity_results(other) == ["holds", "holds"]
    assert "21 = 24.0 s: holds." in " ".join(text.render(document(), explain=True).split())
    assert identity_results(cell, time_per_request_s=mean_s + 0.001) == ["does not hold", "holds"]
    wrong = {"time_per_request_across_s": across_s + 0.001}
    assert identity_results(cell, **wrong) == ["holds", "does not hold"]
    assert identity_results(cell, time_per_request_s=None) == []
    assert identity_results(report("fast").cells[0]) == []
