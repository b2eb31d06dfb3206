"""Conclusions from launches about errors, and about a quantile at a step of the distribution."""

from types import SimpleNamespace
from typing import Any

import pytest

from workerlab.analysis.target import requests_of
from workerlab.experiments.advise.standing import SUFFICIENT_MET_LAUNCHES, passes, standing
from workerlab.slo import parse


def launch(requests: int, failed: int, slow: int = 0, time_s: float = 0.05) -> Any:
    times_s = (time_s,) * (requests - failed - slow) + (1.0,) * slow
    measured = requests_of(times_s, failed, 50.0)
    return SimpleNamespace(times_s=times_s, failed=failed, served_rps=50.0, requests=measured)


@pytest.mark.parametrize(
    ("requests", "failed", "word", "met", "inconclusive"),
    [(1500, 0, "met", 1, 0), (100, 0, "met", 0, 1), (1500, 100, "broken", 0, 0)],
)
def test_errors_are_counted_over_all_launches(
    requests: int, failed: int, word: str, met: int, inconclusive: int
) -> None:
    result = standing([launch(requests, failed)] * 2, parse("errors<0.1%"))
    assert (result.word, len(result.met), len(result.inconclusive)) == (word, met, inconclusive)


@pytest.mark.parametrize(
    ("slow", "outcomes"),  # `slow`: requests of 500 that take a second, in each launch
    [
        # About 5 %
        ([22, 23, 21, 27, 24, 26, 25, 30], ["not shown yet"] * 3 + ["undecidable"] * 5),
        # The first launches do not miss the target, and a lucky series does not meet it
        ([27, 26, 28], ["not shown yet", "not shown yet", "undecidable"]),
        ([24, 23, 22, 24, 24, 23, 24, 24], ["not shown yet"] * 7 + ["undecidable"]),
        ([10, 12, 9], ["not shown yet", "not shown yet", "met"]),
        ([60, 55], ["broken", "broken"]),
    ],
)
def test_chance_does_not_decide_if_a_quantile_is_at_a_step(
    slow: list[int], outcomes: list[str]
) -> None:
    """The target is a p95 of 300 ms."""
    launches = [launch(500, 0, count) for count in slow]
    terms = parse("p95<300ms")
    assert [standing(launches[: n + 1], terms).word for n in range(len(launches))] == outcomes


def test_enough_launches_that_met_the_target_replace_a_bound() -> None:
    """Unless chance decides on which side of a step the quantile is."""
    terms = parse("p95<300ms")
    uneven = [launch(500, 0, time_s=time_s) for time_s in (0.1, 0.14, 0.19)]
    on_a_step = [launch(500, 0, slow) for slow in (24, 23, 22)]
    for nearby, expected in ((SUFFICIENT_MET_LAUNCHES - 1, False), (SUFFICIENT_MET_LAUNCHES, True)):
        assert passes(uneven, terms, nearby) is expected
        assert passes(on_a_step, terms, nearby) is False
