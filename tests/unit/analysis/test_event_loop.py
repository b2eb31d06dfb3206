"""Event loop delays from synthetic beats, split by cause."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    cell_of,
    derived,
    evidence,
    server,
    with_observations,
    with_record,
    with_spans,
)
from workerlab.analysis import TrialData
from workerlab.analysis.diagnosis import loop
from workerlab.model.evidence import Beat, Beats, Pause
from workerlab.report.values import text

MS = 1_000_000


def beat(
    at_s: float = 0.0,
    *,
    late: float = 0.0,
    cpu: float = 0.0,
    queued: float = 0.0,
    others: tuple[float, float] = (0.0, 0.0),
    pid: int = 100,
) -> Beat:
    """A beat due after 20 ms, `at_s` after the load began; all other times in ms."""
    times_ms = (20 + late, late, cpu, queued, *others)
    times_ns = (round(time_ms * MS) for time_ms in times_ms)
    return Beat(pid, 1_000_000_000 + round(at_s * 1000 * MS), *times_ns)


def row(length_s: float = 30.0, pid: int = 100, interval: int = 0, **late: float) -> list[Beat]:
    """Consecutive beats, of which one in `interval` is late by these times in ms."""
    beats, at_s = list[Beat](), 0.0
    while at_s < length_s:
        is_late = interval and (len(beats) + 1) % interval == 0
        latest = beat(at_s, pid=pid, **(late if is_late else {}))
        at_s += latest.length_ns / 1e9
        beats.append(replace(latest, at_ns=latest.at_ns + latest.length_ns))
    return beats


def with_beats(trial: TrialData, *rows: Iterable[Beat]) -> TrialData:
    return replace(trial, beats=Beats(tuple(itertools.chain(*rows))))


ASGI = evidence(server("asgi", 2), 8, slots=[8])


def use_of(*rows: Iterable[Beat], trial: TrialData = ASGI) -> loop.LoopUse:
    return loop.loop_use(derived(with_beats(trial, *rows)))


@pytest.mark.parametrize(
    ("late_beat", "blocked_ms"),
    [
        (beat(late=40), 40),
        (beat(late=40, cpu=10), 30),
        (beat(late=40, cpu=45), 0),
        (beat(late=40, queued=15, cpu=5), 20),
        (beat(late=40, others=(30, 0)), 10),
        (beat(late=40, others=(5, 30)), 5),
        (beat(late=0, cpu=5), 0),
    ],
)
def test_lateness_explained_by_other_causes_is_not_blocking(
    late_beat: Beat, blocked_ms: float
) -> None:
    assert loop.unexplained_ns(late_beat) == blocked_ms * MS


@given(*[st.integers(0, 10**12)] * 5)
def test_blocked_time_is_at_most_the_lateness(
    late: int, cpu: int, queued: int, others_cpu: int, others_queued: int
) -> None:
    late_beat = Beat(1, 1, late + 20 * MS, late, cpu, queued, others_cpu, others_queued)
    assert 0 <= loop.unexplained_ns(late_beat) <= late


@pytest.mark.parametrize(
    ("beats", "alarms"),
    [
        (row(interval=20, late=30.0), True),
        (row(interval=20, late=30.0, cpu=30.0), True),  # a long computation
        (row(interval=20, late=30.0, queued=25.0), False),
        (row(interval=200, late=30.0), False),  # half a per cent of the beats
        (row(interval=2, late=9.0), False),
    ],
)
def test_late_loops_are_worth_sampling(beats: list[Beat], alarms: bool) -> None:
    assert loop.worth_sampling(derived(with_beats(ASGI, beats))) == alarms


def test_loops_are_ordered_by_the_share_of_time_they_are_blocked() -> None:
    use = use_of(row(pid=100), row(pid=101, interval=4, late=120.0, cpu=20.0))
    worst, idle = use.workers
    assert worst.blocked == pytest.approx(100 / 200, rel=0.1)
    assert worst.computing == pytest.approx(20 / 200, rel=0.1)
    assert (worst.longest_s, worst.core_wait) == (pytest.approx(0.1), 0)
    assert worst.late == pytest.approx(worst.beats / 4, abs=1)
    assert (idle.blocked, idle.late, idle.longest_s) == (0, 0, 0)


def test_core_wait_and_other_threads_are_not_blocking() -> None:
    beats = [beat(2 + n / 10, late=80, queued=30, others=(20, 10)) for n in range(20)]
    worst = use_of(beats).worst
    assert worst.core_wait == pytest.approx(0.3)
    assert worst.blocked == pytest.approx(0.2)


def test_only_the_steady_part_counts() -> None:
    outside = [beat(0.5, late=500), beat(1000.0, late=500)]
    assert use_of(row(), outside).worst.blocked == 0
    assert loop.loop_use(derived(with_beats(ASGI, outside))) is None
    assert loop.loop_use(derived(ASGI)) is None


def test_beats_during_a_pause_are_left_out() -> None:
    """The observer was due shortly after the beat."""
    trial = with_beats(ASGI, row(interval=20, late=600.0, length_s=60.0))
    late = [beat.at_ns for beat in trial.beats.beats if beat.late_ns]
    pauses = tuple(Pause(at_ns - 520 * MS, at_ns - MS) for at_ns in late)
    assert loop.loop_use(derived(trial)).worst.blocked > 0.5
    assert loop.worth_sampling(derived(trial))
    trial = with_observations(trial, pauses=pauses)
    worst = loop.loop_use(derived(trial)).worst
    assert (worst.blocked, worst.late, worst.longest_s) == (0, 0, 0)
    assert not loop.worth_sampling(derived(trial))
    # Blocking outside the pauses still counts
    worst = loop.loop_use(derived(with_observations(trial, pauses=pauses[::2]))).worst
    assert worst.longest_s == pytest.approx(0.6)


# --- diagnosis ----------------------------------------------------------------------------------


def blocked_loop(trial: TrialData) -> loop.BlockedLoop | None:
    diagnosis = cell_of(trial).diagnosis
    return diagnosis if isinstance(diagnosis, loop.BlockedLoop) else None


def test_a_partly_blocked_loop_is_diagnosed() -> None:
    finding = blocked_loop(with_beats(ASGI, row(pid=100), row(pid=101, interval=4, late=120.0)))
    assert finding.blocked == pytest.approx(0.6, rel=0.1)
    assert finding.longest_s == pytest.approx(0.12)
    assert 3 <= finding.late < finding.beats
    assert finding.advice[0].endswith(loop.ASYNC_CALLS_OR_THREADS)
    assert text(finding).startswith("Something blocks the event loop for at least 6")


RARE = row(interval=50, late=40.0)  # 4 % of the time


@pytest.mark.parametrize(
    ("beats", "blocked"),
    [
        (RARE, True),
        (row(interval=5, late=9.0), False),  # 8 % of the time, each shorter than 10 ms
        (row(interval=1, late=5.0), True),  # 20 %: a loop full of short calls
        ([*row(), beat(2.0, late=300.0)], False),  # once
        ([*row(length_s=4.0), beat(4.6, late=500.0)], False),  # 20 % of a short steady part
        ([beat(3.0, late=300.0), beat(3.4, late=300.0)], True),
        (row(interval=4, late=40.0, cpu=40.0), False),
        (row(interval=4, late=40.0, queued=38.0), False),
        (row(), False),
    ],
)
def test_only_noticeable_blocking_is_diagnosed(beats: list[Beat], blocked: bool) -> None:
    assert (blocked_loop(with_beats(ASGI, beats)) is not None) == blocked


@pytest.mark.parametrize(
    ("busy_s", "stolen_s", "trials_s", "blocked"),
    [(0.0, 0.0, 0.0, True), (0.0, 0.05, 0.0, False), (1.0, 0.05, 0.99, True)],
    ids=["none", "stolen", "stolen from other trials"],
)
def test_stolen_time_is_not_blocking(
    busy_s: float, stolen_s: float, trials_s: float, blocked: bool
) -> None:
    """Seconds of all cores per sample: in total, stolen, and used by other trials."""
    samples = tuple(
        replace(s, host_busy_s=busy_s * n, host_steal_s=stolen_s * n, beside_cpu_s=trials_s * n)
        for n, s in enumerate(ASGI.observations.processes)
    )
    trial = with_observations(with_beats(ASGI, RARE), processes=samples)
    assert (blocked_loop(trial) is not None) == blocked


def test_a_blocked_loop_matters_only_if_others_wait_for_it() -> None:
    two_workers = evidence(server("asgi", 2), 2, slots=[2])
    assert blocked_loop(with_beats(two_workers, RARE)) is None
    one_worker = with_spans(two_workers, (replace(s, pid=100) for s in two_workers.spans.spans))
    assert blocked_loop(with_beats(one_worker, RARE)) is not None


def test_only_tornado_applications_block_the_loop_of_tornado() -> None:
    trial = with_beats(evidence(server("tornado", 2), 8), RARE)
    assert blocked_loop(with_record(trial, proof={"app_kind": "wsgi"})) is None
    finding = blocked_loop(with_record(trial, proof={"app_kind": "tornado"}))
    assert finding.advice[0].endswith(loop.ASYNC_CALLS_OR_CLASS)


def test_beats_take_precedence_over_spans() -> None:
    """Each worker has one request at a time, but its loop computes and is not blocked."""
    trial = evidence(server("asgi"), 8, slots=[1] * 4, deal=lambda number: number % 4)
    assert blocked_loop(trial) is not None
    computing = row(interval=1, late=900.0, cpu=900.0)
    assert blocked_loop(with_beats(trial, computing)) is None
    assert loop.loop_busy_share(derived(with_beats(ASGI, computing))) == pytest.approx(900 / 920)
    assert loop.loop_busy_share(derived(ASGI)) == 0
