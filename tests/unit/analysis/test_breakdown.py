"""The breakdown of a response time: known answers, and what must hold for any load."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as changed

from tests.builders.analysis import (
    SYNC,
    bare,
    evidence,
    gthread,
    judged,
    kept,
    noted,
    ns,
    saying,
    seeing,
    server,
    with_spans,
)
from workerlab.analysis import TrialData
from workerlab.analysis.samples import SAMPLERS, Window
from workerlab.model import Breakdown, Server, Span, Timing

PARTS = ("connect_s", "accept_queue_s", "in_worker_s", "service_s", "transfer_s")


def parts(found: Breakdown) -> list[float | None]:
    return [getattr(found, name) for name in PARTS]


@pytest.mark.parametrize("tool", ["ab", "fast"])
def test_a_sync_server_makes_requests_wait_in_the_accept_queue(tool: str) -> None:
    found = judged(evidence(SYNC, 8, tool=tool)).breakdown
    assert found.exact == (tool == "fast")
    assert found.response_s == pytest.approx(2.0)
    assert parts(found) == pytest.approx([0, 1, 0, 1, 0], abs=1e-6)
    assert found.unattributed_s == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("tool", ["ab", "fast"])
def test_what_was_accepted_waits_in_the_worker(tool: str) -> None:
    asked = server("gthread", 2, 2)
    trial = evidence(asked, 8, tool=tool, slots=[2, 2], deal=lambda number: number % 2)
    assert parts(judged(trial).breakdown) == pytest.approx([0, 0, 1, 1, 0], abs=1e-6)


def shifted(trial: TrialData, change: Callable[[Timing], Timing]) -> TrialData:
    assert trial.measurement is not None
    return saying(trial, timings=tuple(map(change, trial.measurement.timings)))


def test_connect_and_transfer_are_the_clients() -> None:
    """Of 1.3 s, the request connects for 0.06, is accepted 0.04 and begun 0.1 later, and takes
    0.2 to come back."""
    trial = shifted(
        evidence(SYNC, 4, tool="fast", delay_s=1.3),
        lambda timing: changed(timing, connect_s=0.06),
    )
    spans = (
        changed(
            span,
            accept_ns=span.start_ns + 10**8,
            start_ns=span.start_ns + 2 * 10**8,
            end_ns=span.start_ns + 11 * 10**8,
        )
        for span in trial.spans.spans
    )
    found = judged(with_spans(trial, spans)).breakdown
    assert found.exact
    assert parts(found) == pytest.approx([0.06, 0.04, 0.1, 0.9, 0.2])
    assert found.response_s == pytest.approx(1.3)


def test_a_reused_connection_waits_in_the_worker_from_the_moment_it_is_asked() -> None:
    trial = shifted(
        evidence(SYNC, 8, tool="fast"), lambda timing: changed(timing, reused=True, connect_s=0.0)
    )
    old = (changed(span, accept_ns=ns(0)) for span in trial.spans.spans)
    found = judged(with_spans(trial, old)).breakdown
    assert found.exact
    assert parts(found) == pytest.approx([0, 0, 1, 1, 0], abs=1e-6)


def without_accept(trial: TrialData, number: int) -> TrialData:
    spans = list(trial.spans.spans)
    spans[number] = changed(spans[number], accept_ns=None)
    return with_spans(trial, spans)


def test_one_success_that_was_not_followed_makes_it_an_estimate() -> None:
    base = evidence(SYNC, 8, tool="fast")
    assert judged(without_accept(base, 0)).breakdown.exact  # the lone one is not in the window
    assert not judged(without_accept(base, 20)).breakdown.exact
    assert not judged(saying(base, origin_ns=None)).breakdown.exact
    moved = shifted(base, lambda timing: changed(timing, start_s=timing.start_s + 5))
    assert not judged(moved).breakdown.exact  # clocks that do not agree


def test_a_failure_of_the_window_is_left_out_and_counted() -> None:
    base = evidence(SYNC, 8, tool="fast")
    said = base.measurement
    assert said is not None
    timings = list(said.timings)
    timings[20] = changed(timings[20], end_s=None, status=None, cause="reset")
    counted = {"requests": 40, "failed": 1, "errors": {"reset": 1}}
    cell = judged(saying(base, timings=tuple(timings), **counted))
    assert cell.breakdown.exact
    assert cell.breakdown.service_s == pytest.approx(1.0, rel=0.01)
    assert noted(cell)["FailuresLeftOut"].values == {"requests": 1}


def test_what_has_no_source_is_missing_and_not_spread() -> None:
    cell = judged(bare(evidence(SYNC, 8)))
    found = cell.breakdown
    assert (found.accept_queue_s, found.in_worker_s) == (None, None)
    assert found.service_s == pytest.approx(1.0)
    assert found.unattributed_s == pytest.approx(1.0)
    assert set(found.sources) == {"connect", "service", "transfer"}
    assert (cell.accept_queue_max, cell.counters.listen_overflows) == (None, None)
    (missing,) = cell.notes
    assert (missing.code, missing.values["why"]) == ("SamplesMissing", "not Linux")
    names = ("queue", "processes", "connections", "counters")
    assert missing.values["samplers"] == tuple(SAMPLERS[name] for name in names)


def test_wrk_tells_neither_connect_nor_transfer() -> None:
    base = evidence(SYNC, 8, tool="wrk", timed=True)
    found = judged(saying(base, exact_mean=False, connects_s=())).breakdown
    assert (found.connect_s, found.transfer_s) == (None, None)
    assert set(found.sources) == {"accept_queue", "in_worker", "service"}


def test_kept_connections_wait_as_unread_requests() -> None:
    """8 connections of 4 a worker, 2 of which wait: half of the time is waiting."""
    asked = server("gthread", 2, 2)
    trial = kept(evidence(asked, 8, slots=[2, 2], deal=lambda number: number % 2))
    found = judged(trial).breakdown
    assert found.in_worker_s == pytest.approx(1.0, rel=0.06)
    assert found.sources["in_worker"] == "unread requests, by Little's law"
    few = seeing(trial, connections=trial.observations.connections[:9])
    assert judged(few).breakdown.in_worker_s is None


def test_too_few_samples_are_no_mean() -> None:
    trial = evidence(SYNC, 8)
    few = seeing(trial, queue=trial.observations.queue[::60])
    assert judged(few).breakdown.accept_queue_s is None


def test_samples_weigh_as_long_as_they_hold() -> None:
    steady = Window(0, 100, 1.0)
    samples = [(-5, 9), (0, 1), (90, 5), (100, 7), (120, 9)]
    assert steady.mean_level(samples, 3) == pytest.approx(1.4)
    assert steady.mean_level([(0, 1), (90, 5)], 3) is None
    assert steady.mean_level([(5, 1), (5, 5)], 2) is None


@settings(max_examples=40)
@given(
    workers=st.integers(1, 5),
    connections=st.integers(1, 20),
    tool=st.sampled_from(["ab", "fast"]),
    uneven=st.booleans(),
    delay_s=st.sampled_from([0.02, 0.5]),
    spread=st.floats(0, 0.9),
    early_s=st.floats(0, 0.02),
    see=st.booleans(),
)
def test_no_part_is_negative_and_all_add_up(
    workers: int,
    connections: int,
    tool: str,
    uneven: bool,
    delay_s: float,
    spread: float,
    early_s: float,
    see: bool,
) -> None:
    """`early_s`: spans that close after the client has the answer."""
    trial = evidence(
        Server("gthread", workers, 1, 64, 1000),
        connections,
        tool=tool,
        rounds=4,
        delay_s=delay_s,
        delays=lambda number: delay_s * (1 + spread * (number * 7 % 5)),
        slots=[1] * workers,
        deal=(lambda number: number * number % workers) if uneven else None,
    )
    late = tuple(
        Span(s.pid, s.start_ns, (s.end_ns or 0) + round(early_s * 1e9), s.accept_ns, s.request_id)
        for s in trial.spans.spans
    )
    trial = replace(trial, spans=replace(trial.spans, spans=late))
    found = judged(trial if see else bare(trial)).breakdown
    if found.response_s is None:
        return
    known = [part for part in parts(found) if part is not None]
    assert all(part >= 0 for part in known)
    assert found.unattributed_s is not None
    assert sum(known) + found.unattributed_s == pytest.approx(found.response_s)
    assert found.exact == (tool == "fast" and see)


def test_the_simulated_gthread_waits_inside() -> None:
    found = judged(gthread(16)).breakdown
    assert found.accept_queue_s == 0
    assert found.in_worker_s == pytest.approx((found.response_s or 0) - 1, rel=0.01)
