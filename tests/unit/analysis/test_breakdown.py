"""The breakdown of a response time: known values, and properties of any load."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    SYNC,
    bare,
    cell_of,
    evidence,
    notes_by_code,
    ns,
    server,
    with_keepalive,
    with_measurement,
    with_observations,
    with_spans,
)
from tests.builders.noise import noisy
from workerlab.analysis import TrialData
from workerlab.analysis.breakdown import MAX_EXCESS_SHARE
from workerlab.analysis.samples import SAMPLERS, Window
from workerlab.model.evidence import QueueSample
from workerlab.model.plan import Server
from workerlab.model.result import Breakdown

GTHREAD = server("gthread", 2, 2)
PARTS = ("connect_s", "accept_queue_s", "in_worker_s", "service_s", "transfer_s")


def parts_of(breakdown: Breakdown) -> list[float | None]:
    return [getattr(breakdown, name) for name in PARTS]


@pytest.mark.parametrize("tool", ["ab", "fast"])
def test_a_sync_server_makes_requests_wait_in_the_accept_queue(tool: str) -> None:
    breakdown = cell_of(evidence(SYNC, 8, tool=tool)).breakdown
    assert breakdown.exact == (tool == "fast")
    assert breakdown.response_s == pytest.approx(2.0)
    assert parts_of(breakdown) == pytest.approx([0, 1, 0, 1, 0], abs=1e-6)
    assert breakdown.unattributed_s == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("tool", ["ab", "fast"])
def test_accepted_requests_wait_in_the_worker(tool: str) -> None:
    trial = evidence(GTHREAD, 8, tool=tool, slots=[2, 2], deal=lambda number: number % 2)
    assert parts_of(cell_of(trial).breakdown) == pytest.approx([0, 0, 1, 1, 0], abs=1e-6)


def with_timings(trial: TrialData, **changes: Any) -> TrialData:
    timings = tuple(replace(timing, **changes) for timing in trial.measurement.timings)
    return with_measurement(trial, timings=timings)


def test_connect_and_transfer_come_from_the_client() -> None:
    """Of 1.3 s: 0.06 s to connect, 0.04 s in the accept queue, 0.1 s in the worker, 0.9 s in the
    app and 0.2 s of transfer."""
    trial = with_timings(evidence(SYNC, 4, tool="fast", delay_s=1.3), connect_s=0.06)
    spans = (
        replace(
            span,
            accept_ns=span.start_ns + NS // 10,
            start_ns=span.start_ns + 2 * NS // 10,
            end_ns=span.start_ns + 11 * NS // 10,
        )
        for span in trial.spans.spans
    )
    breakdown = cell_of(with_spans(trial, spans)).breakdown
    assert breakdown.exact
    assert parts_of(breakdown) == pytest.approx([0.06, 0.04, 0.1, 0.9, 0.2])
    assert breakdown.response_s == pytest.approx(1.3)


def test_requests_on_reused_connections_wait_in_the_worker() -> None:
    trial = with_timings(evidence(SYNC, 8, tool="fast"), reused=True, connect_s=0.0)
    spans = (replace(span, accept_ns=ns(0)) for span in trial.spans.spans)
    breakdown = cell_of(with_spans(trial, spans)).breakdown
    assert breakdown.exact
    assert parts_of(breakdown) == pytest.approx([0, 0, 1, 1, 0], abs=1e-6)


def without_accept(trial: TrialData, number: int) -> TrialData:
    spans = list(trial.spans.spans)
    spans[number] = replace(spans[number], accept_ns=None)
    return with_spans(trial, spans)


def test_one_incomplete_request_makes_the_breakdown_an_estimate() -> None:
    base = evidence(SYNC, 8, tool="fast")
    assert cell_of(without_accept(base, 0)).breakdown.exact  # the lone request is not in the window
    assert not cell_of(without_accept(base, 20)).breakdown.exact
    assert not cell_of(with_measurement(base, origin_ns=None)).breakdown.exact
    moved = (replace(timing, start_s=timing.start_s + 5) for timing in base.measurement.timings)
    moved_trial = with_measurement(base, timings=tuple(moved))
    assert not cell_of(moved_trial).breakdown.exact  # the clocks disagree


def test_failures_are_left_out_and_counted() -> None:
    base = evidence(SYNC, 8, tool="fast")
    timings = list(base.measurement.timings)
    timings[20] = replace(timings[20], end_s=None, status=None, cause="reset")
    counted = {"requests": 40, "failed": 1, "errors": {"reset": 1}}
    cell = cell_of(with_measurement(base, timings=tuple(timings), **counted))
    assert cell.breakdown.exact
    assert cell.breakdown.service_s == pytest.approx(1.0, rel=0.01)
    assert notes_by_code(cell)["FailuresLeftOut"].values == {"requests": 1}


def test_a_part_without_a_source_is_missing() -> None:
    cell = cell_of(bare(evidence(SYNC, 8)))
    breakdown = cell.breakdown
    assert (breakdown.accept_queue_s, breakdown.in_worker_s) == (None, None)
    assert breakdown.service_s == pytest.approx(1.0)
    assert breakdown.unattributed_s == pytest.approx(1.0)
    assert set(breakdown.sources) == {"connect", "service", "transfer"}
    assert (cell.accept_queue_max, cell.counters.listen_overflows) == (None, None)
    (missing,) = cell.notes
    assert (missing.code, missing.values["why"]) == ("SamplesMissing", "not Linux")
    samplers = [SAMPLERS[name] for name in ("queue", "processes", "connections", "counters")]
    assert missing.values["samplers"] == tuple(samplers)


def test_wrk_reports_neither_connect_nor_transfer() -> None:
    base = evidence(SYNC, 8, tool="wrk", timed=True)
    breakdown = cell_of(with_measurement(base, exact_mean=False, connects_s=())).breakdown
    assert (breakdown.connect_s, breakdown.transfer_s) == (None, None)
    assert set(breakdown.sources) == {"accept_queue", "in_worker", "service"}


def test_unread_requests_on_keepalive_connections_are_waiting() -> None:
    """4 connections per worker, 2 of which wait: half of the time is waiting."""
    trial = with_keepalive(evidence(GTHREAD, 8, slots=[2, 2], deal=lambda number: number % 2))
    breakdown = cell_of(trial).breakdown
    assert breakdown.in_worker_s == pytest.approx(1.0, rel=0.06)
    assert breakdown.sources["in_worker"] == "unread requests, by Little's law"
    few = with_observations(trial, connections=trial.observations.connections[:9])
    assert cell_of(few).breakdown.in_worker_s is None


@pytest.mark.parametrize(
    ("others", "cause"), [(0.0, "left out"), (1.5, "left out; other programs used 1.50 of 2 cores")]
)
def test_parts_that_exceed_the_response_are_left_out(others: float, cause: str) -> None:
    """With one more connection in the queue, the parts of 2 s would take 2.25 s."""
    trial = noisy(evidence(SYNC, 8), server_wait=1.0, others=others)
    queue = (replace(sample, length=sample.length + 1) for sample in trial.observations.queue)
    cell = cell_of(with_observations(trial, queue=tuple(queue)))
    assert cell.breakdown == Breakdown(response_s=pytest.approx(2.0))
    exceeds = str(notes_by_code(cell)["PartsExceedResponse"])
    assert exceeds.startswith("the parts add up to 2.25 s, more than the response of 2.00 s")
    assert exceeds.endswith(cause)
    assert cell.verdict == cell_of(trial).verdict


def test_too_few_samples_give_no_mean() -> None:
    trial = evidence(SYNC, 8)
    few = with_observations(trial, queue=trial.observations.queue[::60])
    assert cell_of(few).breakdown.accept_queue_s is None


def test_samples_are_weighted_by_their_duration() -> None:
    steady = Window(0, 100, 1.0)
    lengths = [(-5, 9), (0, 1), (90, 5), (100, 7), (120, 9)]
    samples = [QueueSample(at_ns, length, 64) for at_ns, length in lengths]
    assert steady.mean_level(samples, "length", 3) == pytest.approx(1.4)
    assert steady.mean_level(samples[1:3], "length", 3) is None
    assert steady.mean_level([samples[1]] * 2, "length", 2) is None


@settings(max_examples=40)
@given(
    workers=st.integers(1, 5),
    connections=st.integers(1, 20),
    tool=st.sampled_from(["ab", "fast"]),
    uneven=st.booleans(),
    delay_s=st.sampled_from([0.02, 0.5]),
    spread=st.floats(0, 0.9),
    early_s=st.floats(0, 0.02),
    observed=st.booleans(),
)
def test_no_part_is_negative_and_all_add_up(
    workers: int,
    connections: int,
    tool: str,
    uneven: bool,
    delay_s: float,
    spread: float,
    early_s: float,
    observed: bool,
) -> None:
    """`early_s`: spans end this much after the client has the response."""
    trial = evidence(
        Server("gthread", workers, 1, 64, 1000),
        connections,
        tool=tool,
        rounds=4,
        delay_s=delay_s,
        delays=lambda number: delay_s * (1 + spread * (number * 7 % 5)),
        slots=[1] * workers,
        deal=(lambda number: number * number % workers) if uneven else None,
    )
    early_ns = round(early_s * NS)
    trial = with_spans(trial, (replace(s, end_ns=s.end_ns + early_ns) for s in trial.spans.spans))
    breakdown = cell_of(trial if observed else bare(trial)).breakdown
    if breakdown.unattributed_s is None:
        return
    parts_s = [part_s for part_s in parts_of(breakdown) if part_s is not None]
    assert all(part_s >= 0 for part_s in parts_s)
    assert sum(parts_s) + breakdown.unattributed_s == pytest.approx(breakdown.response_s)
    assert breakdown.unattributed_s >= -MAX_EXCESS_SHARE * breakdown.response_s
    assert breakdown.exact == (tool == "fast" and observed)
