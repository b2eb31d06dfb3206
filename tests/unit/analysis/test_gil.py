"""CPU that needs no GIL, by looks of which it is known what they found."""

from __future__ import annotations

import pytest

from workerlab.analysis.slots import nogil_share_by_route
from workerlab.model import Span, SpanCost

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
    """`held`: of all looks."""
    each = [held // count + (n < held % count) for n in range(count)]
    return [
        Span(
            *(1, 0, length_ms * MS),
            cost=SpanCost(
                *(cpu_ms * MS, queued_ms * MS),
                route=route, looks=looks, held=one, slept=slept,
            ),
        )
        for one in each
    ]  # fmt: skip


def test_what_is_found_held_as_long_as_they_compute_needs_it() -> None:
    assert nogil_share_by_route(spans(100, held=160)) == {}
    assert nogil_share_by_route(spans(100, held=120)) == {}  # within what looks tell


def test_what_never_holds_it_needs_none() -> None:
    assert nogil_share_by_route(spans(100, held=0)) == {0: 1.0}
    assert nogil_share_by_route(spans(100, held=40)) == {0: pytest.approx(0.75)}


def test_who_waits_for_a_core_may_hold_it() -> None:
    free, held = (spans(100, held=count, cpu_ms=4, queued_ms=16) for count in (40, 160))
    assert nogil_share_by_route(free) == {0: pytest.approx(0.75)}
    assert nogil_share_by_route(held) == {}


def test_routes_differ() -> None:
    both = [*spans(100, held=160), *spans(100, held=0, route=1)]
    assert nogil_share_by_route(both) == {1: 1.0}


def test_short_pieces_and_few_looks_say_nothing() -> None:
    assert nogil_share_by_route(spans(100, held=0, slept=40)) == {}
    assert nogil_share_by_route(spans(10, held=0)) == {}
    assert nogil_share_by_route(spans(100, held=0, cpu_ms=1, looks=1)) == {}
    assert nogil_share_by_route([Span(1, 0, 10)]) == {}
