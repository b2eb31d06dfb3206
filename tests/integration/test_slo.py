"""Targets of a real sweep and the exit code. The limits hold on any machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Lab, retry_if_disturbed
from workerlab.analysis.target import requests_needed
from workerlab.slo import parse

pytestmark = pytest.mark.once
OPTIONS = ("4", "--sleep", "0.1", "--tool", "fast")
KEPT, BROKEN = "p95<20s,rps>=1", "p95<5ms"  # by far, even on a busy machine


def codes(report: dict[str, Any]) -> list[str]:
    all_codes = [finding["answer"]["code"] for finding in report["findings"]]
    return [code for code in all_codes if "Target" in code]


def results(report: dict[str, Any]) -> list[str]:
    """The result of each term for the only cell."""
    (cell,) = report["cells"]
    return [term["values"]["result"] for term in cell["target"]]


def test_a_target_is_met(lab: Lab) -> None:
    """The load is long enough for the target, although throughput would be precise earlier. After a
    pause of the machine the interval may reach below any limit."""
    sweep = ("sweep", "sync", *OPTIONS, "--slo", KEPT, "--fail-on-slo", "--format", "json")
    result = retry_if_disturbed(
        lab,
        lambda: lab(*sweep),
        lambda result: result.code == 0 and set(results(result.report)) == {"met"},
    )
    assert result.code == 0, result.err
    (cell,) = result.report["cells"]
    assert results(result.report) == ["met"] * 2
    assert cell["requests"] >= requests_needed(parse(KEPT)[0])
    assert codes(result.report) == ["TargetKept"]

    run = ("report", str(lab.run))
    assert lab.report(*run)["cells"] == result.report["cells"]
    assert codes(lab.report(*run, "--slo", BROKEN)) == ["TargetNotKept"]
    assert lab(*run, "--slo", BROKEN, "--fail-on-slo").code == 4


def test_a_missed_target_fails_with_4_if_requested(lab: Lab) -> None:
    report = lab.report("sweep", "sync", *OPTIONS, "--slo", BROKEN, "--fail-on-slo", code=4)
    assert results(report) == ["broken"]
    assert codes(report) == ["TargetNotKept"]
    assert lab("sweep", "--resume", str(lab.run)).code == 0
    assert lab("sweep", "--resume", str(lab.run), "--fail-on-slo").code == 4
