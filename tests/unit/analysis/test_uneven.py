"""Slots that idle while requests wait elsewhere, by spans or by keep-alive connections."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    bare,
    derived,
    diagnosis_types,
    evidence,
    gthread,
    keepalive_trial,
    server,
    with_cell,
    with_record,
    with_spans,
)
from tests.builders.runs import recorded
from workerlab.analysis import TrialData
from workerlab.analysis.diagnosis.slots import UnevenDealing
from workerlab.analysis.slots import Distribution, uneven_distribution
from workerlab.experiments.reading import trial_data
from workerlab.run_store import load
from workerlab.server.worker_classes import class_named


def distribution(trial: TrialData) -> Distribution | None:
    return uneven_distribution(derived(trial))


def test_idle_slots_are_those_that_could_have_served_waiting_requests() -> None:
    """Two workers of two threads: three connections on one worker, one on the other."""
    settings = server("gthread", 2, 2)
    trial = evidence(settings, 4, slots=[2, 2], deal=lambda number: int(number % 4 == 0), rounds=9)
    dealing = distribution(trial)
    assert dealing.idle == pytest.approx(1.0, abs=0.35)
    assert dealing.slots == 4
    assert dealing.taken[100] == pytest.approx(1.0, abs=0.01)
    assert dealing.taken[101] < 0.8


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.sampled_from(["sync", "gevent", "eventlet"]))
def test_one_queue_for_all_is_never_uneven(connections: int, worker_class: str) -> None:
    assert distribution(evidence(server(worker_class), connections)) is None


def test_a_sync_worker_holds_no_waiting_requests() -> None:
    """It accepts the next request right after a response, faster than the overhead of a lone
    request, while the other worker is idle."""
    base = evidence(server("sync", 2), 4, delay_s=0.001, rounds=40)
    first = base.spans.spans[0]
    lone_ns = first.start_ns - NS // 2
    busy = [
        replace(first, start_ns=at, accept_ns=at - 800_000, end_ns=at + 1_000_000)
        for at in (lone_ns, *range(first.start_ns, first.start_ns + 40_000_000, 2_000_000))
    ]
    trial = with_record(with_spans(base, busy), lone_s=(0.005,))
    assert distribution(trial) is None
    gthread_trial = with_cell(trial, server=server("gthread", 2, 1))
    assert distribution(replace(gthread_trial, worker_class=class_named("gthread"))) is not None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(2, 4))
def test_even_dealing_is_not_uneven(rounds: int, threads: int, workers: int) -> None:
    settings, slots = server("gthread", workers, threads), [threads] * workers
    connections = workers * threads * rounds
    trial = evidence(settings, connections, slots=slots, deal=lambda number: number % workers)
    assert distribution(trial) is None


@pytest.mark.parametrize(("counts", "idle"), [((8, 0), 4), ((7, 1), 3), ((6, 2), 2)])
def test_slots_idle_if_a_worker_has_too_few_connections(
    counts: tuple[int, int], idle: float
) -> None:
    assert distribution(keepalive_trial(*counts)).idle == pytest.approx(idle)


def test_connections_can_be_uneven_without_idle_slots() -> None:
    """Eleven connections share four slots, and five the other four."""
    dealing = distribution(keepalive_trial(11, 5, connections=16))
    assert dealing.idle is None
    assert dealing.times == pytest.approx(2.2)
    for counts in ((4, 4), (8, 8), (9, 7)):
        assert distribution(keepalive_trial(*counts, connections=sum(counts))) is None


def test_dealing_is_unknown_without_observations() -> None:
    assert distribution(bare(gthread(16))) is None


def test_a_loop_that_serves_one_at_a_time_has_one_slot() -> None:
    assert {distribution(trial).slots for trial in trial_data(load(recorded("blocked")))} == {4}


def test_uneven_dealing_is_diagnosed_below_all_slots() -> None:
    trial = evidence(server("tornado", 2), 2, slots=[1, 1], deal=lambda number: 0)
    assert UnevenDealing in diagnosis_types(trial)
