"""Whether requests meet a target: met, missed, not shown or undecidable, and why."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from itertools import pairwise

import pytest

from workerlab.analysis.target import (
    TOO_CLOSE,
    UNKNOWN_OUTCOME,
    Requests,
    StepAtLimit,
    TermOutcome,
    TooFewRequests,
    judge,
    requests_needed,
    requests_of,
    too_few,
    value_of,
)
from workerlab.model.evidence import Summary
from workerlab.slo import Term, parse

EXPONENTIAL_P95 = math.log(20)  # times the mean


def exponential(n: int) -> list[float]:
    chance = random.Random(1)
    return [chance.expovariate(10) for _ in range(n)]


def stepped(n: int, slow: int) -> list[float]:
    """`slow` of `n` requests take 1 s, the others about 50 ms."""
    return [1.0] * slow + [0.05 + 0.0001 * (i % 100) for i in range(n - slow)]


def outcome_of(target: str, times_s: list[float], failed: int = 0) -> TermOutcome:
    return judge(parse(target)[0], requests_of(times_s, failed))


# --- quantiles ----------------------------------------------------------------------------------


SMOOTH, STEPPED = exponential(3000), stepped(3000, 150)
INSIDE_STEP = [0.2, 0.3, 0.31, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8]


@pytest.mark.parametrize(
    ("times_s", "target", "expected"),
    [
        *((SMOOTH, target, "met") for target in ("p95<400ms", "p50<80ms", "p99<600ms")),
        *((SMOOTH, target, "broken") for target in ("p95<200ms", "p50<60ms", "p90<200ms")),
        ([0.3] * 100, "p95<=300ms", "met"),
        ([0.3] * 100, "p95<300ms", "broken"),
        # Away from the step
        *((STEPPED, target, "met") for target in ("p90<300ms", "p95<2s")),
        *((STEPPED, target, "broken") for target in ("p99<300ms", "p95<20ms")),
        (stepped(3000, 90), "p95<300ms", "met"),
        (stepped(3000, 210), "p95<300ms", "broken"),
        # A few times inside the step do not remove it; few slow requests are no step
        ([*STEPPED[len(INSIDE_STEP) :], *INSIDE_STEP], "p95<300ms", "undecidable"),
        (stepped(100, 2), "p95<300ms", "not shown"),
    ],
)
def test_quantiles_and_their_limits(times_s: list[float], target: str, expected: str) -> None:
    assert outcome_of(target, times_s).result == expected


def test_a_quantile_too_close_to_the_limit_is_not_shown() -> None:
    outcome = outcome_of("p95<300ms", SMOOTH)
    assert (outcome.result, outcome.why) == ("not shown", TOO_CLOSE)
    assert outcome.low < 0.3 < outcome.high
    assert outcome.low < outcome.value < outcome.high


def test_few_requests_can_break_a_limit_but_not_meet_it() -> None:
    few = outcome_of("p95<300ms", [0.05] * 71)
    assert (few.result, few.why) == ("not shown", TooFewRequests(72))
    assert requests_needed(parse("p95<300ms")[0]) == 72
    assert outcome_of("p95<300ms", [0.05] * 72).result == "met"
    assert outcome_of("p95<300ms", [1.0] * 20).result == "broken"


def test_a_quantile_on_a_step_is_undecidable() -> None:
    assert str(outcome_of("p95<300ms", STEPPED)) == (
        "p95<300ms is undecidable: p95 107 ms (95 % interval 59.9 ms to 1.00 s); 150 requests of"
        " 3000 (5 %) took 1.00 s or more, nearly all others took 59.9 ms or less, so p95 is one"
        " or the other by chance"
    )


def test_a_step_away_from_the_limit_is_ignored() -> None:
    """The step is from 310 ms to 1 s, and many times are close to the limit on both sides."""
    times_s = [0.29] * 2845 + [0.31] * 20 + [1.0] * 135
    assert outcome_of("p95<300ms", times_s).why == TOO_CLOSE


# --- failures -----------------------------------------------------------------------------------


def test_a_failure_is_slower_than_any_limit() -> None:
    fast = [0.01] * 900
    assert outcome_of("p95<300ms", fast).result == "met"
    outcome = outcome_of("p95<300ms", fast, failed=100)
    assert outcome.value is None
    assert str(outcome) == (
        "p95<300ms is missed: 100 of 1000 requests failed, which counts as slower than any limit"
    )
    assert value_of("p95", requests_of(fast, 100)) == math.inf
    assert value_of("p50", requests_of(fast, 100)) == 0.01


def test_failures_make_no_quantile_better() -> None:
    times_s = exponential(500)
    for metric in ("p50", "p90", "p95", "p99", "max", "mean"):
        values = [value_of(metric, requests_of(times_s, failed)) for failed in range(0, 600, 7)]
        assert all(a <= b for a, b in pairwise(values) if a and b), metric


def test_about_as_many_failures_as_a_quantile_allows_are_a_step() -> None:
    outcome = outcome_of("p95<300ms", [0.05] * 2850, failed=150)
    assert outcome.result == "undecidable"
    assert isinstance(outcome.why, StepAtLimit)
    assert (outcome.why.above_s, outcome.why.failed) == (None, "failed")
    assert "150 requests of 3000 (5 %) failed, nearly all others took 50.0 ms" in str(outcome)


def test_one_failure_breaks_max_and_mean() -> None:
    for target in ("max<2s", "mean<110ms"):
        results = [outcome_of(target, SMOOTH, failed).result for failed in (0, 1)]
        assert results == ["met", "broken"]


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "failed", "expected"),
    [
        (2999, 0, "not shown"),
        (3000, 0, "met"),
        (3000, 1, "not shown"),
        (4800, 1, "met"),  # 1 - 0.05 quantile of Poisson's mean for 1: 4.74
        (4700, 1, "not shown"),
        (3000, 7, "broken"),
        (3000, 6, "not shown"),  # P(6 or more of 3) = 8.4 %, of 7 or more 3.4 %
        (1, 1, "broken"),
        (0, 5, "broken"),
    ],
)
def test_errors_need_three_clean_requests_per_allowed_failure(
    requests: int, failed: int, expected: str
) -> None:
    outcome = outcome_of("errors<0.1%", [0.05] * (requests - failed), failed)
    assert outcome.result == expected
    assert outcome.value == failed / (max(requests - failed, 0) + failed)


@pytest.mark.parametrize(
    ("target", "least"),
    [("errors<0.1%", 3000), ("errors<1%", 300), ("errors<=5%", 60), ("p99<1s", 368)],
)
def test_how_many_clean_requests_a_limit_needs(target: str, least: int) -> None:
    term = parse(target)[0]
    assert requests_needed(term) == least
    assert too_few(term, requests_of([0.1] * (least - 1))) == TooFewRequests(least)
    assert too_few(term, requests_of([0.1] * least)) is None


# --- mean and throughput ------------------------------------------------------------------------


def test_a_mean_has_an_interval() -> None:
    targets = ("mean<108ms", "mean<101ms", "mean<94ms")
    assert [outcome_of(target, SMOOTH).result for target in targets] == [
        "met",
        "not shown",
        "broken",
    ]
    assert outcome_of("mean<1s", [0.1]).why == TOO_CLOSE


@pytest.mark.parametrize(
    ("rps", "half", "expected"),
    [(51, 0, "met"), (51, 2, "not shown"), (49, 0.5, "broken"), (None, 0, "not shown")],
)
def test_throughput_must_exceed_a_target_by_its_interval(
    rps: float | None, half: float, expected: str
) -> None:
    requests = Requests((0.1,), rps=rps, rps_half=half)
    assert judge(parse("rps>=50")[0], requests).result == expected


@pytest.mark.parametrize("target", ["p95<1s", "errors<1%", "mean<1s", "max<1s", "rps>1"])
def test_a_target_is_not_shown_without_responses(target: str) -> None:
    outcome = outcome_of(target, [])
    assert (outcome.result, outcome.why) == ("not shown", UNKNOWN_OUTCOME)


# --- summaries without response times -----------------------------------------------------------

SUMMARY = Summary(mean=0.1, p50=0.08, p95=0.25, p99=0.5, max=1.0, p90=0.2)


@pytest.mark.parametrize(
    ("target", "succeeded", "expected"),
    [
        ("p95<300ms", 1000, "met"),
        ("p95<200ms", 1000, "broken"),
        ("p90<=200ms", 1000, "met"),
        ("max<500ms", 1000, "broken"),
        ("mean<200ms", 1000, "met"),
        ("errors<1%", 1000, "met"),
        ("p95<300ms", 21, "not shown"),  # few requests can only break a limit
        ("p95<200ms", 21, "broken"),
    ],
)
def test_the_value_of_a_summary_decides(target: str, succeeded: int, expected: str) -> None:
    outcome = judge(parse(target)[0], Requests(summary=SUMMARY, succeeded=succeeded))
    assert outcome.result == expected


def test_many_failures_break_a_limit_on_a_summary() -> None:
    some, many = (
        judge(parse("p95<300ms")[0], Requests(summary=SUMMARY, succeeded=1000, failed=failed))
        for failed in (10, 200)
    )
    assert (some.why, many.result) == (UNKNOWN_OUTCOME, "broken")


# --- how often a verdict is wrong ---------------------------------------------------------------


@pytest.mark.parametrize("n", [100, 400, 3000])
def test_a_limit_at_the_true_quantile_is_rarely_decided(n: int) -> None:
    """The true p95 of exponential times is the limit: each wrong result in at most 2.5 % of loads,
    with a tolerance of 3 sigma (fixed seeds)."""
    term, loads = parse(f"p95<{EXPONENTIAL_P95 * 100:.9f}ms")[0], 1000 if n < 3000 else 200
    chance = random.Random(n)
    results = Counter(
        judge(term, requests_of([chance.expovariate(10) for _ in range(n)])).result
        for _ in range(loads)
    )
    allowed = 0.025 + 3 * math.sqrt(0.025 * 0.975 / loads)
    assert results["met"] / loads <= allowed
    assert results["broken"] / loads <= allowed
    assert results["undecidable"] / loads <= 0.02  # a smooth distribution has no step


def queued(requests: int, busy: float, seed: int) -> list[float]:
    """Response times of M/M/4 at this utilisation, in order of arrival; the mean service time is
    1 s."""
    chance, free, now, times_s = random.Random(seed), [0.0] * 4, 0.0, list[float]()
    for _ in range(requests):
        now += chance.expovariate(4 * busy)
        end = max(now, free[0]) + chance.expovariate(1.0)
        heapq.heapreplace(free, end)
        times_s.append(end - now)
    return times_s


@pytest.mark.parametrize(("busy", "max_share"), [(0.5, 0.1), (0.8, 0.25)])
def test_correlated_response_times_are_rarely_decided(busy: float, max_share: float) -> None:
    """The true p95 is the limit. Treated as independent, requests that queue most of the time would
    meet it more than twice as often."""
    ordered = sorted(queued(300_000, busy, 1))
    term, loads = Term("p95", "<", ordered[int(0.95 * len(ordered))]), 100
    results, naive = Counter[str](), Counter[str]()
    for seed in range(loads):
        times_s = queued(1500, busy, seed + 2)
        results[judge(term, Requests(sorted(times_s), in_order=times_s)).result] += 1
        naive[judge(term, requests_of(times_s)).result] += 1
    assert results["met"] / loads <= max_share
    assert results["broken"] / loads <= max_share
    assert results["met"] <= naive["met"]
    if busy > 0.5:
        assert naive["met"] > 2 * results["met"]


def test_a_limit_beyond_all_times_is_met_despite_correlation() -> None:
    """The slow requests are consecutive, so they count as few."""
    times_s = [0.1] * 300 + [1.0] * 30
    requests = Requests(times_s, in_order=times_s)
    for target, met in (("p95<5s", True), ("p90<700ms", False), ("mean<1s", True)):
        assert (judge(parse(target)[0], requests).result == "met") is met


def test_failures_count_in_correlated_times() -> None:
    times_s = [math.inf if number % 40 == 0 else 0.1 for number in range(800)]
    requests = Requests(sorted(t for t in times_s if t < 1), failed=20, in_order=times_s)
    assert judge(parse("p95<200ms")[0], requests).result == "met"
    assert judge(parse("mean<200ms")[0], requests).result == "broken"


def test_errors_at_the_limit_are_rarely_decided() -> None:
    term, chance, loads = parse("errors<1%")[0], random.Random(5), 1000
    failures = Counter(sum(chance.random() < 0.01 for _ in range(600)) for _ in range(loads))
    results = Counter[str]()
    for failed, count in failures.items():
        requests = Requests(summary=SUMMARY, succeeded=600 - failed, failed=failed)
        results[judge(term, requests).result] += count
    allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / loads)
    assert results["met"] / loads <= allowed
    assert results["broken"] / loads <= allowed


def test_a_heavy_tail_is_no_step() -> None:
    """Log-normal with sigma 1: the p99 is 10 times the median, without a gap."""
    term, chance = parse("p99<1024ms")[0], random.Random(9)  # exp(2.326) times 100 ms
    loads = ([chance.lognormvariate(math.log(0.1), 1) for _ in range(1000)] for _ in range(300))
    results = Counter(judge(term, requests_of(times_s)).result for times_s in loads)
    assert results["undecidable"] <= 3
