"""The needs of requests, in trials with known needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from msgspec.structs import replace

from tests.builders import analysis as make
from workerlab.analysis import TrialData
from workerlab.analysis.needs import (
    NO_CPU,
    NO_MEMORY,
    NO_REQUESTS,
    CpuUnderLoad,
    cpu_under_load,
    needs_of,
    with_cpu,
)
from workerlab.finding import Finding
from workerlab.model.evidence import MemorySample, ProcessSample, Span, SpanCost, WorkersSample
from workerlab.model.plan import Route
from workerlab.model.result import Memory, Needs, RequestNeed
from workerlab.report.values import text

REQUESTS, LENGTH_S, CPU_S, QUEUED_S = 40, 0.08, 0.02, 0.01
IDLE_CORES, BEFORE_S, AFTER_S = 0.01, 1.0, 0.2  # of each worker; seconds around the load
GUNICORN_S, GAP_S = 0.001, 0.0015
MB = 1 << 20


def cost(
    cpu_s: float = CPU_S, queued_s: float = QUEUED_S, steps_s: float | None = None, route: int = 0
) -> SpanCost:
    steps_ns = None if steps_s is None else round(steps_s * 1e9)
    return SpanCost(round(cpu_s * 1e9), round(queued_s * 1e9), steps_ns, route=route)


def spans(costs: Iterable[SpanCost | None], *, length_s: float = LENGTH_S) -> list[Span]:
    """Consecutive spans in one slot, with a gap between them."""
    period_s = length_s + GAP_S
    return [
        Span(100, make.ns(n * period_s), make.ns(n * period_s + length_s), cost=span_cost)
        for n, span_cost in enumerate(costs)
    ]


def trial(
    requests: Sequence[Span], *, cpu_s: float = CPU_S + GUNICORN_S, worker_class: str = "sync"
) -> TrialData:
    """Two workers: one serves all requests with `cpu_s` each; both use some CPU when idle."""
    until_s = max((span.end_ns or 0) - make.ORIGIN_NS for span in requests) / 1e9 + AFTER_S
    data = make.with_spans(make.evidence(make.server(worker_class, 2), 4), requests)
    data = make.with_record(data, load_end_ns=make.ns(until_s), lone_s=())

    def workers(at_s: float, served: int) -> WorkersSample:
        idle_s = IDLE_CORES * (at_s + BEFORE_S)
        return WorkersSample(make.ns(at_s), {100: 5 + idle_s + served * cpu_s, 101: 7 + idle_s})

    samples = (workers(-BEFORE_S, 0), workers(0.0, 0), workers(until_s, len(requests)))
    waits = tuple(
        ProcessSample(make.ns(at_s), 0, 0, 0, 0, 0, server_wait_s=wait_s)
        for at_s, wait_s in ((0.0, 0.0), (until_s, len(requests) * QUEUED_S))
    )
    return make.with_observations(data, workers=samples, processes=waits, queue=())


def needs(data: TrialData) -> Needs:
    result = needs_of(make.derived(data))
    assert isinstance(result, Needs), result
    return result


def test_each_request_has_the_cpu_time_of_its_own_clock() -> None:
    """The workers' mean CPU time without idle use sets the total; the rest is added to each."""
    outcome = needs(trial(spans(cost(CPU_S + 0.01 * (n % 2 - 0.5)) for n in range(REQUESTS))))
    for n, request in enumerate(outcome.requests):
        own_s = CPU_S + 0.01 * (n % 2 - 0.5)
        assert request.cpu_s == pytest.approx(own_s + GUNICORN_S)
        assert request.wait_s == pytest.approx(LENGTH_S - own_s - QUEUED_S)
        assert (request.blocked_s, request.nogil_s, request.route) == (0, 0, "")
    assert len(outcome.requests) == REQUESTS


def test_without_clocks_each_request_has_the_mean() -> None:
    """The wait for a core is then that of the workers, and Gunicorn's part counts as inside."""
    (request, *_) = needs(trial(spans([None] * REQUESTS))).requests
    assert request.cpu_s == pytest.approx(CPU_S + GUNICORN_S)
    assert request.wait_s == pytest.approx(LENGTH_S - request.cpu_s - QUEUED_S)


def test_a_span_without_a_clock_has_the_mean_of_the_others() -> None:
    outcome = needs(trial(spans([None, *[cost()] * (REQUESTS - 1)])))
    assert outcome.requests[0].cpu_s == pytest.approx(outcome.requests[1].cpu_s)


@pytest.mark.parametrize("asleep_s", [0.03, 0.0001])
def test_sleep_inside_steps_blocks_the_loop(asleep_s: float) -> None:
    """Except for times that clocks and interrupts explain."""
    steps_s = CPU_S + QUEUED_S + asleep_s
    costs = [cost(steps_s=steps_s)] * REQUESTS
    (request, *_) = needs(trial(spans(costs), worker_class="uvicorn")).requests
    blocked_s = asleep_s if asleep_s > 0.001 else 0.0
    assert request.blocked_s == pytest.approx(blocked_s)
    assert request.wait_s == pytest.approx(LENGTH_S - CPU_S - QUEUED_S - blocked_s)


@pytest.mark.parametrize(("held_up_s", "uncertain"), [(0.005, False), (0.04, True)])
def test_delays_by_other_requests_do_not_count_as_needs(held_up_s: float, uncertain: bool) -> None:
    held_up = replace(cost(steps_s=CPU_S + QUEUED_S), held_up_ns=round(held_up_s * 1e9))
    outcome = needs(trial(spans([held_up] * REQUESTS), worker_class="uvicorn"))
    assert outcome.requests[0].wait_s == pytest.approx(LENGTH_S - CPU_S - QUEUED_S - held_up_s)
    assert ("ForecastUncertain" in {note.code for note in outcome.notes}) is uncertain


def test_concurrent_requests_wait_for_each_other() -> None:
    """Three threads that only compute take three times as long, and wait for nothing else. If each
    sleeps for long, they hardly overlap."""

    def three_threads(length_s: float) -> Needs:
        thread = spans([cost(queued_s=0.0)] * REQUESTS, length_s=length_s)
        return needs(trial([span for span in thread for _ in range(3)], worker_class="gthread"))

    computing, sleeping = three_threads(3 * CPU_S), three_threads(1.0)
    assert all(request.wait_s < CPU_S / 10 for request in computing.requests)
    assert "ForecastUncertain" in {note.code for note in computing.notes}
    assert all(1.0 - 2 * CPU_S <= request.wait_s <= 1.0 - CPU_S for request in sleeping.requests)
    assert "ForecastUncertain" not in {note.code for note in sleeping.notes}


def test_gunicorns_cpu_is_in_the_gap_and_counts_once() -> None:
    accepted = [replace(span, accept_ns=make.ns(-1.0)) for span in spans([cost()] * REQUESTS)]
    assert needs(trial(accepted)).gap_s == pytest.approx(GAP_S - GUNICORN_S)
    assert needs(trial(accepted, cpu_s=CPU_S + 2 * GAP_S)).gap_s == 0


def test_requests_have_the_route_of_the_mix() -> None:
    data = trial(spans(cost(route=n % 2) for n in range(REQUESTS)))
    settings = data.cell.server
    app = replace(settings.app, mix=(Route("/a"), Route("/b", name="the other")))
    requests = needs(make.with_cell(data, server=replace(settings, app=app))).requests
    assert [request.route for request in requests[:3]] == ["GET /a", "the other", "GET /a"]


def test_memory_is_split_into_shared_and_private() -> None:
    data = trial(spans([cost()] * REQUESTS))
    memory = MemorySample(make.ns(9.0), 100 * MB, {100: 30 * MB, 101: 40 * MB})
    outcome = needs(make.with_observations(data, memory=(memory,))).memory
    assert outcome == Memory(30 * MB, 35 * MB, 2)
    assert outcome.total(4) == 170 * MB
    assert needs(data).memory is None
    assert NO_MEMORY in needs(data).notes


def test_missing_measurements_are_named() -> None:
    data = trial(spans([cost()] * REQUESTS))
    assert needs_of(make.derived(make.with_observations(data, workers=()))) == NO_CPU
    early = data.observations.workers[:2]
    assert needs_of(make.derived(make.with_observations(data, workers=early))) == NO_CPU
    assert needs_of(make.derived(make.with_spans(data, ()))) == NO_REQUESTS


@pytest.mark.parametrize(
    ("failed", "code"), [(1, None), (4, "FailuresInMean"), (30, "RequestsFailed")]
)
def test_needs_include_failures_unless_most_requests_fail(failed: int, code: str | None) -> None:
    count = 200 if failed == 1 else REQUESTS
    counts = {"requests": count, "failed": failed, "errors": {"non_2xx": failed}}
    data = make.with_measurement(trial(spans([cost()] * count)), **counts, timings=())
    outcome = needs_of(make.derived(data))
    if code == "RequestsFailed":
        assert isinstance(outcome, Finding)
        assert (outcome.code, outcome.values["failed"]) == (code, pytest.approx(0.75))
        assert "75 % of its requests failed" in text(outcome)
        return
    assert isinstance(outcome, Needs)
    assert outcome.requests[0].cpu_s == pytest.approx(CPU_S + GUNICORN_S, rel=0.05)
    notes = [note for note in outcome.notes if note.code == "FailuresInMean"]
    assert [note.values["failed"] for note in notes] == pytest.approx([0.1] if code else [])


def test_cpu_under_load_is_that_of_the_steady_window() -> None:
    """CPU time before and after the window does not count."""
    trial = make.evidence(make.server("gevent", 2), 8)
    window = make.derived(trial).window
    inner = [window.opens_ns, (window.opens_ns + window.closes_ns) // 2, window.closes_ns]
    served = {at_ns: window.rps * (at_ns - window.opens_ns) / 1e9 for at_ns in inner}

    def sample(at_ns: int, requests: float, more_s: float = 0.0) -> ProcessSample:
        costs_s = (0.003, 0.001, 2e-4)
        cpu_s, tool_s, irq_s = (0.5 + more_s + cost_s * requests for cost_s in costs_s)
        return ProcessSample(at_ns, cpu_s, tool_s, 0, 0, 0, host_irq_s=irq_s)

    samples = (
        sample(window.opens_ns - 1_000_000_000, 0.0, -0.5),
        *(sample(at_ns, requests) for at_ns, requests in served.items()),
        sample(window.closes_ns + 1_000_000_000, served[window.closes_ns], 99.0),
    )
    outcome = cpu_under_load(make.derived(make.with_observations(trial, processes=samples)))
    assert outcome.server_s == pytest.approx(0.003)
    assert outcome.load_s == pytest.approx(0.0012)
    without_tool = tuple(replace(sample, tool_cpu_s=None) for sample in samples)
    outcome = cpu_under_load(make.derived(make.with_observations(trial, processes=without_tool)))
    assert outcome.load_s is None  # not 0
    assert cpu_under_load(make.derived(make.with_observations(trial, processes=()))) is None


def test_cpu_saved_under_load_is_subtracted_from_each_request() -> None:
    before = Needs("", (RequestNeed(0.05, 0.002), RequestNeed(0.05, 0.006)), 0.001, 0.0)
    after = with_cpu(before, CpuUnderLoad(0.003, 0.0001))
    assert [request.cpu_s for request in after.requests] == pytest.approx([0.001, 0.005])
    assert [request.wait_s for request in after.requests] == [0.05, 0.05]
    assert after.load_s == 0.0001
    assert with_cpu(before, None) == before
    after = with_cpu(before, CpuUnderLoad(0.001, 0.0))
    assert [request.cpu_s for request in after.requests] == pytest.approx([0.0, 0.003])
