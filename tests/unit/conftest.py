"""Fixtures of the unit tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"

# On shared machines the time of an example means nothing
settings.register_profile(
    "untimed", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Contexts entered here are left after the test."""
    with ExitStack() as exit_stack:
        yield exit_stack


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the golden file of this name, or rewrites the file."""

    def check(name: str, text: str) -> None:
        path = GOLDENS / name
        if request.config.getoption("--rewrite-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
