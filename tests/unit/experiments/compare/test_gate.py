"""Limits on a change: their syntax and their outcomes."""

from __future__ import annotations

import pytest

from workerlab.experiments.compare.comparison import METRICS, Change, judge
from workerlab.experiments.compare.options import METRIC_NAMES
from workerlab.slo import TargetSyntaxError, parse_limits

BY_NAME = {metric.name: metric for metric in METRICS}


def change(name: str, low: float | None, high: float | None) -> Change:
    return Change(BY_NAME[name], 9, 1.0, 1.0, 1.0, low, high)


@pytest.mark.parametrize(
    ("limit", "low", "high", "outcome"),
    [
        ("p95>+10%", 1.11, 1.30, "exceeded"),
        ("p95>+10%", 1.02, 1.30, "inconclusive"),
        ("p95>+10%", 1.02, 1.09, "met"),  # it grew, but not so much
        ("p95>10%", 1.11, 1.30, "exceeded"),
        ("p95>+10%", None, None, "inconclusive"),
    ],
)
def test_outcome_of_a_limit_follows_from_the_interval(
    limit: str, low: float | None, high: float | None, outcome: str
) -> None:
    (parsed,) = parse_limits(limit, METRIC_NAMES)
    assert judge(parsed, [change("response_p95_s", low, high)]) == outcome


def test_throughput_is_limited_from_below_and_errors_by_their_share() -> None:
    rps, errors = parse_limits("rps < -5%, errors>+0.1%", METRIC_NAMES)
    assert judge(rps, [change("throughput_rps", 0.90, 0.94)]) == "exceeded"
    assert judge(rps, [change("throughput_rps", 0.96, 1.10)]) == "met"
    assert judge(errors, [change("failed", 0.002, 0.004)]) == "exceeded"
    assert judge(errors, [change("failed", 0.0, 0.0)]) == "met"


def test_a_limit_on_an_unmeasured_metric_is_inconclusive() -> None:
    (limit,) = parse_limits("cpu>+5%", METRIC_NAMES)
    assert judge(limit, [change("response_p95_s", 2.0, 3.0)]) == "inconclusive"


@pytest.mark.parametrize(
    ("text", "column", "phrase"),
    [
        ("p95>10x%", 7, "unknown unit 'x%' after 10: %"),
        ("rps<-5%, p95>+10 ", 17, "+10 needs a unit: %"),
        ("rps<-5%, p96>+1%", 10, "unknown metric 'p96': expected rps, p50, p95"),
        ("p95>-10%", 5, "would be exceeded without any change"),
        ("rps<+5%", 5, "would be exceeded without any change"),
        ("p95>+10%,", 10, "expected rps, p50"),
    ],
)
def test_a_syntax_error_names_its_position(text: str, column: int, phrase: str) -> None:
    with pytest.raises(TargetSyntaxError) as error:
        parse_limits(text, METRIC_NAMES)
    assert f"column {column}:" in str(error.value)
    assert phrase in str(error.value)
