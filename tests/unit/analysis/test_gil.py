"""The share of CPU time without the GIL, from spans with a known number of samples."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from workerlab.analysis.needs import nogil_share_by_route
from workerlab.model.evidence import Span, SpanCost

MS = 1_000_000


def spans(
    held: int, *, count: int = 100, looks: int = 2, cpu_ms: int = 20, queued_ms: int = 0,
    slept: int = 1, route: int = 0,
) -> list[Span]:  # fmt: skip
    """Requests of 25 ms. `held`: the number of all looks that find the GIL held."""
    cost = SpanCost(cpu_ms * MS, queued_ms * MS, route=route, looks=looks, slept=slept)
    return [
        Span(1, 0, 25 * MS, cost=replace(cost, held=held // count + (n < held % count)))
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("requests", "shares"),
    [
        pytest.param(spans(160), {}, id="the GIL is held while they compute"),
        pytest.param(spans(120), {}, id="within the error of the looks"),
        pytest.param(spans(0), {0: 1.0}, id="the GIL is never held"),
        pytest.param(spans(40), {0: 0.75}, id="the GIL is rarely held"),
        # A thread that waits for a core may hold the GIL
        pytest.param(spans(160, cpu_ms=4, queued_ms=16), {}, id="held, waiting for a core"),
        pytest.param(spans(40, cpu_ms=4, queued_ms=16), {0: 0.75}, id="free, waiting for a core"),
        pytest.param([*spans(160), *spans(0, route=1)], {1: 1.0}, id="two routes"),
        pytest.param(spans(0, slept=40), {}, id="short computations"),
        pytest.param(spans(0, count=10), {}, id="few requests"),
        pytest.param(spans(0, cpu_ms=1, looks=1), {}, id="few looks"),
        pytest.param([Span(1, 0, 10)], {}, id="unmeasured"),
    ],
)
def test_the_share_of_computing_without_the_gil_follows_from_samples(
    requests: list[Span], shares: dict[int, float]
) -> None:
    assert nogil_share_by_route(requests) == pytest.approx(shares, rel=1e-15, abs=0)
