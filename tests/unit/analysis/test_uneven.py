"""Slots that idle while requests wait elsewhere: seen moment by moment, or by kept connections."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    SYNC,
    asking,
    bare,
    dealt,
    derived,
    evidence,
    gthread,
    kinds,
    recording,
    server,
    with_spans,
)
from tests.builders.runs import recorded
from workerlab.analysis.diagnosis.slots import UnevenDealing
from workerlab.analysis.slots import uneven_dealing
from workerlab.experiments.reading import trial_data
from workerlab.run_store import load
from workerlab.server.worker_classes import class_named


def test_idle_slots_are_those_that_could_have_served() -> None:
    """Two threads each: three requests for one worker and one for the other."""
    trial = evidence(
        server("gthread", 2, 2), 4, slots=[2, 2], deal=lambda number: int(number % 4 == 0), rounds=9
    )
    found = uneven_dealing(derived(trial))
    assert found is not None
    assert found.idle == pytest.approx(1.0, abs=0.35)
    assert found.slots == 4
    assert found.taken[100] == pytest.approx(1.0, abs=0.01)
    assert found.taken[101] < 0.8


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.sampled_from(["sync", "gevent", "eventlet"]))
def test_one_queue_for_all_is_never_uneven(connections: int, worker_class: str) -> None:
    assert uneven_dealing(derived(evidence(server(worker_class), connections))) is None


def test_a_sync_worker_holds_nothing_that_waits() -> None:
    """It accepts the next one as soon as it has answered, in less time than a lone request takes
    beside its span, while the other worker has nothing to do."""
    base = evidence(server("sync", 2), 4, delay_s=0.001, rounds=40)
    first = base.spans.spans[0]
    busy = [
        replace(first, start_ns=at, accept_ns=at - 800_000, end_ns=at + 1_000_000)
        for at in (
            first.start_ns - NS // 2,  # the lone one
            *range(first.start_ns, first.start_ns + 40_000_000, 2_000_000),
        )
    ]
    trial = recording(with_spans(base, busy), lone_s=(0.005,))
    assert uneven_dealing(derived(trial)) is None
    threads = asking(trial, server=server("gthread", 2, 1))
    of_threads = replace(threads, worker_class=class_named("gthread"))
    assert uneven_dealing(derived(of_threads)) is not None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(2, 4))
def test_even_dealing_is_not_uneven(rounds: int, threads: int, workers: int) -> None:
    connections = workers * threads * rounds
    trial = evidence(
        server("gthread", workers, threads),
        connections,
        slots=[threads] * workers,
        deal=lambda number: number % workers,
    )
    assert uneven_dealing(derived(trial)) is None


@pytest.mark.parametrize(("counts", "idle"), [((8, 0), 4), ((7, 1), 3), ((6, 2), 2)])
def test_kept_connections(counts: tuple[int, int], idle: float) -> None:
    found = uneven_dealing(derived(dealt(*counts)))
    assert found is not None
    assert found.idle == pytest.approx(idle)


def test_none_idles_and_yet_some_wait() -> None:
    """Eleven connections share four slots, and five share the other four."""
    found = uneven_dealing(derived(dealt(11, 5, connections=16)))
    assert found is not None
    assert found.idle is None
    assert found.times == pytest.approx(2.2)
    for counts in ((4, 4), (8, 8), (9, 7)):
        assert uneven_dealing(derived(dealt(*counts, connections=sum(counts)))) is None


def test_what_was_not_seen_is_not_said() -> None:
    assert uneven_dealing(derived(bare(gthread(16)))) is None


def test_a_loop_that_serves_one_at_a_time_has_one_slot() -> None:
    run = load(recorded("blocked"))
    facts = [derived(trial) for trial in trial_data(run)]
    every = [uneven_dealing(one) for one in facts]
    assert all(one is not None and one.slots == 4 for one in every)


def test_below_all_slots_it_is_said_as_well() -> None:
    """Whatever the throughput: two requests for one of two workers, of one slot each."""
    trial = evidence(server("tornado", 2), 2, slots=[1, 1], deal=lambda number: 0)
    assert UnevenDealing in kinds(trial)
    assert UnevenDealing not in kinds(evidence(SYNC, 8))
