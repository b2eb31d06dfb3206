"""Two saved runs as a page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.cli import main
from workerlab.report import publish


def test_two_saved_runs_are_written_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = str(recorded("trials")), tmp_path / "both.html"
    other = str(shutil.copytree(run, tmp_path / "other"))
    assert main(["compare", run, other, "--html", str(page)]) in (0, 1)
    assert f"wrote {page}" in capsys.readouterr().err
    assert "How long responses take" in page.read_text()


def test_launches_with_a_machine_pause_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded("trials")
    other = shutil.copytree(run, tmp_path / "other")
    for record in run_store.load(run).records.values():
        assert record.load_start_ns is not None
        pause_ns = record.load_start_ns + 10**8
        pause = {"pauses": {"from_ns": pause_ns, "to_ns": pause_ns + 10**9}}
        observed = other / "raw" / record.key / "observed.jsonl"
        header, *lines = observed.read_text().splitlines()
        observed.write_text("\n".join((header, json.dumps(pause), *lines, "")))
    limits = ["--fail-if", "rps<-5%"]
    assert main(["compare", str(run), str(other), *limits]) == 1
    assert "this machine stood still" in capsys.readouterr().out


def test_a_run_is_not_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded("trials")
    (tmp_path / "link").symlink_to(run)
    assert main(["compare", str(run), str(tmp_path / "link")]) == 2
    assert "A and B are the same run" in capsys.readouterr().err


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

    monkeypatch.setattr(publish, "import_module", missing)
    assert main(["compare", run, run, "--html", str(tmp_path / "both.html")]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert "pip install 'workerlab[page]'" in output.err
