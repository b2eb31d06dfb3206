"""README and docs: the files, modules and options that they name exist."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import pytest
from msgspec.structs import asdict

from workerlab.experiments.lesson.steps import BUNDLED_LESSON, read_lesson

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "llms.txt")),
    *sorted((ROOT / "docs").glob("*.md")),
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"[` ](?:\./)?((?:harness|apps|configs|scripts|tests|docs)/[\w./-]*[\w/])")
MODULE = re.compile(r"-m ((?:workerlab|apps)[\w.]*)")
PLACEHOLDER = re.compile(r"NAME|\*")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OF_OTHERS = {"--preload", "--rewrite-goldens", "--from"}  # of Gunicorn, of the tests, of uvx


def prose(page: Path) -> str:
    """Without what a program printed."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "llms.txt"])
def test_links_of_what_is_no_page_of_the_site(name: str) -> None:
    """`tox -e docs` checks those of the pages, and their anchors."""
    targets = {target.partition("#")[0] for target in LINK.findall(prose(ROOT / name))}
    assert targets
    assert not {one for one in targets if not (one.startswith("http") or (ROOT / one).exists())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = {one for one in PATH.findall(prose(page)) if not PLACEHOLDER.search(one)}
    assert not {one for one in named if not (ROOT / one).exists()}


def test_modules_that_are_run_exist() -> None:
    named = {one for page in PAGES for one in MODULE.findall(prose(page))}
    assert named
    for one in named:
        base = ROOT / "harness" if one.startswith("workerlab") else ROOT
        place = base.joinpath(*one.split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), one


def test_options_that_are_named_exist() -> None:
    known = {
        option
        for source in (*(ROOT / "harness").rglob("*.py"), ROOT / "tests" / "disturb.py")
        for option in OPTION.findall(source.read_text())
    }
    for page in PAGES:
        unknown = set(OPTION.findall(prose(page))) - known - OF_OTHERS
        assert not unknown, page.name


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= 150


def test_the_recorded_steps_are_those_of_the_bundled_lesson() -> None:
    recorded = lzma.decompress((ROOT / "docs" / "lesson.html.xz").read_bytes()).decode()
    data = re.findall(r'id="lab-recorded-data">(.*?)</script>', recorded, re.DOTALL)[0]
    lesson = read_lesson(BUNDLED_LESSON)
    recordings = json.loads(data)["steps"]
    for step, recording in zip(lesson.steps, recordings, strict=True):
        (side,) = recording["trace"]["sides"]
        assert recording["title"] == step.title
        assert side["server"] == asdict(step.server)
        assert side["load"] == asdict(step.load)
