"""What the fast tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"

# Machines are shared: how long an example takes says nothing about it
settings.register_profile(
    "untimed", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


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
