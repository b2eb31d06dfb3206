"""Configured slots, figures of spans, and figures of observations, which are None if unknown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    bare,
    cell_of,
    derived,
    evidence,
    keepalive_trial,
    report_of,
    server,
    with_keepalive,
    with_observations,
    with_record,
    with_spans,
)
from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import SAMPLERS, SamplesMissing, Window, missing_notes, usage
from workerlab.analysis.slots import keepalive_connections
from workerlab.model.evidence import (
    ConnectionSample,
    Counters,
    Observations,
    ProcessSample,
    Record,
    Span,
)
from workerlab.model.plan import Server
from workerlab.model.result import Usage
from workerlab.observe import observations
from workerlab.server.worker_classes import class_named, configured_slots

RECORD = Record(key="x", fault=None)
SECOND = 10**9


@pytest.mark.parametrize(
    ("worker_classes", "per_worker"),
    [("sync tornado", 1), ("gthread", 3), ("eventlet gevent", 100), ("asgi uvicorn", None)],
)
def test_the_class_determines_the_slots(worker_classes: str, per_worker: int | None) -> None:
    for name in worker_classes.split():
        settings = Server(name, 4, 3, 2048, 100)
        assert class_named(name).slots_per_worker(settings) == per_worker
        assert configured_slots(settings) == (None if per_worker is None else 4 * per_worker)


def facts_of_spans(*times: tuple[int, int | None], ended_ns: int = 10**10) -> Facts:
    """A load from 100 ns to `ended_ns` with these spans of worker 1, and none of worker 8."""
    trial = with_spans(evidence(), (Span(1, start, end) for start, end in times))
    return derived(with_record(trial, load_start_ns=100, load_end_ns=ended_ns, worker_pids=(1, 8)))


def test_spans_of_the_warm_up_are_left_out() -> None:
    starts = (50, 200, 100, 99, 201, 150)
    facts = facts_of_spans(*((start, start + 5) for start in starts), ended_ns=200)
    assert [span.start_ns for span in facts.spans] == [100, 150, 200]


def test_a_span_that_never_ended_stays_open() -> None:
    facts = facts_of_spans((100, None), (105, 106), (107, 108))
    assert (facts.max_in_app, facts.served_two_at_once) == (2, True)


def test_requests_per_worker_include_idle_workers() -> None:
    assert dict(facts_of_spans((100, 101), (102, 103)).requests_per_worker) == {1: 2, 8: 0}


def test_service_times_are_those_of_finished_spans() -> None:
    facts = facts_of_spans((100, 100 + SECOND), (100, 100 + 3 * SECOND), (100, None))
    assert facts.service.mean == pytest.approx(2.0)
    assert facts_of_spans((100, None)).service.mean is None


# --- observations -----------------------------------------------------------------------------


def process(at_s: float, *values: float | None, rss: int | None = None) -> ProcessSample:
    server_s, tool_s, host_s = values
    return ProcessSample(round(at_s * SECOND), server_s, tool_s, host_s, rss, None)


def test_cores_are_cpu_seconds_per_second() -> None:
    samples = (
        process(0, 0.0, 0.0, 10.0, rss=5),
        process(1, 0.5, 0.1, 11.5, rss=9),
        process(4, 2.0, 0.4, 16.0, rss=7),
    )
    observed = Observations(processes=samples, cores=2)
    assert usage(observed, RECORD, 4.0) == Usage(0.5, 0.1, pytest.approx(0.75), 9, None)
    exact = replace(RECORD, tool_cpu_s=2.0)
    assert usage(observed, exact, 4.0).generator_cores == 0.5
    assert usage(replace(observed, cores=None), RECORD, 4.0).host_busy is None


def test_a_rate_needs_two_samples() -> None:
    single = Observations(processes=(process(0, 1.0, None, None),), cores=2)
    assert usage(single, RECORD, 1.0) == Usage()
    gaps = (process(0, None, 1.0, None), process(1, 1.0, None, None), process(2, 2.0, 3.0, None))
    used = usage(Observations(processes=gaps, cores=2), RECORD, 1.0)
    assert (used.server_cores, used.generator_cores) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("queue", {"accept_queue_max": None, "accept_queue_limit": None}),
        ("processes", {"usage": Usage()}),
        ("counters", {"counters": Counters()}),
    ],
)
def test_a_failed_sampler_has_no_results(name: str, expected: dict[str, object]) -> None:
    trial = evidence(SYNC, 8)
    assert cell_of(trial).accept_queue_max == 4
    cell = cell_of(with_observations(trial, missing={name: "it broke"}))
    assert {field: getattr(cell, field) for field in expected} == expected
    assert cell.notes == (SamplesMissing((SAMPLERS[name],), "it broke"),)


def test_samplers_missing_for_the_same_reason_share_a_note() -> None:
    missing = {"queue": "not Linux", "counters": "not Linux", "processes": "x"}
    assert [note.values for note in missing_notes(Observations(missing=missing))] == [
        {"samplers": ("accept queue", "kernel counters"), "why": "not Linux"},
        {"samplers": ("CPU and memory",), "why": "x"},
    ]


# --- keep-alive connections ------------------------------------------------------------------


def test_connections_of_a_worker_are_their_median_in_the_window() -> None:
    by_second = ((0, {100: 9}), (1, {100: 3, 101: 1}), (2, {100: 4, 101: 1}), (3, {100: 4}))
    samples = tuple(ConnectionSample(at * SECOND, {}, {}, counts, 0) for at, counts in by_second)
    facts = derived(with_observations(keepalive_trial(7, 1), connections=samples))
    facts.__dict__["steady"] = Window(SECOND, 3 * SECOND, 1.0)
    assert keepalive_connections(facts) == {100: 4, 101: 1}
    lost = with_observations(keepalive_trial(7, 1), missing={"connections": "x"})
    assert cell_of(lost).connections_per_worker == {100: 1, 101: 1}


@pytest.mark.parametrize(
    ("counts", "connections", "predicted"),
    [
        *(((4, 4), 8, 8.0), ((7, 1), 8, 5.0), ((8, 0), 8, 4.0), ((5, 3), 8, 7.0)),
        ((6, 6), 4, 4.0),  # at most the bound
    ],
)
def test_the_split_of_connections_predicts_the_throughput(
    counts: tuple[int, int], connections: int, predicted: float
) -> None:
    cell = cell_of(keepalive_trial(*counts, connections=connections))
    assert cell.connections_per_worker == dict(zip((100, 101), counts, strict=True))
    assert cell.split_prediction_rps == pytest.approx(predicted)
    assert cell.throughput_rps == pytest.approx(predicted, rel=0.05)
    assert cell.split_prediction_rps <= cell.bound_rps


def test_a_split_contradicted_by_the_load_predicts_nothing() -> None:
    """All slots are busy, which is impossible if one worker has all connections."""
    samples = keepalive_trial(8, 0).observations.connections
    cell = cell_of(with_observations(keepalive_trial(4, 4), connections=samples))
    assert cell.connections_per_worker == {100: 8, 101: 0}
    assert cell.split_prediction_rps is None


def test_connections_are_counted_by_accepts_without_samples() -> None:
    trial = with_keepalive(evidence(server("gthread", 2, 4), 8, slots=[8]))
    unobserved = replace(trial, observations=Observations(missing={"connections": "not Linux"}))
    assert cell_of(unobserved).connections_per_worker == {100: 1, 101: 1}


def test_a_split_needs_keepalive_and_accepts() -> None:
    closing = evidence(server("gthread", 2, 4), 8)
    for trial in (closing, bare(with_keepalive(closing))):
        cell = cell_of(trial)
        assert (cell.connections_per_worker, cell.split_prediction_rps) == (None, None)


def test_keepalive_is_a_separate_class() -> None:
    trial = evidence(SYNC, 8)
    report = report_of(trial, with_keepalive(trial))
    assert [group.keepalive for group in report.classes] == [False, True]
    assert len(report.cells) == 2


def test_each_sampler_has_a_name() -> None:
    samplers = (*observations.SAMPLERS, *observations.OPTIONAL_SAMPLERS)
    assert set(samplers) <= SAMPLERS.keys()
