"""What the fast tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here is left after the test."""
    with ExitStack() as found:
        yield found


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of this name, or rewrites that."""

    def check(name: str, text: str) -> None:
        path = GOLDENS / name
        if request.config.getoption("--rewrite-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
