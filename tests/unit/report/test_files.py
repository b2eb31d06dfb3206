"""Pages and pictures as files: complete or not at all, and one sentence for any problem."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.analysis import sentence
from tests.builders.html import sweep
from workerlab import cli
from workerlab.errors import UsageError
from workerlab.experiments.report import command
from workerlab.model.result import Document
from workerlab.report.html import write_page, write_pictures

DOCUMENT = sweep(("sync",), (8,), observed=False)


@pytest.fixture(params=["altair", "vl_convert"])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package that cannot be imported."""
    for name in [name for name in sys.modules if name.startswith("workerlab.report.html.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, request.param, None)
    return str(request.param)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The arguments before the flags, for a run whose document is DOCUMENT."""

    def document_of(directory: Path, slo: str | None) -> Document:
        assert (directory, slo) == (tmp_path, None)
        return DOCUMENT

    monkeypatch.setattr(command, "find_run", Path)
    monkeypatch.setattr(command, "document_of", document_of)
    return ["report", str(tmp_path)]


def test_a_page_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("before")
    old_umask = os.umask(0o027)
    try:
        write_page(DOCUMENT, path)
    finally:
        os.umask(old_umask)
    assert path.read_text().startswith("<!doctype html>")
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_written_files_are_printed(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, pictures = tmp_path / "out.html", tmp_path / "pictures"
    assert cli.main([*run, "--html", str(page), "--png", str(pictures)]) == 0
    output = capsys.readouterr()
    names = {path.name for path in pictures.iterdir()}
    assert names >= {"timeline-sync-8.png", "timeline-sync-8.svg", "waiting-sync.png"}
    assert output.err == f"wrote {page}\nwrote {len(names)} pictures to {pictures}\n"
    assert output.out == ""


def test_with_a_format_the_document_is_printed_too(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*run, "--html", str(tmp_path / "out.html"), "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("worker_class,")


@pytest.mark.parametrize("flag", ["--html", "--png"])
def test_a_missing_package_is_one_sentence_and_exit_3(
    flag: str, missing: str, run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*run, flag, str(tmp_path / "out")]) == 3
    errors = capsys.readouterr().err
    assert missing in errors
    assert errors.count("\n") == 1
    assert errors.endswith("install them with `pip install 'workerlab[page]'`\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--html", "--png"])
def test_a_missing_directory_is_one_sentence_and_exit_2(
    flag: str, run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "missing"
    assert cli.main([*run, flag, str(directory / "out")]) == 2
    assert capsys.readouterr().err == f"workerlab: {directory} is not a directory\n"
    assert not directory.exists()


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = tmp_path / "out.html"
    directory.mkdir()
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        write_page(DOCUMENT, directory)
    assert list(tmp_path.rglob("*")) == [directory]


def test_pictures_do_not_replace_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pictures"
    file.write_text("of the user")
    with pytest.raises(UsageError, match="cannot be created: File exists"):
        write_pictures(DOCUMENT, file)
    assert file.read_text() == "of the user"


def test_a_lone_surrogate_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    write_page(replace(DOCUMENT, notes=(sentence("said \udc80 and died"),)), path)
    assert "said ? and died" in path.read_text(encoding="utf-8")


def test_a_full_disk_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.html"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_page(DOCUMENT, path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
