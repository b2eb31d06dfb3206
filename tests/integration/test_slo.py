"""A target of a real sweep: what is kept, what is broken, and the exit code. Limits are such that
no machine is too slow, or too fast, for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import CommandResult, Lab, retry_if_disturbed
from workerlab.analysis.target import requests_needed
from workerlab.slo import parse

pytestmark = pytest.mark.once
WORDS = ("4", "--sleep", "0.1", "--tool", "fast")
JSON = ("--format", "json")
KEPT, BROKEN = "p95<20s,rps>=1", "p95<5ms"  # no share that others take explains it


def codes(report: dict[str, Any]) -> list[str]:
    return [
        item["answer"]["code"] for item in report["findings"] if "Target" in item["answer"]["code"]
    ]


def results(cell: dict[str, Any]) -> list[str]:
    """Of each term."""
    return [term["values"]["result"] for term in cell["target"]]


def test_a_target_that_is_kept(lab: Lab, worker_class: str) -> None:
    """The load is long enough to show it, though the throughput was known before. Where the machine
    stood still its interval may reach below any limit: then it is loaded again."""

    def met(result: CommandResult) -> bool:
        (cell,) = result.report["cells"]
        return set(results(cell)) == {"met"}

    result = retry_if_disturbed(
        lab,
        lambda: lab("sweep", worker_class, *WORDS, "--slo", KEPT, "--fail-on-slo", *JSON),
        lambda result: result.code == 0 and met(result),
    )
    assert result.code == 0, result.err
    (cell,) = result.report["cells"]
    assert results(cell) == ["met"] * 2
    assert cell["requests"] >= requests_needed(parse(KEPT)[0])
    assert codes(result.report) == ["TargetKept"]

    run = ("report", str(lab.run))
    assert lab.report(*run)["cells"] == result.report["cells"]
    assert codes(lab.report(*run, "--slo", BROKEN)) == ["TargetNotKept"]
    assert lab(*run, "--slo", BROKEN, "--fail-on-slo").code == 4


def test_a_target_that_is_broken(lab: Lab, worker_class: str) -> None:
    report = lab.report("sweep", worker_class, *WORDS, "--slo", BROKEN, "--fail-on-slo", code=4)
    assert [results(cell) for cell in report["cells"]] == [["broken"]]
    assert codes(report) == ["TargetNotKept"]
    assert lab("sweep", "--resume", str(lab.run)).code == 0
    assert lab("sweep", "--resume", str(lab.run), "--fail-on-slo").code == 4
