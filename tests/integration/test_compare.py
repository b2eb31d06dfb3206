"""`workerlab compare` on real servers and saved runs."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.builders.runs import recorded
from tests.integration.conftest import Lab, answers
from workerlab import run_store

QUICK = ("--tool", "fast", "--duration", "1", "--sleep", "0.05", "--budget", "30s")

pytestmark = pytest.mark.once


def outcomes(report: dict[str, Any]) -> set[str]:
    """The outcomes of the limits."""
    limits = answers(report)["LimitsAnswer"]
    return {outcome for outcome in ("exceeded", "inconclusive", "kept") if limits[outcome]}


def changes(report: dict[str, Any], answer: int) -> dict[str, Any]:
    """The change of each metric by name."""
    evidence = report["findings"][answer]["evidence"]
    return {change["values"]["name"]: change["values"] for change in evidence}


def assert_plausible(throughput: dict[str, Any], *workers: int) -> None:
    """A request takes a worker 50 ms; a timer may fire 1 ms early."""
    for side, count in zip(("a", "b"), workers, strict=True):
        assert 0 < throughput[side] <= count / 0.049


def test_half_the_workers_have_half_the_throughput(lab: Lab) -> None:
    """A busy machine may leave the result uncertain, but never reverses it."""
    result = lab(
        "compare", "sync", "4", *QUICK, "--a", "workers=2", "--b", "workers=1",
        "--fail-if", "rps<-5%", "--junit", "limits.xml", "--format", "json",
    )  # fmt: skip
    report = result.report
    assert "BIsSame" not in answers(report)
    assert "kept" not in outcomes(report)
    assert result.code == (4 if "exceeded" in outcomes(report) else 0), result.err
    by_metric = changes(report, 0)
    throughput = by_metric["throughput_rps"]
    low, value, high = (throughput[end] for end in ("low", "change", "high"))
    assert value < 1
    assert_plausible(throughput, 2, 1)
    if low is not None:  # enough pairs
        assert low < value < high
        assert low <= 1.25 / 2
        assert high >= 0.75 / 2
    # Four requests on one worker: three of them wait, which changes most
    parts = ("connect_s", "accept_queue_s", "in_worker_s", "service_s", "transfer_s")
    sizes = {name: abs(by_metric[name]["change"]) for name in parts if name in by_metric}
    assert max(sizes, key=sizes.__getitem__) == "accept_queue_s"
    text = (lab.place / "limits.xml").read_text()
    assert text.count("<testcase ") == 1
    assert ("<failure " in text) == (result.code == 4)


def test_a_baseline_is_compared_or_repeated(lab: Lab) -> None:
    """Runs may differ in settings of the server, which are reported first."""
    load = ("sweep", "sync", "4", "--tool", "fast", "--sleep", "0.1", "--rounds", "3")
    for name, workers in (("main", "1"), ("other", "2")):
        assert lab(*load, "--trials", "3", "--workers", workers, "--out", name).code == 0
    report = lab.report("compare", "main", "other", "--fail-if", "rps<-5%")
    first, second, *_ = (finding["answer"] for finding in report["findings"])
    assert first["code"] == "RunsDiffer"
    differences = [difference["values"] for difference in first["values"]["differences"]]
    (workers,) = (difference for difference in differences if difference["name"] == "workers")
    assert (workers["a"], workers["b"]) == ("1", "2")
    # Three launches of each may be uncertain on a busy machine
    assert second["code"] in ("BDiffers", "DifferenceInconclusive")
    throughput = changes(report, 1)["throughput_rps"]
    assert throughput["change"] > 1
    assert_plausible(throughput, 1, 2)
    assert throughput["low"] < throughput["change"] < throughput["high"]
    assert not (lab.place / "results").exists()

    report = lab.report("compare", "--baseline", "main", "--fail-if", "rps<-90%")
    (baseline,) = (lab.place / "main").iterdir()
    assert run_store.load(lab.run).plan == run_store.load(baseline).plan
    # Nothing has changed but perhaps the load of the machine
    differences = answers(report).get("RunsDiffer", {"differences": ()})["differences"]
    names = {difference["values"]["name"] for difference in differences}
    assert names <= {"machine.load_average_at_start"}
    assert "exceeded" not in outcomes(report)
    assert_plausible(changes(report, bool(differences))["throughput_rps"], 1, 1)
    assert "leave out --b" in lab.refusal("compare", "--baseline", "main", "--b", "workers=3")
    line = lab.refusal("compare", "sync", "4", "--b", "workers=3", "--html", "page.html")
    assert "workerlab report RUN --html FILE" in line


def test_clients_that_close_late_block_workers_of_newer_versions_of_gunicorn(lab: Lab) -> None:
    """Since 26.0 a worker waits up to 2 s for the client to close."""
    report = lab.report(
        *("sweep", "sync", "4", "--client", "lingers", "--gunicorn", "25.3.0,27.0.1"),
        *("--workers", "2", "--sleep", "0.05", "--rounds", "4"),
        downloads=True,
    )
    before, after = report["cells"]
    assert (before["gunicorn"], after["gunicorn"]) == ("25.3.0", "27.0.1")
    assert before["failed"] == after["failed"] == 0
    assert after["throughput_rps"] < 2 / 2 * 1.1 < before["throughput_rps"]
    notes = [note["text"] for note in report["notes"]]
    (note,) = (note for note in notes if "after the app finishes a request" in note)
    assert "27.0.1" in note
    assert any("clients close their connections 5" in note for note in notes)
    lab.refusal("sweep", "sync", "4", "--client", "lingers", "--keepalive", "on")


def test_incomparable_saved_runs_are_refused(lab: Lab) -> None:
    for name, run in (("first", "good"), ("second", "tornado"), ("lingering", "good")):
        shutil.copytree(recorded(run), lab.place / name)
    saved = lab.place / "lingering" / "run.json"
    saved.write_text(saved.read_text().replace('"plan": {', '"plan": {"linger_s": 5.0, '))
    for args, reason in (
        (("first", "second"), "have no cell in common"),
        (("first", "lingering"), "have different loads: linger"),
        (("first", "nowhere"), "nowhere is not a run"),
        (("first", "second", "--b", "workers=2"), "compared as they are: leave out --b"),
    ):
        assert reason in lab.refusal("compare", *args)


def test_each_app_that_cannot_be_imported_has_its_own_reason(lab: Lab) -> None:
    sides = ("--a", "app=nosuch:app", "--b", "app=other:app")
    args = ("compare", "sync", "4", "--tool", "fast", *sides)
    line = lab.refusal(*args, "--budget", "30s")
    assert "the first result needs 4 pairs of launches" in line
    result = lab(*args)
    assert result.code == 3, result.err
    for name in ("nosuch", "other"):
        assert f"No module named '{name}'" in " ".join(result.out.split())
    assert "for the same reason" not in result.err
    assert "without --duration" not in result.err
