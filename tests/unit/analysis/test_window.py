"""Throughput in the steady part: spans with known answers, and ideal servers of every shape."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.analysis import ns, serve, spans_of
from workerlab.analysis.samples import TooFewCompleted, Window, steady_window
from workerlab.finding import Finding
from workerlab.model import Span


def spans(*times: tuple[float, float | None]) -> list[Span]:
    return [Span(1, ns(start), None if end is None else ns(end)) for start, end in times]


def steady(
    some: list[Span], connections: int, *, lone_first: bool = False, stopped_ns: int | None = None
) -> Window:
    found = steady_window(some, connections, lone_first=lone_first, stopped_ns=stopped_ns)
    assert isinstance(found, Window), found
    return found


def why_not(some: list[Span], connections: int, stopped_ns: int | None = None) -> str:
    found = steady_window(some, connections, lone_first=False, stopped_ns=stopped_ns)
    assert isinstance(found, Finding), found
    return found.code


def by_start(done: list[Span]) -> list[Span]:
    return sorted(done, key=lambda span: span.start_ns)


@settings(max_examples=150)
@given(
    slots=st.integers(1, 40),
    connections=st.integers(1, 40),
    rounds=st.integers(2, 8),
    delay_s=st.sampled_from([0.001, 0.05, 1.0, 3.7]),
    lone_first=st.booleans(),
)
def test_an_ideal_server_gives_what_its_slots_allow(
    slots: int, connections: int, rounds: int, delay_s: float, lone_first: bool
) -> None:
    done = serve(
        lone_first + rounds * connections,
        connections,
        [slots],
        lambda number: delay_s,
        lone_first=lone_first,
    )
    rate = steady(by_start(list(spans_of(done))), connections, lone_first=lone_first)
    assert rate.rps == pytest.approx(min(connections, slots) / delay_s, rel=0.01)


@settings(max_examples=100)
@given(
    slots=st.integers(1, 12),
    connections=st.integers(1, 24),
    rounds=st.integers(2, 6),
    delays=st.lists(st.floats(1.0, 1.01), min_size=7, max_size=31),
)
def test_jitter_never_lifts_it_above_the_bound(
    slots: int, connections: int, rounds: int, delays: list[float]
) -> None:
    done = serve(
        1 + rounds * connections, connections, [slots], lambda number: delays[number % len(delays)]
    )
    rate = steady(by_start(list(spans_of(done))), connections, lone_first=True)
    assert rate.rps <= min(connections, slots) / 1.0 * 1.01


def test_a_batch_cut_by_the_edge_counts_by_its_fraction() -> None:
    # 3 workers, 4 connections: counting whole completions gives 3.2 of at most 3.0 requests/s.
    done = serve(21, 4, [3], lambda number: 1.0)
    ends = sorted(one.end_s for one in done)[1:]
    window = 20 - 4  # from the first of 20 completions to number 17
    assert window / (ends[window] - ends[0]) == pytest.approx(3.2)
    rate = steady(by_start(list(spans_of(done))), 4, lone_first=True)
    assert rate.rps == pytest.approx(3.0)


def test_the_window_runs_from_the_first_completion_to_the_first_idle_connection() -> None:
    # 2 connections, 5 requests: completions at 1, 2, 3, 4, 5; from the fourth on one is idle.
    some = spans((0, 1), (0, 2), (1, 3), (2, 4), (3, 5))
    assert steady(some, 2).length_s == pytest.approx(3.0)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_requests_are_unknown_with_a_reason(count: int) -> None:
    found = steady_window(spans(*[(0, 1)] * count), 4, lone_first=False)
    assert found == TooFewCompleted(count, in_flight=4)


def test_an_empty_window_is_unknown() -> None:
    assert why_not(spans((0, 1), (0, 1), (0, 1)), 2) == "SteadyPartTooShort"


def test_a_window_of_mere_jitter_is_unknown() -> None:
    assert why_not(spans((0, 1), (0, 1.001), (0, 1.002)), 2) == "SteadyPartTooShort"


def test_spans_without_duration_are_counted_at_their_instant() -> None:
    some = spans(*[(i / 10, i / 10) for i in range(21)])
    assert steady(some, 1).rps == pytest.approx(10.0)


def test_all_spans_at_one_instant_are_unknown() -> None:
    assert why_not(spans(*[(1, 1)] * 9), 2) == "SteadyPartTooShort"


def test_a_span_that_never_ended_holds_its_slot() -> None:
    # Two slots for 10 s; one of them hangs in its last request from 6 s on.
    whole = [(float(i), i + 1.0) for i in range(10)]
    hung = [(float(i), i + 1.0) for i in range(6)] + [(6.0, None)]
    rate = steady(by_start(spans(*whole, *hung)), 2, stopped_ns=ns(10))
    # 9 on the first slot, 5 + 1 (hanging, counted as one request) on the other, in 9 s.
    assert rate.rps == pytest.approx((9 + 5 + 1) / 9)


def test_a_tool_that_runs_for_a_time_is_steady_to_its_last_completion() -> None:
    # 4 workers, 16 connections, stopped at 5.5 s: what follows answers connections that have gone.
    done = [one for one in serve(200, 16, [4], lambda n: 1.0, lone_first=False) if one.start_s < 6]
    rate = steady(by_start(list(spans_of(done))), 16, stopped_ns=ns(5.5))
    assert rate.rps == pytest.approx(4.0)
    assert rate.length_s == pytest.approx(4.0)


def test_only_one_batch_within_the_time_is_unknown() -> None:
    done = serve(40, 4, [4], lambda number: 1.0, lone_first=False)
    assert why_not(by_start(list(spans_of(done))), 4, ns(1.5)) == "SteadyPartTooShort"
