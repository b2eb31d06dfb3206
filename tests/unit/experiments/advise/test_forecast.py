"""Forecasts of candidates at any rate and for any target."""

import pytest

from workerlab import slo
from workerlab.experiments.advise.candidates import (
    Expected,
    ForecastInputs,
    Limits,
    candidates,
    forecast,
    kind_of,
)
from workerlab.experiments.advise.growth import launch_s
from workerlab.load.programs import MAX_ROW_ARRIVALS
from workerlab.model.plan import App
from workerlab.model.result import Memory, Needs, RequestNeed

SERVERS = candidates([kind_of("sync", App())], Limits(cores=2))
NEEDS = Needs("", (RequestNeed(0.05, 0.001),), 0.0, 0.0, memory=Memory(10, 10, 2))


def best(
    target: str, rate_rps: float = 50.0, memory_bytes: int | None = None, needs: Needs = NEEDS
) -> Expected:
    inputs = ForecastInputs(slo.parse(target), rate_rps, "poisson", 2.0, memory_bytes=memory_bytes)
    forecasts = forecast(SERVERS, {"sync": needs}, inputs)
    return max(forecasts, key=lambda expected: expected.highest_rps or 0.0)


def test_a_throughput_target_does_not_change_the_highest_rate() -> None:
    assert best("p95<300ms,rps>=50").highest_rps == best("p95<300ms").highest_rps


@pytest.mark.parametrize("rate_rps", [0.03, 0.1, 1.0])
def test_low_rates_have_a_forecast(rate_rps: float) -> None:
    assert best("p95<300ms", rate_rps).central.p95 == pytest.approx(0.051, rel=0.1)


def test_a_heavy_request_has_a_forecast() -> None:
    """At a fiftieth of its highest rate, only one request a minute arrives."""
    heavy = Needs("", (RequestNeed(0.0, 3.0),), 0.0, 0.0)
    assert best("p95<60s", 0.1, needs=heavy).highest_rps > 0


def test_only_candidates_that_fit_into_memory_have_a_highest_rate() -> None:
    expected = best("p95<300ms", memory_bytes=10 + 10 * 3)
    assert expected.highest_rps
    assert expected.memory_bytes == 40


@pytest.mark.parametrize("rps", [0.1, 50.0, 4999.0, 5001.0, 20_000.0])
def test_the_load_tool_can_time_each_request_of_a_launch(rps: float) -> None:
    for budget_s in (30.0, 180.0, 300.0):
        assert 1 <= launch_s(rps, "p95<300ms", budget_s) <= MAX_ROW_ARRIVALS / rps


@pytest.mark.parametrize(
    ("rps", "share", "duration_s"),
    [(15.0, 1.0, 27.0), (15.0, 0.5, 13.5), (15.0, 0.25, 6.75), (30.0, 0.25, 5.0),
     (700.0, 0.5, 2.5), (700.0, 0.25, 2.5)],
)  # fmt: skip
def test_a_partial_launch_has_a_minimum_duration(
    rps: float, share: float, duration_s: float
) -> None:
    assert launch_s(rps, "p95<300ms", 120.0, share=share) == duration_s
