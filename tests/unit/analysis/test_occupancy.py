"""The overhead of lone requests beside their spans, where some lone requests failed."""

from __future__ import annotations

import pytest

from tests.builders.analysis import derived, evidence, ns, with_record, with_spans
from workerlab.analysis.slots import overhead_s
from workerlab.model.evidence import Span

OVERHEAD_S = 0.002


def lone_overhead_s(*failed: int) -> float:
    """The overhead of five lone requests, each longer than the last; these numbers `failed` and
    took no time in the app."""
    begun_s = [-1 + 0.1 * number for number in range(5)]
    lengths_s = [0.01 * (number + 1) for number in range(5)]
    good = [number for number in range(5) if number not in failed]
    spans = [
        Span(100, ns(at_s), ns(at_s + (length_s - OVERHEAD_S if number in good else 0.0)))
        for number, (at_s, length_s) in enumerate(zip(begun_s, lengths_s, strict=True))
    ]
    trial = evidence()
    trial = with_record(
        with_spans(trial, (*spans, *trial.spans.spans)),
        lone_s=tuple(lengths_s[number] for number in good),
        lone_begun_ns=tuple(ns(begun_s[number]) for number in good),
    )
    return overhead_s(derived(trial))


@pytest.mark.parametrize("failed", [(), (0,), (4,), (1, 3), (0, 2, 4)])
def test_each_response_is_compared_with_its_own_span(failed: tuple[int, ...]) -> None:
    assert lone_overhead_s(*failed) == pytest.approx(OVERHEAD_S)
