"""What launches show of errors: few, too many, or too few requests to tell; and of a quantile that
lies on a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from workerlab.analysis.target import requests_of
from workerlab.experiments.advise.standing import standing
from workerlab.slo import parse


def launch(requests: int, failed: int, slow: int = 0) -> Any:
    times_s = (0.05,) * (requests - failed - slow) + (1.0,) * slow
    seen = requests_of(times_s, failed, 50.0)
    return SimpleNamespace(times_s=times_s, failed=failed, served_rps=50.0, requests=seen)


@pytest.mark.parametrize(
    ("requests", "failed", "word", "shown", "unshown"),
    [(1500, 0, "met", 1, 0), (100, 0, "met", 0, 1), (1500, 100, "broken", 0, 0)],
)
def test_errors_are_counted_over_all_launches(
    requests: int, failed: int, word: str, shown: int, unshown: int
) -> None:
    found = standing([launch(requests, failed)] * 2, parse("errors<0.1%"))
    assert (found.word, len(found.shown), len(found.unshown)) == (word, shown, unshown)


FIVE_PERCENT = [22, 23, 21, 27, 24, 26, 25, 30]  # of 500 requests that take a second


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (FIVE_PERCENT, ["not shown yet"] * 3 + ["undecidable"] * 5),
        (
            [27, 26, 28],
            ["not shown yet", "not shown yet", "undecidable"],
        ),  # not broken by the first ones
        (
            [24, 23, 22, 24, 24, 23, 24, 24],
            ["not shown yet"] * 7 + ["undecidable"],
        ),  # nor met by luck
        ([10, 12, 9], ["not shown yet", "not shown yet", "met"]),
        ([60, 55], ["broken", "broken"]),
    ],
)
def test_chance_does_not_decide_where_a_quantile_lies_on_a_step(
    slow: list[int], words: list[str]
) -> None:
    """The target is a p95 of 300 ms."""
    launches = [launch(500, 0, each) for each in slow]
    terms = parse("p95<300ms")
    found = [standing(launches[: n + 1], terms).word for n in range(len(launches))]
    assert found == words
