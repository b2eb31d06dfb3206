"""Throughput in the steady window, of synthetic spans and of ideal servers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.analysis import ServedRequest, ns, serve, spans_of
from workerlab.analysis.samples import TooFewCompleted, Window, steady_window
from workerlab.finding import Finding
from workerlab.model.evidence import Span


def spans(*times: tuple[float, float | None]) -> list[Span]:
    return [Span(1, ns(start), None if end is None else ns(end)) for start, end in times]


def steady(completed: list[Span], connections: int, stopped_ns: int | None = None) -> Window:
    window = steady_window(completed, connections, stopped_ns=stopped_ns)
    assert isinstance(window, Window), window
    return window


def why_not(completed: list[Span], connections: int, stopped_ns: int | None = None) -> str:
    reason = steady_window(completed, connections, stopped_ns=stopped_ns)
    assert isinstance(reason, Finding), reason
    return reason.code


def by_start(completed: list[Span]) -> list[Span]:
    return sorted(completed, key=lambda span: span.start_ns)


def spans_by_start(requests: list[ServedRequest], *, lone_first: bool = False) -> list[Span]:
    """The spans of these requests without the lone first one, by start."""
    return by_start(list(spans_of(requests)))[lone_first:]


@settings(max_examples=150)
@given(
    slots=st.integers(1, 40),
    connections=st.integers(1, 40),
    rounds=st.integers(2, 8),
    delay_s=st.sampled_from([0.001, 0.05, 1.0, 3.7]),
    lone_first=st.booleans(),
)
def test_throughput_of_an_ideal_server_is_what_its_slots_allow(
    slots: int, connections: int, rounds: int, delay_s: float, lone_first: bool
) -> None:
    count = lone_first + rounds * connections
    requests = serve(count, connections, [slots], lambda number: delay_s, lone_first=lone_first)
    window = steady(spans_by_start(requests, lone_first=lone_first), connections)
    assert window.rps == pytest.approx(min(connections, slots) / delay_s, rel=0.01)


@settings(max_examples=100)
@given(
    slots=st.integers(1, 12),
    connections=st.integers(1, 24),
    rounds=st.integers(2, 6),
    delays=st.lists(st.floats(1.0, 1.01), min_size=7, max_size=31),
)
def test_jitter_does_not_raise_throughput_above_the_bound(
    slots: int, connections: int, rounds: int, delays: list[float]
) -> None:
    count = 1 + rounds * connections
    requests = serve(count, connections, [slots], lambda number: delays[number % len(delays)])
    window = steady(spans_by_start(requests, lone_first=True), connections)
    assert window.rps <= min(connections, slots) / 1.0 * 1.01


def test_a_batch_cut_by_the_window_counts_in_part() -> None:
    # 3 workers, 4 connections: counting whole completions gives 3.2 of at most 3.0 requests/s
    requests = serve(21, 4, [3], lambda number: 1.0)
    ends = sorted(request.end_s for request in requests)[1:]
    last = 20 - 4  # the 17th completion, after which a connection is idle
    assert last / (ends[last] - ends[0]) == pytest.approx(3.2)
    assert steady(spans_by_start(requests, lone_first=True), 4).rps == pytest.approx(3.0)


def test_the_window_runs_from_the_first_completion_to_the_first_idle_connection() -> None:
    # Completions at 1 to 5 s; from the fourth on one of 2 connections is idle
    completed = spans((0, 1), (0, 2), (1, 3), (2, 4), (3, 5))
    assert steady(completed, 2).length_s == pytest.approx(3.0)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_requests_give_a_reason(count: int) -> None:
    reason = steady_window(spans(*[(0, 1)] * count), 4)
    assert reason == TooFewCompleted(count, in_flight=4)


@pytest.mark.parametrize(
    "times",
    [[(0, 1)] * 3, [(0, 1), (0, 1.001), (0, 1.002)], [(1, 1)] * 9],
    ids=["empty", "only jitter", "one instant"],
)
def test_a_window_without_length_is_unknown(times: list[tuple[float, float]]) -> None:
    assert why_not(spans(*times), 2) == "SteadyPartTooShort"


def test_spans_without_duration_are_counted_at_their_instant() -> None:
    completed = spans(*[(i / 10, i / 10) for i in range(21)])
    assert steady(completed, 1).rps == pytest.approx(10.0)


def test_a_span_that_never_ended_holds_its_slot() -> None:
    # Two slots for 10 s; the last request of one hangs from 6 s on
    seconds = [(float(i), i + 1.0) for i in range(10)]
    window = steady(by_start(spans(*seconds, *seconds[:6], (6.0, None))), 2, ns(10))
    # In 9 s: 9 on the first slot, 5 on the other, and the hanging one
    assert window.rps == pytest.approx((9 + 5 + 1) / 9)


def test_a_timed_load_is_steady_until_it_stops() -> None:
    # Stopped at 5.5 s: later requests belong to connections that are already closed
    requests = serve(200, 16, [4], lambda number: 1.0, lone_first=False)
    early = [request for request in requests if request.start_s < 6]
    window = steady(spans_by_start(early), 16, ns(5.5))
    assert (window.rps, window.length_s) == pytest.approx((4.0, 4.0))


def test_a_single_batch_until_the_load_stops_is_unknown() -> None:
    requests = serve(40, 4, [4], lambda number: 1.0, lone_first=False)
    assert why_not(spans_by_start(requests), 4, ns(1.5)) == "SteadyPartTooShort"
