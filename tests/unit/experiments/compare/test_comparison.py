"""Whether A and B differ: few false alarms, and real changes are detected."""

import math
import random
from collections.abc import Callable

import pytest

from workerlab.experiments.compare import comparison
from workerlab.experiments.compare.comparison import LOOKS, Launch, changes

NAMES = [metric.name for metric in comparison.METRICS]
Noise = Callable[[random.Random], float]


def quiet(rng: random.Random) -> float:
    return math.exp(rng.gauss(0, 0.015))


def noisy(rng: random.Random) -> float:
    return math.exp(rng.gauss(0, 0.1))


def bursts(rng: random.Random) -> float:
    """Another program takes a core in one launch of four."""
    return quiet(rng) * (rng.uniform(1.2, 2.0) if rng.random() < 0.25 else 1.0)


def launch(rng: random.Random, noise: Noise, slowdown: float = 1.0, failed: float = 0.0) -> Launch:
    response_s = 0.1 * noise(rng) * slowdown
    return {
        "throughput_rps": 8 / response_s, "failed": failed,
        "response_p50_s": response_s, "response_p95_s": 1.2 * response_s * quiet(rng),
        "cpu_s": 0.09 * noise(rng) * slowdown, "memory_bytes": 5e7 * quiet(rng),
        "start_s": 0.6 * noise(rng), "stop_s": 0.2 * noise(rng),
        "response_s": response_s, "connect_s": 0.001 * noise(rng),
        "accept_queue_s": 0.01 * noise(rng), "in_worker_s": 0.001 * noise(rng),
        "service_s": 0.088 * noise(rng) * slowdown, "transfer_s": 0.001,
    }  # fmt: skip


def compare(
    rng: random.Random, noise: Noise, max_pairs: int, slowdown: float = 1.0
) -> dict[str, str]:
    """The verdict on each metric at the end of the comparison."""
    pairs = []
    while True:
        pairs.append((launch(rng, noise), launch(rng, noise, slowdown)))
        if len(pairs) not in LOOKS:
            continue
        metric_changes = changes(pairs, 0.05)
        if len(pairs) >= max_pairs or comparison.all_decided(metric_changes, NAMES):
            return {change.metric.name: change.word for change in metric_changes}


@pytest.mark.parametrize("noise", [quiet, noisy, bursts])
def test_at_most_one_in_twenty_identical_pairs_differs(noise: Noise) -> None:
    rng = random.Random(1)
    alarms = sum("different" in compare(rng, noise, 19).values() for _ in range(100))
    assert alarms <= 0.05 * 100


@pytest.mark.parametrize("slowdown", [1.05, 1 / 1.05])
def test_a_change_of_five_percent_is_detected(slowdown: float) -> None:
    rng = random.Random(2)
    verdicts = [compare(rng, quiet, 13, slowdown) for _ in range(20)]
    for name in ("throughput_rps", "response_p50_s", "cpu_s"):
        assert sum(verdict[name] == "different" for verdict in verdicts) >= 16


def test_identical_servers_are_the_same() -> None:
    rng = random.Random(3)
    verdicts = [compare(rng, quiet, 19) for _ in range(20)]
    assert sum(set(verdict.values()) == {"same"} for verdict in verdicts) >= 16


def test_there_is_no_verdict_before_the_first_look() -> None:
    rng = random.Random(4)
    pairs = [(launch(rng, quiet), launch(rng, quiet, 3.0)) for _ in range(LOOKS[0])]
    assert {change.word for change in changes(pairs[:-1], 0.05)} == {"inconclusive"}
    by_name = {change.metric.name: change for change in changes(pairs, 0.05)}
    assert by_name["response_p50_s"].word == "different"
    assert by_name["response_p50_s"].value > 1
    assert by_name["throughput_rps"].value == pytest.approx(1 / 3, rel=0.05)


def test_pairs_between_two_looks_change_nothing() -> None:
    """A test after every pair would find a difference between identical servers."""
    rng = random.Random(5)
    pairs = [(launch(rng, quiet), launch(rng, quiet)) for _ in range(LOOKS[1])]
    assert changes(pairs[:-1], 0.05) == changes(pairs[: LOOKS[0]], 0.05)


def test_the_changed_part_of_the_response_is_identified() -> None:
    rng = random.Random(6)
    pairs = []
    for _ in range(6):
        a, b = launch(rng, quiet), dict(launch(rng, quiet))
        b["in_worker_s"] = 0.031
        pairs.append((a, b))
    by_name = {change.metric.name: change for change in changes(pairs, 0.05)}
    differ = [part.name for part in comparison.PARTS if by_name[part.name].word == "different"]
    assert differ == ["in_worker_s"]
    assert by_name["in_worker_s"].value == pytest.approx(0.3, abs=0.02)  # of A's response


@pytest.mark.parametrize(("share", "word"), [(0.01, "different"), (0.0, "same")])
def test_failures_are_compared_as_shares(share: float, word: str) -> None:
    rng = random.Random(7)
    pairs = [(launch(rng, quiet), launch(rng, quiet, failed=share * quiet(rng))) for _ in range(4)]
    (failed,) = (item for item in changes(pairs, 0.05) if item.metric.name == "failed")
    assert (failed.word, failed.value) == (word, pytest.approx(share, rel=0.1, abs=0.0))


def test_two_launches_that_differ_have_a_wide_interval() -> None:
    """If it is one of many comparisons, its upper end is infinite."""
    a, b = ([{"stop_s": time_s} for time_s in side] for side in ((0.01, 0.2), (0.02, 0.5)))
    (stop,) = comparison.unpaired_changes(a, b, 0.05, comparisons=100)
    assert (stop.low, stop.high, stop.word) == (0.0, math.inf, "inconclusive")


def test_no_part_shrinks_by_more_than_the_whole_response() -> None:
    pairs = [({"response_s": 0.1, "service_s": 0.1}, {"response_s": time_s, "service_s": time_s})
             for time_s in (0.01, 0.3, 0.01, 0.6)]  # fmt: skip
    response, service = changes(pairs, at_least=0.05)
    assert (response.low, service.low) == (-1.0, -1.0)
    assert response.word == "inconclusive"


def test_a_missing_metric_is_not_compared() -> None:
    rng = random.Random(8)
    pairs = [({**launch(rng, quiet), "cpu_s": None}, launch(rng, quiet)) for _ in range(4)]
    assert "cpu_s" not in {change.metric.name for change in changes(pairs, 0.05)}
