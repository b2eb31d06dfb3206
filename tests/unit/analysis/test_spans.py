"""Slots by settings, and what spans say by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis import spans as spanning
from harness.model import Record, Server, Span, Spans
from harness.server.worker_classes import configured_slots


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


def test_the_load_leaves_the_warm_up_out() -> None:
    record = Record("k", None, load_start_ns=100, load_end_ns=200)
    some = Spans(tuple(Span(1, start, start + 5) for start in (50, 200, 100, 99, 201, 150)))
    assert [span.start_ns for span in spanning.of_load(some, record)] == [100, 150, 200]
    assert spanning.of_load(some, Record("k", None)) == ()


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
    assert spanning.most_open([Span(1, start, end) for start, end in times]) == most


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30))))
def test_most_open_is_what_counting_at_every_start_finds(times: list[tuple[int, int]]) -> None:
    some = [Span(1, start, start + length) for start, length in times]
    slow = max((sum(s <= at < s + n for s, n in times) for at, _ in times), default=0)
    assert spanning.most_open(some) == slow


def test_requests_per_worker_names_the_idle_ones() -> None:
    some = [Span(7, 0, 1), Span(9, 0, 1), Span(7, 2, 3)]
    assert dict(spanning.per_worker(some, (7, 8))) == {7: 2, 8: 0, 9: 1}


def test_service_is_of_spans_that_ended() -> None:
    some = [Span(1, 0, 10**9), Span(1, 0, 3 * 10**9), Span(1, 0, None)]
    assert spanning.service(some).mean == pytest.approx(2.0)
    assert spanning.service([Span(1, 0, None)]).mean is None
