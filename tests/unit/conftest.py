"""What the fast tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here is left after the test."""
    with ExitStack() as found:
        yield found
