"""Limits on a change: their syntax and their outcomes."""

import pytest

from workerlab.experiments.compare.comparison import METRICS, Change, judge
from workerlab.experiments.compare.options import METRIC_NAMES
from workerlab.slo import TargetSyntaxError, parse_limits

BY_NAME = {metric.name: metric for metric in METRICS}


@pytest.mark.parametrize(
    ("limits", "metric", "low", "high", "outcomes"),
    [
        ("p95>+10%", "response_p95_s", 1.11, 1.30, ["exceeded"]),
        ("p95>+10%", "response_p95_s", 1.02, 1.30, ["inconclusive"]),
        ("p95>+10%", "response_p95_s", 1.02, 1.09, ["met"]),  # a smaller growth
        ("p95>10%", "response_p95_s", 1.11, 1.30, ["exceeded"]),
        ("p95>+10%", "response_p95_s", None, None, ["inconclusive"]),
        ("rps < -5%, errors>+0.1%", "throughput_rps", 0.90, 0.94, ["exceeded", "inconclusive"]),
        ("rps < -5%, errors>+0.1%", "throughput_rps", 0.96, 1.10, ["met", "inconclusive"]),
        ("rps < -5%, errors>+0.1%", "failed", 0.002, 0.004, ["inconclusive", "exceeded"]),
        ("rps < -5%, errors>+0.1%", "failed", 0.0, 0.0, ["inconclusive", "met"]),
        ("cpu>+5%", "response_p95_s", 2.0, 3.0, ["inconclusive"]),  # CPU was not measured
    ],
)
def test_the_outcome_of_a_limit_follows_from_the_interval_of_its_metric(
    limits: str, metric: str, low: float | None, high: float | None, outcomes: list[str]
) -> None:
    change = Change(BY_NAME[metric], 9, 1.0, 1.0, 1.0, low, high)
    assert [judge(limit, [change]) for limit in parse_limits(limits, METRIC_NAMES)] == outcomes


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
