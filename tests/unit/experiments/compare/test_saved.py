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


def test_a_page_of_two_saved_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page = str(recorded("trials")), tmp_path / "both.html"
    other = str(shutil.copytree(run, tmp_path / "other"))
    assert main(["compare", run, other, "--html", str(page)]) in (0, 1)
    assert f"wrote {page}" in capsys.readouterr().err
    assert "How long responses take" in page.read_text()


def test_launches_in_which_the_machine_stood_still_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded("trials")
    other = shutil.copytree(run, tmp_path / "other")
    for record in run_store.load(run).records.values():
        assert record.load_start_ns is not None
        begins_ns = record.load_start_ns + 10**8
        pause = {"pauses": {"from_ns": begins_ns, "to_ns": begins_ns + 10**9}}
        observed = other / "raw" / record.key / "observed.jsonl"
        header, *lines = observed.read_text().splitlines()
        observed.write_text("\n".join((header, json.dumps(pause), *lines, "")))
    limited = ["--fail-if", "rps<-5%"]
    assert main(["compare", str(run), str(other), *limited]) == 1
    assert "this machine stood still" in capsys.readouterr().out


def test_a_run_is_not_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded("trials")
    (tmp_path / "link").symlink_to(run)
    assert main(["compare", str(run), str(tmp_path / "link")]) == 2
    assert "A and B are the same run" in capsys.readouterr().err


def test_what_keeps_it_from_being_written_is_told_before_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(recorded("trials"))
    words = ["--html", str(tmp_path / "nowhere" / "both.html")]
    for sides in ([run, run], ["--baseline", run]):
        assert main(["compare", *sides, *words]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "nowhere is not a directory" in said.err

    def missing(_: str) -> object:
        raise ImportError("No module named 'altair'")

    monkeypatch.setattr(publish, "import_module", missing)
    assert main(["compare", run, run, "--html", str(tmp_path / "both.html")]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "pip install 'workerlab[page]'" in said.err
