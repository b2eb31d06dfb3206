"""The player's files: shipped, and in the colours of their page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workerlab.experiments.live.recording import LESSON_SCRIPT, PAGE_DIR
from workerlab.report.html.figure import css
from workerlab.report.player import PLACE, SCRIPTS, STYLE

ROOT = Path(__file__).resolve().parents[3]


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-fA-F]+)", text))


@pytest.mark.parametrize("dark", [0, 1])
def test_the_players_colours_are_those_of_the_page(dark: int) -> None:
    style = (PLACE / STYLE).read_text()
    light, _, other = style.partition("@media screen and (prefers-color-scheme:dark)")
    own = variables((light, other.partition("}}")[0])[dark])
    page = variables(css(dark))
    shared = own.keys() & page.keys()
    assert len(shared) >= 10
    assert {name: own[name] for name in shared} == {name: page[name] for name in shared}
    assert all(name.startswith("lab-") for name in own.keys() - page.keys())


def test_the_players_files_exist() -> None:
    """A wheel includes every file in the package."""
    assert all((PLACE / name).is_file() for name in (*SCRIPTS, STYLE))
    assert (PAGE_DIR / LESSON_SCRIPT).is_file()
