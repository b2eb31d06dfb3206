"""What a lone request takes beside its span, where others failed before it."""

from __future__ import annotations

import pytest

from tests.builders.analysis import derived, evidence, ns, recording, with_spans
from workerlab.analysis.slots import overhead_s
from workerlab.model import Span

BESIDE_S = 0.002


def lone(*failed: int) -> float:
    """Of five lone requests that take longer each; those of these numbers failed, and those that
    failed took no time in the app."""
    begun_s = [-1 + 0.1 * number for number in range(5)]
    took_s = [0.01 * (number + 1) for number in range(5)]
    good = [number for number in range(5) if number not in failed]
    spans = [
        Span(100, ns(at), ns(at + (took - BESIDE_S if number in good else 0.0)))
        for number, (at, took) in enumerate(zip(begun_s, took_s, strict=True))
    ]
    trial = evidence()
    trial = recording(
        with_spans(trial, (*spans, *trial.spans.spans)),
        lone_s=tuple(took_s[number] for number in good),
        lone_begun_ns=tuple(ns(begun_s[number]) for number in good),
    )
    return overhead_s(derived(trial))


@pytest.mark.parametrize("failed", [(), (0,), (4,), (1, 3), (0, 2, 4)])
def test_each_response_is_compared_with_its_own_span(failed: tuple[int, ...]) -> None:
    assert lone(*failed) == pytest.approx(BESIDE_S)
