"""Two saved runs as a page."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import invalid_of, result_of
from tests.builders.plan import plan
from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.analysis.stall import MachinePause, PauseDuringLoad
from workerlab.cli import main
from workerlab.experiments.compare.options import CompareOptions
from workerlab.experiments.compare.saved import SavedSide, differences_of, groups_of
from workerlab.model.evidence import Record, Summary
from workerlab.model.plan import Cell, Rate, Server, Trial
from workerlab.model.result import RateResult, Result
from workerlab.run_store import Run


def test_two_saved_runs_are_written_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = str(recorded("trials")), tmp_path / "both.html"
    other = str(shutil.copytree(run, tmp_path / "other"))
    assert main(["compare", run, other, "--html", str(page)]) in (0, 1)
    assert f"wrote {page}" in capsys.readouterr().err
    assert "Response times, " in page.read_text()


def sweep_of(*servers: Server, requests: int | None = None) -> SavedSide:
    """Three launches of each server."""
    cells = (Cell(server, "fast", 8, requests=requests) for server in servers)
    return side_of([
        result_of(Trial(cell, number), throughput_rps=10.0 + number)
        for cell in cells for number in (1, 2, 3)
    ])  # fmt: skip


def side_of(results: Sequence[Result]) -> SavedSide:
    records = {result.trial.key: Record(result.trial.key, None) for result in results}
    return SavedSide(Run(Path("run"), plan((), trials=3), {}, records), results, {})


SYNC = Server("sync", 4, 1, 2048, 1000, cores=2, cpu_s=0.02)


@pytest.mark.parametrize(
    "changes", [{"cpu_s": 0.01}, {"cores": 1}, {"backlog": 16}, {"instances": 2}, {"preload": True}]
)
def test_each_setting_that_varies_within_a_run_identifies_cells(changes: dict[str, Any]) -> None:
    """Launches with different settings belong to different cells."""
    both = sweep_of(SYNC, replace(SYNC, **changes))
    groups = groups_of(both, both, CompareOptions())
    assert [group.launches for group in groups] == [(3, 3), (3, 3)]
    (group,) = groups_of(both, sweep_of(SYNC), CompareOptions())
    assert group.group.a.server == SYNC
    other = sweep_of(groups[1].group.a.server)
    differences = {difference.name for difference in differences_of(sweep_of(SYNC), other)}
    assert differences == set(changes)


def test_the_load_and_its_hosts_are_differences_of_the_runs() -> None:
    local, remote = sweep_of(SYNC, requests=100), sweep_of(SYNC, requests=200)
    remote_run = replace(remote.run, plan=replace(remote.run.plan, load_hosts=("a", "b")))
    remote = remote._replace(run=remote_run)
    assert [str(difference) for difference in differences_of(local, remote)] == [
        "requests: 100 and 200",
        "machines that send the load: none and a b",
    ]


def test_launches_with_a_machine_pause_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded("trials")
    other = shutil.copytree(run, tmp_path / "other")
    for record in run_store.load(run).records.values():
        pause_ns = record.load_start_ns + 10**8
        pause = {"pauses": {"from_ns": pause_ns, "to_ns": pause_ns + 10**9}}
        observed = other / "raw" / record.key / "observed.jsonl"
        header, *lines = observed.read_text().splitlines()
        observed.write_text("\n".join((header, json.dumps(pause), *lines, "")))
    assert main(["compare", str(run), str(other), "--fail-if", "rps<-5%"]) == 1
    assert "this machine, or the lab, was paused" in " ".join(capsys.readouterr().out.split())


def test_a_paused_launch_at_a_share_of_the_capacity_is_left_out() -> None:
    """It has the rate of the other launches, although it is invalid."""
    pause = PauseDuringLoad(MachinePause(paused_s=1.0, load_s=5.0, longest_s=1.0))
    cell, lag = Cell(SYNC, "fast", 8, rate=Rate(share=0.8)), Summary()
    at_rate = RateResult(8.0, "even", 1, due_rps=8.0, sent_rps=8.0, unsent=0, lag=lag)
    results = [result_of(Trial(cell, number), at_rate=at_rate) for number in (1, 2, 3)]
    paused = side_of([replace(results[0], notes=(pause,)), *results[1:]])
    (group,) = groups_of(side_of(results), paused, CompareOptions())
    assert group.launches == (3, 2)
    assert group.invalid == [("B", invalid_of(paused.cells[0], pause))]


def test_a_run_is_not_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded("trials")
    (tmp_path / "link").symlink_to(run)
    assert main(["compare", str(run), str(tmp_path / "link")]) == 2
    assert "A and B are the same run" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--workers", "2"), ("--seed", "0"), ("--sleep", "0")])
def test_options_of_new_runs_are_refused_for_saved_runs(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(recorded("trials"))
    for sides in ([run, run], ["--baseline", run]):
        assert main(["compare", *sides, *arguments]) == 2
        assert f"leave out {arguments[0]}\n" in capsys.readouterr().err


def test_an_unwritable_page_is_reported_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(recorded("trials"))
    arguments = ["--html", str(tmp_path / "nowhere" / "both.html")]
    for sides in ([run, run], ["--baseline", run]):
        assert main(["compare", *sides, *arguments]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert "nowhere is not a directory" in output.err

    def missing(_: str) -> object:
        raise ImportError("No module named 'altair'")

    monkeypatch.setattr("workerlab.report.html.import_module", missing)
    assert main(["compare", run, run, "--html", str(tmp_path / "both.html")]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert "pip install 'workerlab[page]'" in output.err
