"""What launches show of errors: few, too many, or too few requests to tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.experiments.advise.standing import standing
from harness.slo import parse


def launch(requests: int, failed: int) -> Any:
    times_s = (0.05,) * (requests - failed)
    return SimpleNamespace(times_s=times_s, failed=failed, served_rps=50.0)


@pytest.mark.parametrize(
    ("requests", "failed", "word", "shown", "unshown"),
    [(1500, 0, "met", 1, 0), (100, 0, "met", 0, 1), (1500, 100, "broken", 0, 0)],
)
def test_errors_are_counted_over_all_launches(
    requests: int, failed: int, word: str, shown: int, unshown: int
) -> None:
    found = standing([launch(requests, failed)] * 2, parse("errors<0.1%"))
    assert (found.word, len(found.shown), len(found.unshown)) == (word, shown, unshown)
