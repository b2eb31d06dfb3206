"""What ApacheBench printed, and what the lab prints of it."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.integration.conftest import Lab


@pytest.mark.once
@pytest.mark.skipif(not shutil.which("ab"), reason="no ApacheBench")
def test_the_report_of_ab_is_in_every_cell(lab: Lab) -> None:
    words = ("--tool", "ab", "--workers", "1", "--sleep", "0.05", "--rounds", "2")
    done = lab("sweep", "sync", "2", *words, "--format", "json")
    assert done.code == 0, done.err
    (cell,) = done.report["cells"]
    (stdout,) = lab.run.glob("raw/*/tool/stdout")
    printed = stdout.read_text()

    def figure(pattern: str) -> float:
        match = re.search(pattern, printed)
        assert match is not None, printed
        return float(match[1])

    assert cell["ab"]["time_taken_s"] == figure(r"Time taken for tests: +([\d.]+)")
    assert cell["ab"]["time_per_request_s"] == pytest.approx(
        figure(r"Time per request: +([\d.]+) \[ms\] \(mean\)") / 1000
    )
    assert cell["ab"]["html_transferred_bytes"] == figure(r"HTML transferred: +(\d+)")
    assert cell["ab_total_ms"]["max"] == figure(r"Total: .* (\d+)")
    assert cell["ab_waiting_ms"]["sd"] == figure(r"Waiting: +\d+ +\d+ +([\d.]+)")
    evidence = (item for finding in done.report["findings"] for item in finding["evidence"])
    assert "AbIdentities" in [item["code"] for item in evidence]  # of a disturbed class, too
