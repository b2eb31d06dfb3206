"""Slots by settings, what spans say by themselves, and what was seen from outside: sums and maxima
where they are known, None where they are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    bare,
    dealt,
    derived,
    evidence,
    judged,
    kept,
    recording,
    seeing,
    server,
)
from workerlab.analysis import analyse
from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import (
    SAMPLERS,
    SamplesMissing,
    Window,
    max_open,
    missing_notes,
    usage,
)
from workerlab.analysis.slots import median_connections
from workerlab.model import (
    ConnectionSample,
    Counters,
    Observations,
    ProcessSample,
    Record,
    Server,
    Span,
    Spans,
    Usage,
)
from workerlab.observe import observations
from workerlab.server.worker_classes import class_named, configured_slots

RECORD = Record(key="x", fault=None)
SECOND = 10**9


@pytest.mark.parametrize(
    ("worker_class", "slots"),
    [
        ("sync", 4),
        ("gthread", 12),
        ("eventlet", 400),
        ("gevent", 400),
        ("tornado", 4),
        ("asgi", None),
        ("uvicorn", None),
    ],
)
def test_slots_by_class(worker_class: str, slots: int | None) -> None:
    assert configured_slots(Server(worker_class, 4, 3, 2048, 100)) == slots


def with_spans(*times: tuple[int, int | None], ended_ns: int = 10**10) -> Facts:
    """A load from 100 to `ended_ns`; these are of worker 1, and another one served none."""
    spans = Spans(tuple(Span(1, start, end) for start, end in times))
    trial = replace(evidence(), spans=spans)
    loaded = recording(trial, load_start_ns=100, load_end_ns=ended_ns, worker_pids=(1, 8))
    return derived(loaded)


def test_the_load_leaves_the_warm_up_out() -> None:
    starts = (50, 200, 100, 99, 201, 150)
    found = with_spans(*((start, start + 5) for start in starts), ended_ns=200)
    assert [span.start_ns for span in found.spans] == [100, 150, 200]


@pytest.mark.parametrize(
    ("times", "most"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2)], 1),  # an end makes room for the start of the same instant
        ([(0, 2), (1, 3)], 2),
        ([(0, None), (5, 6), (7, 8)], 2),
        ([(0, 9), (3, 3)], 2),
        ([(3, 3), (3, 3)], 2),
    ],
)
def test_most_open(times: list[tuple[int, int | None]], most: int) -> None:
    assert max_open([Span(1, start, end) for start, end in times]) == most


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30))))
def test_most_open_is_what_counting_at_every_start_finds(times: list[tuple[int, int]]) -> None:
    some = [Span(1, start, start + length) for start, length in times]
    slow = max((sum(s <= at < s + n for s, n in times) for at, _ in times), default=0)
    assert max_open(some) == slow


def test_requests_per_worker_names_the_idle_ones() -> None:
    assert dict(with_spans((100, 101), (102, 103)).requests_per_worker) == {1: 2, 8: 0}


def test_service_is_of_spans_that_ended() -> None:
    found = with_spans((100, 100 + SECOND), (100, 100 + 3 * SECOND), (100, None))
    assert found.service.mean == pytest.approx(2.0)
    assert with_spans((100, None)).service.mean is None


# --- from outside -----------------------------------------------------------------------------


def process(at_s: float, *values: float | None, rss: int | None = None) -> ProcessSample:
    server_s, tool_s, host_s = values
    return ProcessSample(round(at_s * SECOND), server_s, tool_s, host_s, rss, None)


def test_cores_are_cpu_seconds_per_second() -> None:
    samples = (
        process(0, 0.0, 0.0, 10.0, rss=5),
        process(1, 0.5, 0.1, 11.5, rss=9),
        process(4, 2.0, 0.4, 16.0, rss=7),
    )
    seen = Observations(processes=samples, cores=2)
    assert usage(seen, RECORD, 4.0) == Usage(0.5, 0.1, pytest.approx(0.75), 9, None)
    exact = replace(RECORD, tool_cpu_s=2.0)
    assert usage(seen, exact, 4.0).generator_cores == 0.5
    assert usage(replace(seen, cores=None), RECORD, 4.0).host_busy is None


def test_one_sample_or_none_is_no_rate() -> None:
    one = Observations(processes=(process(0, 1.0, None, None),), cores=2)
    assert usage(one, RECORD, 1.0) == Usage()
    gaps = (process(0, None, 1.0, None), process(1, 1.0, None, None), process(2, 2.0, 3.0, None))
    found = usage(Observations(processes=gaps, cores=2), RECORD, 1.0)
    assert (found.server_cores, found.generator_cores) == (1.0, 1.0)


def test_a_sampler_that_died_sums_up_to_nothing() -> None:
    trial = evidence(SYNC, 8)
    for name, cleared in (
        ("queue", {"accept_queue_max": None, "accept_queue_limit": None}),
        ("processes", {"usage": Usage()}),
        ("counters", {"counters": Counters()}),
    ):
        cell = judged(seeing(trial, missing={name: "it broke"}))
        for field, value in cleared.items():
            assert getattr(cell, field) == value
        assert cell.notes == (SamplesMissing((SAMPLERS[name],), "it broke"),)
    assert judged(trial).accept_queue_max == 4


def test_samplers_that_are_missing_for_one_reason_share_a_note() -> None:
    seen = Observations(missing={"queue": "not Linux", "counters": "not Linux", "processes": "x"})
    assert [note.values for note in missing_notes(seen)] == [
        {"samplers": ("accept queue", "kernel counters"), "why": "not Linux"},
        {"samplers": ("CPU and memory",), "why": "x"},
    ]


# --- kept-alive connections ------------------------------------------------------------------


def held(at_s: float, **per_worker: int) -> ConnectionSample:
    counts = {int(pid[1:]): count for pid, count in per_worker.items()}
    return ConnectionSample(round(at_s * SECOND), {}, {}, counts, 0)


def test_connections_are_the_median_in_the_window_of_every_worker() -> None:
    samples = (held(0, p7=9), held(1, p7=3, p8=1), held(2, p7=4, p8=1), held(3, p7=4), held(9))
    steady = Window(SECOND, 3 * SECOND, 1.0)
    assert median_connections(samples, (9, 8, 7), steady) == {7: 4, 8: 1, 9: 0}
    assert median_connections(samples, (7,), Window(4 * SECOND, 8 * SECOND, 1.0)) is None
    lost = seeing(dealt(7, 1), missing={"connections": "x"})
    assert judged(lost).connections_per_worker == {100: 1, 101: 1}


@pytest.mark.parametrize(
    ("counts", "predicted"), [((4, 4), 8.0), ((7, 1), 5.0), ((8, 0), 4.0), ((5, 3), 7.0)]
)
def test_the_split_bounds_the_throughput(counts: tuple[int, int], predicted: float) -> None:
    cell = judged(dealt(*counts))
    assert cell.connections_per_worker == {100: counts[0], 101: counts[1]}
    assert cell.split_prediction_rps == pytest.approx(predicted)
    assert cell.throughput_rps == pytest.approx(predicted, rel=0.05)
    assert cell.split_prediction_rps <= (cell.bound_rps or 0)


def test_more_connections_than_there_are_predict_no_more_than_the_bound() -> None:
    assert judged(dealt(6, 6, connections=4)).split_prediction_rps == pytest.approx(4.0)


def test_a_dealing_that_the_load_refutes_predicts_nothing() -> None:
    """All slots work, which they could not if one worker held all connections."""
    others = dealt(8, 0).observations.connections
    cell = judged(seeing(dealt(4, 4), connections=others))
    assert cell.connections_per_worker == {100: 8, 101: 0}
    assert cell.split_prediction_rps is None


def test_without_the_kernels_table_the_accepts_count() -> None:
    asked = server("gthread", 2, 4)
    trial = kept(evidence(asked, 8, slots=[8]))
    blind = replace(trial, observations=Observations(missing={"connections": "not Linux"}))
    assert judged(blind).connections_per_worker == {100: 1, 101: 1}
    untimed = judged(bare(blind))
    assert (untimed.connections_per_worker, untimed.split_prediction_rps) == (None, None)


def test_connections_that_are_not_kept_have_no_split() -> None:
    cell = judged(evidence(server("gthread", 2, 4), 8))
    assert (cell.connections_per_worker, cell.split_prediction_rps) == (None, None)


def test_kept_alive_is_a_group_of_its_own() -> None:
    trial = evidence(SYNC, 8)
    report = analyse("r", {}, [trial, kept(trial)])
    assert [group.keepalive for group in report.classes] == [False, True]
    assert len(report.cells) == 2


def test_slots_of_a_worker_and_of_all() -> None:
    asked = Server("gthread", 2, 4, 64, 1000)
    row = class_named("gthread")
    assert (row.slots_per_worker(asked), configured_slots(asked)) == (4, 8)
    one = Server("uvicorn", 1, 4, 64, 1000)
    row = class_named("uvicorn")
    assert (row.slots_per_worker(one), configured_slots(one)) == (None, None)
    assert configured_slots(Server("gevent", 3, 4, 64, 10)) == 30
    assert configured_slots(Server("tornado", 3, 4, 64, 10)) == 3


def test_each_sampler_has_a_name_where_it_is_missing() -> None:
    samplers = (*observations.SAMPLERS, *observations.OPTIONAL_SAMPLERS)
    assert set(samplers) <= SAMPLERS.keys()
