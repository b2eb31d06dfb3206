"""The gap between two requests in one slot, where it is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.builders import analysis as make
from workerlab.analysis import TrialData
from workerlab.analysis.needs import mean_in_worker
from workerlab.analysis.slots import queued_gap_s
from workerlab.model.evidence import QueueSample, Span

GAP_S, SPAN_S = 0.002, 0.05


def spans(
    slots: int, rounds: int, *, accepted: bool, gaps_s: Sequence[float] = (GAP_S,)
) -> list[Span]:
    """Spans of one worker with these gaps in each slot. `accepted`: each request was accepted while
    all slots were busy; otherwise the time is unknown."""
    unsorted = []
    for slot in range(slots):
        at_s = 0.001 * slot
        for number in range(rounds):
            accept_ns = make.ns(at_s - 0.01) if accepted else None
            unsorted.append(Span(100, make.ns(at_s), make.ns(at_s + SPAN_S), accept_ns))
            at_s += SPAN_S + gaps_s[number % len(gaps_s)]
    return sorted(unsorted, key=lambda span: span.start_ns)


def trial(
    slots: int,
    rounds: int = 20,
    *,
    queued: int = 0,
    interval_s: float = 0.02,
    accepted: bool = False,
) -> TrialData:
    """A trial with `queued` requests in the accept queue in every sample."""
    data = make.evidence(make.server("gthread", 1, slots), slots + 2)
    data = make.with_spans(data, spans(slots, rounds, accepted=accepted))
    samples = tuple(QueueSample(make.ns(interval_s * n), queued, 2048) for n in range(200))
    return make.with_observations(make.with_record(data, load_end_ns=make.ns(10.0)), queue=samples)


def gap_s(trial: TrialData) -> float | None:
    return queued_gap_s(make.derived(trial))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(("queued", "accepted"), [(1, False), (0, True)])
def test_the_gap_is_measured_while_requests_are_queued(
    slots: int, queued: int, accepted: bool
) -> None:
    """In the kernel's queue, and in the worker's own."""
    assert gap_s(trial(slots, queued=queued, accepted=accepted)) == pytest.approx(GAP_S)


def test_without_waiting_requests_the_gap_is_unknown() -> None:
    assert gap_s(trial(2)) is None
    assert gap_s(trial(2, queued=1, interval_s=1.0)) is None  # samples too far apart
    assert gap_s(trial(2, rounds=3, queued=1)) is None  # too few requests
    assert gap_s(make.evidence(make.server("uvicorn", 2), 8)) is None  # a class without slots


def test_a_free_slot_gives_no_gap() -> None:
    data = make.evidence(make.server("gthread", 1, 2), 2)
    data = make.with_spans(data, spans(1, 20, accepted=True))
    assert gap_s(make.with_record(data, load_end_ns=make.ns(10.0))) is None


def test_a_few_long_gaps_are_ignored() -> None:
    late = spans(1, 20, accepted=False, gaps_s=(GAP_S, GAP_S, 10 * GAP_S))
    assert gap_s(make.with_spans(trial(1, queued=1), late)) == pytest.approx(GAP_S)


def test_overlapping_requests_are_in_the_worker_together() -> None:
    """A request overlaps with none, with three all the time, or with another half of the time."""
    assert mean_in_worker([Span(1, 0, 10), Span(1, 10, 20), Span(2, 0, 20)]) == 1
    assert mean_in_worker([Span(1, 0, 10)] * 4) == 4
    assert mean_in_worker([Span(1, 0, 10), Span(1, 5, 15)]) == pytest.approx((5 + 20 + 5) / 20)
    assert mean_in_worker([replace(Span(1, 0, 10), end_ns=None)]) == 1
