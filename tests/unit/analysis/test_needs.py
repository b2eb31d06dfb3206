"""What requests need, of trials whose truth is known: by construction, or by a simulated server."""

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
from workerlab.model import (
    Memory,
    MemorySample,
    Needs,
    ProcessSample,
    RequestNeed,
    Route,
    Span,
    SpanCost,
    WorkersSample,
)
from workerlab.report.values import text

REQUESTS, LENGTH_S, CPU_S, QUEUED_S = 40, 0.08, 0.02, 0.01
IDLE, BEFORE_S, AFTER_S = 0.01, 1.0, 0.2  # cores of each worker, and seconds beside the load
GUNICORN_S, GAP_S = 0.001, 0.0015
MB = 1 << 20


def cost(
    cpu_s: float = CPU_S, queued_s: float = QUEUED_S, steps_s: float | None = None, route: int = 0
) -> SpanCost:
    steps_ns = None if steps_s is None else round(steps_s * 1e9)
    return SpanCost(round(cpu_s * 1e9), round(queued_s * 1e9), steps_ns, route=route)


def spans(costs: Iterable[SpanCost | None], *, length_s: float = LENGTH_S) -> list[Span]:
    """Of one worker and one slot, each after the gap."""
    each_s = length_s + GAP_S
    return [
        Span(100, make.ns(n * each_s), make.ns(n * each_s + length_s), cost=one)
        for n, one in enumerate(costs)
    ]


def trial(
    outcome: Sequence[Span], *, cpu_s: float = CPU_S + GUNICORN_S, worker_class: str = "sync"
) -> TrialData:
    """Two workers, of which one serves; they use `cpu_s` per request and something idle."""
    until_s = max((one.end_ns or 0) - make.ORIGIN_NS for one in outcome) / 1e9 + AFTER_S
    one = make.evidence(make.server(worker_class, 2), 4)
    one = make.with_spans(one, outcome)
    one = make.recording(one, load_end_ns=make.ns(until_s), lone_s=())

    def workers(at_s: float, served: int) -> WorkersSample:
        idle_s = IDLE * (at_s + BEFORE_S)
        return WorkersSample(make.ns(at_s), {100: 5 + idle_s + served * cpu_s, 101: 7 + idle_s})

    samples = (workers(-BEFORE_S, 0), workers(0.0, 0), workers(until_s, len(outcome)))
    waits = tuple(
        ProcessSample(make.ns(at_s), 0, 0, 0, 0, 0, server_wait_s=wait_s)
        for at_s, wait_s in ((0.0, 0.0), (until_s, len(outcome) * QUEUED_S))
    )
    return make.seeing(one, workers=samples, processes=waits, queue=())


def needs(data: TrialData) -> Needs:
    outcome = needs_of(make.derived(data))
    assert isinstance(outcome, Needs), outcome
    return outcome


def test_each_by_its_own_clock() -> None:
    """The mean is that of the workers, less what they use idle: the rest is added to each."""
    outcome = needs(trial(spans(cost(CPU_S + 0.01 * (n % 2 - 0.5)) for n in range(REQUESTS))))
    for n, one in enumerate(outcome.requests):
        own_s = CPU_S + 0.01 * (n % 2 - 0.5)
        assert one.cpu_s == pytest.approx(own_s + GUNICORN_S)
        assert one.wait_s == pytest.approx(LENGTH_S - own_s - QUEUED_S)
        assert (one.blocked_s, one.nogil_s, one.route) == (0, 0, "")
    assert len(outcome.requests) == REQUESTS


def test_without_a_clock_of_its_own_the_mean() -> None:
    """Its waiting for a core is then the workers'; Gunicorn's part is not known to be outside."""
    (one, *_) = needs(trial(spans([None] * REQUESTS))).requests
    assert one.cpu_s == pytest.approx(CPU_S + GUNICORN_S)
    assert one.wait_s == pytest.approx(LENGTH_S - one.cpu_s - QUEUED_S)


def test_a_span_whose_clock_did_not_stop_has_the_mean_of_the_others() -> None:
    outcome = needs(trial(spans([None, *[cost()] * (REQUESTS - 1)])))
    assert outcome.requests[0].cpu_s == pytest.approx(outcome.requests[1].cpu_s)


@pytest.mark.parametrize("asleep_s", [0.03, 0.0001])
def test_what_steps_sleep_blocks_the_loop(asleep_s: float) -> None:
    """But for what clocks and interrupts explain."""
    steps_s = CPU_S + QUEUED_S + asleep_s
    costs = [cost(steps_s=steps_s)] * REQUESTS
    (one, *_) = needs(trial(spans(costs), worker_class="uvicorn")).requests
    blocked_s = asleep_s if asleep_s > 0.001 else 0.0
    assert one.blocked_s == pytest.approx(blocked_s)
    assert one.wait_s == pytest.approx(LENGTH_S - CPU_S - QUEUED_S - blocked_s)


def test_what_held_up_its_steps_is_no_need() -> None:
    one = replace(cost(steps_s=CPU_S + QUEUED_S), held_up_ns=5_000_000)
    outcome = needs(trial(spans([one] * REQUESTS), worker_class="uvicorn"))
    assert outcome.requests[0].wait_s == pytest.approx(LENGTH_S - CPU_S - QUEUED_S - 0.005)
    assert "ForecastUncertain" not in {note.code for note in outcome.notes}
    one = replace(one, held_up_ns=40_000_000)
    outcome = needs(trial(spans([one] * REQUESTS), worker_class="uvicorn"))
    assert "ForecastUncertain" in {note.code for note in outcome.notes}


def test_requests_that_are_there_at_once_wait_for_each_other() -> None:
    """Three threads that only compute: each takes three times as long, and waits for nothing. Where
    each sleeps for long, they hardly meet."""
    crowded, apart = (
        trial(
            [
                replace(one, start_ns=one.start_ns, pid=100)
                for one in spans([cost(queued_s=0.0)] * REQUESTS, length_s=length_s)
                for _ in range(3)
            ],
            worker_class="gthread",
        )
        for length_s in (3 * CPU_S, 1.0)
    )
    outcome = needs(crowded)
    assert all(one.wait_s < CPU_S / 10 for one in outcome.requests)
    assert "ForecastUncertain" in {note.code for note in outcome.notes}
    outcome = needs(apart)
    assert all(1.0 - 2 * CPU_S <= one.wait_s <= 1.0 - CPU_S for one in outcome.requests)
    assert "ForecastUncertain" not in {note.code for note in outcome.notes}


def test_gunicorns_cpu_is_in_the_gap_and_counts_once() -> None:
    """The gap that is measured is longer than what is computed in it, or is nothing but that."""
    accepted = [replace(one, accept_ns=make.ns(-1.0)) for one in spans([cost()] * REQUESTS)]
    assert needs(trial(accepted)).gap_s == pytest.approx(GAP_S - GUNICORN_S)
    assert needs(trial(accepted, cpu_s=CPU_S + 2 * GAP_S)).gap_s == 0


def test_routes_by_what_the_app_was_asked() -> None:
    data = trial(spans(cost(route=n % 2) for n in range(REQUESTS)))
    cell = data.trial.cell
    mix = (Route("/a"), Route("/b", name="the other"))
    app = replace(cell.server.app, mix=mix)
    data = make.asking(data, server=replace(cell.server, app=app))
    assert [one.route for one in needs(data).requests[:3]] == ["GET /a", "the other", "GET /a"]


def test_memory_is_shared_and_private() -> None:
    data = trial(spans([cost()] * REQUESTS))
    memory = MemorySample(make.ns(9.0), 100 * MB, {100: 30 * MB, 101: 40 * MB})
    outcome = needs(make.seeing(data, memory=(memory,))).memory
    assert outcome == Memory(30 * MB, 35 * MB, 2)
    assert outcome.of(4) == 170 * MB
    assert needs(data).memory is None
    assert NO_MEMORY in needs(data).notes


def test_what_was_not_measured_is_said() -> None:
    data = trial(spans([cost()] * REQUESTS))
    assert needs_of(make.derived(make.seeing(data, workers=()))) == NO_CPU
    early = data.observations.workers[:2]
    assert needs_of(make.derived(make.seeing(data, workers=early))) == NO_CPU
    nothing = replace(data, spans=replace(data.spans, spans=()))
    assert needs_of(make.derived(nothing)) == NO_REQUESTS


@pytest.mark.parametrize(
    ("failed", "code"), [(1, None), (4, "FailuresInMean"), (30, "RequestsFailed")]
)
def test_an_app_that_fails_now_and_then_is_known_by_all_of_its_requests(
    failed: int, code: str | None
) -> None:
    """Of most an error is a request like others; where it is the rule, nobody knows the rule."""
    count = 200 if failed == 1 else REQUESTS
    data = trial(spans([cost()] * count))
    assert data.measurement is not None
    data = make.saying(data, requests=count, failed=failed, errors={"non_2xx": failed}, timings=())
    outcome = needs_of(make.derived(data))
    if code == "RequestsFailed":
        assert isinstance(outcome, Finding)
        assert (outcome.code, outcome.values["failed"]) == (code, pytest.approx(0.75))
        assert "75 % of its requests were not answered as expected" in text(outcome)
        return
    assert isinstance(outcome, Needs)
    assert outcome.requests[0].cpu_s == pytest.approx(CPU_S + GUNICORN_S, rel=0.05)
    mixed = [note for note in outcome.notes if note.code == "FailuresInMean"]
    assert [one.values["failed"] for one in mixed] == pytest.approx([0.1] if code else [])


def test_cpu_while_many_come_is_that_of_the_steady_window() -> None:
    """Before it workers wake up, and after it requests are missing: neither is in it."""
    trial = make.evidence(make.server("gevent", 2), 8)
    window = make.derived(trial).window
    assert window is not None
    inner = [window.opens_ns, (window.opens_ns + window.closes_ns) // 2, window.closes_ns]
    served = {at_ns: window.rps * (at_ns - window.opens_ns) / 1e9 for at_ns in inner}

    def sample(at_ns: int, requests: float, more_s: float = 0.0) -> ProcessSample:
        cpu_s, tool_s, irq_s = (0.5 + more_s + each_s * requests for each_s in (0.003, 0.001, 2e-4))
        return ProcessSample(at_ns, cpu_s, tool_s, 0, 0, 0, host_irq_s=irq_s)

    samples = (
        sample(window.opens_ns - 1_000_000_000, 0.0, -0.5),
        *(sample(at_ns, requests) for at_ns, requests in served.items()),
        sample(window.closes_ns + 1_000_000_000, served[window.closes_ns], 99.0),
    )
    outcome = cpu_under_load(make.derived(make.seeing(trial, processes=samples)))
    assert outcome is not None
    assert outcome.server_s == pytest.approx(0.003)
    assert outcome.load_s == pytest.approx(0.0012)
    untold = [replace(one, tool_cpu_s=None) for one in samples]
    unseen = cpu_under_load(make.derived(make.seeing(trial, processes=tuple(untold))))
    assert unseen is not None
    assert unseen.load_s is None  # and not 0
    assert cpu_under_load(make.derived(make.seeing(trial, processes=()))) is None


def test_what_many_at_once_save_is_taken_from_each_alike() -> None:
    few = Needs("", (RequestNeed(0.05, 0.002), RequestNeed(0.05, 0.006)), 0.001, 0.0)
    outcome = with_cpu(few, CpuUnderLoad(0.003, 0.0001))
    assert [one.cpu_s for one in outcome.requests] == pytest.approx([0.001, 0.005])
    assert [one.wait_s for one in outcome.requests] == [0.05, 0.05]
    assert outcome.load_s == 0.0001
    assert with_cpu(few, None) == few
    less = with_cpu(few, CpuUnderLoad(0.001, 0.0))
    assert [one.cpu_s for one in less.requests] == pytest.approx([0.0, 0.003])
