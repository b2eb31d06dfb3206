"""The simulation of a candidate, compared with the recursion and with queueing theory."""

from __future__ import annotations

import math
from itertools import accumulate
from operator import attrgetter
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.recursion import allen_cunneen, waits
from workerlab.analysis.simulation import Layout, predict, simulate
from workerlab.model.plan import Server, WorkerClass
from workerlab.model.result import Needs, RequestNeed

WAIT = st.floats(0, 5)
FEW = st.integers(1, 3)


def poisson(rate_rps: float, count: int, seed: int = 1) -> list[float]:
    rng = Random(seed)
    return list(accumulate(rng.expovariate(rate_rps) for _ in range(count)))


def mean_s(requests: list[RequestNeed], rate_rps: float, layout: Layout) -> float:
    return fmean(simulate(poisson(rate_rps, len(requests)), requests, layout, Random(2)))


def simultaneous(requests: list[RequestNeed], layout: Layout, seed: int = 1) -> list[float]:
    """Response times of requests that arrive at the same time."""
    return simulate([0.0] * len(requests), requests, layout, Random(seed))


def test_the_formula_for_random_service_agrees_with_the_recursion() -> None:
    """M/M/4 at 70 %; both are defined in `tests.builders.recursion`."""
    rng, count = Random(12), 400_000
    services_s = (rng.expovariate(10) for _ in range(count))
    mean_wait_s = fmean(waits(poisson(28, count, seed=13), services_s, 4))
    assert mean_wait_s == pytest.approx(allen_cunneen(28, 0.1, 0.02, 4), rel=0.04)


@given(st.lists(st.tuples(WAIT, WAIT)), FEW, FEW, st.booleans(), st.floats(0, 1))
def test_waiting_requests_follow_the_recursion(
    load: list[tuple[float, float]], workers: int, slots: int, loop: bool, gap_s: float
) -> None:
    arrivals_s = sorted(arrival for arrival, _ in load)
    requests = [RequestNeed(need, 0.0) for _, need in load]
    layout = Layout(workers, slots, loop=loop, gap_s=gap_s, outside_s=0.5)
    responses_s = simulate(arrivals_s, requests, layout, Random(1))
    held_s = [need + gap_s for _, need in load]
    waits_s = waits(arrivals_s, held_s, workers * slots)
    expected_s = [wait + held + 0.5 for wait, held in zip(waits_s, held_s, strict=True)]
    assert responses_s == pytest.approx(expected_s, abs=1e-9)


@given(st.lists(st.tuples(WAIT, WAIT)), FEW)
def test_processes_with_a_core_each_follow_the_recursion(
    load: list[tuple[float, float]], workers: int
) -> None:
    arrivals_s = sorted(arrival for arrival, _ in load)
    requests = [RequestNeed(need / 2, need / 4, nogil_s=need / 4) for _, need in load]
    responses_s = simulate(arrivals_s, requests, Layout(workers, cores=workers), Random(1))
    waits_s = waits(arrivals_s, [need for _, need in load], workers)
    expected_s = [wait + need for wait, (_, need) in zip(waits_s, load, strict=True)]
    assert responses_s == pytest.approx(expected_s, abs=1e-9)


@pytest.mark.parametrize(
    ("layout", "cpu_s"),
    [(Layout(1, None, cores=2), 0.2), (Layout(40, 1, cores=1), 0.01)],
    ids=["one GIL", "one core"],
)
def test_a_shared_gil_or_core_is_processor_sharing(layout: Layout, cpu_s: float) -> None:
    """Processor sharing: S / (1 - busy), for any service times (Kleinrock 1967). A GIL comes close
    if requests take many turns of 5 ms."""
    requests = [RequestNeed(0, cpu_s)] * 20_000
    assert mean_s(requests, 0.5 / cpu_s, layout) == pytest.approx(2 * cpu_s, rel=0.05)


LOOP = Layout(1, None, loop=True, accepts_ahead=True)


@pytest.mark.parametrize(
    ("layout", "need", "service_s"),
    [
        (LOOP, RequestNeed(0, 0.01), 0.01),
        (LOOP, RequestNeed(0, 0, blocked_s=0.01), 0.01),
        (Layout(1, None, cores=2), RequestNeed(0, 0.005), 0.005),  # shorter than a turn of the GIL
    ],
)
def test_a_loop_or_a_gil_serves_requests_in_order(
    layout: Layout, need: RequestNeed, service_s: float
) -> None:
    """M/D/1: S (1 + busy / 2 / (1 - busy)), by Pollaczek and Khinchine."""
    mean_at_half_s = mean_s([need] * 50_000, 0.5 / service_s, layout)
    assert mean_at_half_s == pytest.approx(1.5 * service_s, rel=0.03)


def test_a_wait_delays_no_other_request_of_a_loop() -> None:
    layout = Layout(1, None, loop=True)
    assert mean_s([RequestNeed(7, 0)] * 50, 50, layout) == pytest.approx(7)


def test_computing_without_the_gil_delays_no_other_thread() -> None:
    requests = [RequestNeed(0, 0, nogil_s=1.0)] * 3
    for cores, expected_s in ((4, 1.0), (1, 3.0)):
        responses_s = simultaneous(requests, Layout(1, 4, cores=cores))
        assert responses_s == pytest.approx([expected_s] * 3)


def test_an_accepted_request_waits_although_another_worker_is_idle() -> None:
    """With random dealing, two simultaneous requests on two workers meet in half of the cases."""
    requests, layout = [RequestNeed(1, 0)] * 2, Layout(2, 1, accepts_ahead=True)
    pairs = [simultaneous(requests, layout, seed) for seed in range(400)]
    assert {round(response_s) for pair in pairs for response_s in pair} == {1, 2}
    assert 0.35 < fmean(max(pair) > 1.5 for pair in pairs) < 0.65


def test_a_pool_limits_requests_in_flight() -> None:
    responses_s = simultaneous([RequestNeed(1, 0)] * 6, Layout(4, 2, max_in_flight=2))
    assert responses_s == pytest.approx([1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize("layout", [Layout(1), Layout(1, 1, loop=True), Layout(2, max_in_flight=1)])
def test_every_request_is_answered_once(layout: Layout) -> None:
    """Even thousands that need nothing, behind one that takes long."""
    requests = [RequestNeed(1, 0), *[RequestNeed(0, 0)] * 5_000]
    assert simultaneous(requests, layout) == pytest.approx([1.0] * 5_001)


SERVER = Server("any", 2, 4, 2048, 1000)
NEEDS = Needs("t", tuple(RequestNeed(0.02 * n, 0.001) for n in range(1, 6)), 0.001, 0.002)


def test_a_prediction_is_repeatable_and_within_its_range() -> None:
    row, arrivals_s = WorkerClass("any", "threads", accepts_first=True), poisson(40, 800)
    forecast = predict(SERVER, row, NEEDS, arrivals_s, cores=2)
    assert forecast == predict(SERVER, row, NEEDS, arrivals_s, cores=2)
    assert forecast != predict(SERVER, row, NEEDS, arrivals_s, cores=2, seed=2)
    for figure in map(attrgetter, ("mean", "p50", "p90", "p95", "p99", "max")):
        assert figure(forecast.low) <= figure(forecast.central) <= figure(forecast.high)


def test_an_app_inside_a_loop_that_serves_one_at_a_time_blocks_it() -> None:
    """Each tornado worker gets one of eight requests; the first to finish takes the rest."""
    needs = Needs("t", (RequestNeed(1.0, 0.0),), 0.0, 0.0)
    tornado, sync = WorkerClass("tornado", "one", accepts_first=True), WorkerClass("sync", "one")
    for row, max_s in ((tornado, 7.0), (sync, 4.0)):
        assert predict(SERVER, row, needs, [0.0] * 8).central.max == pytest.approx(max_s)


def test_a_prediction_needs_measured_requests() -> None:
    with pytest.raises(ValueError, match="measured requests"):
        predict(SERVER, WorkerClass("any", "one"), Needs("t", (), 0, 0), [1.0])


def test_the_worker_woken_first_accepts_most() -> None:
    """With odds of 8, 4, 2, 1 the first of four workers gets 8/15 of the requests, more than it can
    serve; with equal odds each can serve its share."""
    requests = [RequestNeed(0.05, 0.0)] * 8_000
    fair_s, unfair_s = (
        mean_s(requests, 56, Layout(4, 1, accepts_ahead=True, fairness=fairness))
        for fairness in (1.0, 0.5)
    )
    assert fair_s < 0.2  # M/D/1 at 70 %: 0.11
    assert unfair_s > 5.0  # 30 requests a second for a worker that serves 20


def test_the_range_of_a_class_that_accepts_first_covers_every_dealing() -> None:
    server, arrivals_s = Server("any", 4, 1, 2048, 1000), poisson(56, 2_000)
    needs = Needs("t", (RequestNeed(0.05, 0.0),), 0.0, 0.0)
    unfair = predict(server, WorkerClass("any", "threads", accepts_first=True), needs, arrivals_s)
    assert unfair.low.p95 < 0.5
    assert unfair.high.p95 > 5.0
    fair = predict(server, WorkerClass("any", "threads"), needs, arrivals_s)
    assert fair.low == fair.high  # all requests are equal, and nothing is random


@given(st.lists(st.tuples(WAIT, WAIT)), FEW, FEW)
def test_a_worker_that_accepts_only_what_it_serves_queues_nothing(
    load: list[tuple[float, float]], workers: int, slots: int
) -> None:
    """Such as gthread with as many worker_connections as threads: the rest waits in the kernel."""
    arrivals_s = sorted(arrival for arrival, _ in load)
    requests = [RequestNeed(need, 0.0) for _, need in load]
    limited, plain = (
        simulate(arrivals_s, requests, Layout(workers, slots, **options), Random(1))
        for options in ({"accepts_ahead": True, "max_accepted": slots}, {})
    )
    assert limited == pytest.approx(plain, abs=1e-9)


def test_computing_after_the_wait_cannot_move_to_an_idle_worker() -> None:
    requests = [RequestNeed(0.03, 0.006)] * 5_000
    before_s, after_s = (
        mean_s(requests, 200, replace(LOOP, workers=2, cpu_before_wait_s=cpu_before_s)) - 0.036
        for cpu_before_s in (math.inf, 0.0)
    )
    assert 0 < before_s < after_s / 1.3
