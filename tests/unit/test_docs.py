"""Files, modules and options named in README and docs exist."""

import json
import lzma
import re
from pathlib import Path

import pytest
from msgspec.structs import asdict

from workerlab.cli import command_line
from workerlab.experiments import COMMANDS
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
OTHER_OPTIONS = {"--preload", "--rewrite-goldens", "--from"}  # of Gunicorn, the tests and uvx


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "llms.txt"])
def test_links_of_files_outside_the_site_lead_to_files(name: str) -> None:
    """`tox -e docs` checks the links and anchors inside the site."""
    targets = {target.partition("#")[0] for target in LINK.findall(prose(ROOT / name))}
    assert targets
    files = {target for target in targets if not target.startswith("http")}
    assert not {file for file in files if not (ROOT / file).exists()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    paths = {path for path in PATH.findall(prose(page)) if not PLACEHOLDER.search(path)}
    assert not {path for path in paths if not (ROOT / path).exists()}


def test_modules_that_are_run_exist() -> None:
    modules = {module for page in PAGES for module in MODULE.findall(prose(page))}
    assert modules
    for module in modules:
        base = ROOT / "harness" if module.startswith("workerlab") else ROOT
        path = base.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_options_that_are_named_exist() -> None:
    commands = command_line(COMMANDS)._subparsers._group_actions[0].choices
    options = {option for parser in commands.values() for option in parser._option_string_actions}
    # Also of programs that are not commands
    for source in (*(ROOT / "harness").rglob("*.py"), ROOT / "tests" / "disturb.py"):
        options.update(OPTION.findall(source.read_text()))
    for page in PAGES:
        unknown = set(OPTION.findall(prose(page))) - options - OTHER_OPTIONS
        assert not unknown, page.name


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= 150


def test_the_recorded_steps_are_those_of_the_bundled_lesson() -> None:
    page = lzma.decompress((ROOT / "docs" / "lesson.html.xz").read_bytes()).decode()
    data = re.findall(r'id="lab-recorded-data">(.*?)</script>', page, re.DOTALL)[0]
    recordings = json.loads(data)["steps"]
    for step, recording in zip(read_lesson(BUNDLED_LESSON).steps, recordings, strict=True):
        (side,) = recording["trace"]["sides"]
        assert recording["title"] == step.title
        assert side["server"] == asdict(step.server)
        assert side["load"] == asdict(step.load)
