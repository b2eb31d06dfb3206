"""The share of CPU time without the GIL, from spans with a known number of samples."""

from __future__ import annotations

import pytest

from workerlab.analysis.needs import nogil_share_by_route
from workerlab.model.evidence import Span, SpanCost

MS = 1_000_000


def spans(
    count: int,
    *,
    held: int,
    looks: int = 2,
    cpu_ms: int = 20,
    queued_ms: int = 0,
    length_ms: int = 25,
    slept: int = 1,
    route: int = 0,
) -> list[Span]:
    """`held`: the number of all looks that find the GIL held."""
    held_by_span = [held // count + (n < held % count) for n in range(count)]
    return [
        Span(
            *(1, 0, length_ms * MS),
            cost=SpanCost(
                *(cpu_ms * MS, queued_ms * MS),
                route=route, looks=looks, held=span_held, slept=slept,
            ),
        )
        for span_held in held_by_span
    ]  # fmt: skip


def test_requests_that_hold_the_gil_while_they_compute_need_it() -> None:
    assert nogil_share_by_route(spans(100, held=160)) == {}
    assert nogil_share_by_route(spans(100, held=120)) == {}  # within the error of the looks


def test_requests_that_rarely_hold_the_gil_compute_without_it() -> None:
    assert nogil_share_by_route(spans(100, held=0)) == {0: 1.0}
    assert nogil_share_by_route(spans(100, held=40)) == {0: pytest.approx(0.75)}


def test_a_thread_waiting_for_a_core_may_hold_the_gil() -> None:
    free, held = (spans(100, held=count, cpu_ms=4, queued_ms=16) for count in (40, 160))
    assert nogil_share_by_route(free) == {0: pytest.approx(0.75)}
    assert nogil_share_by_route(held) == {}


def test_shares_are_by_route() -> None:
    both = [*spans(100, held=160), *spans(100, held=0, route=1)]
    assert nogil_share_by_route(both) == {1: 1.0}


def test_short_computations_and_few_looks_give_no_share() -> None:
    assert nogil_share_by_route(spans(100, held=0, slept=40)) == {}
    assert nogil_share_by_route(spans(10, held=0)) == {}
    assert nogil_share_by_route(spans(100, held=0, cpu_ms=1, looks=1)) == {}
    assert nogil_share_by_route([Span(1, 0, 10)]) == {}
