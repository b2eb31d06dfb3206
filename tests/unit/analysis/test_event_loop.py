"""What held up the loops, from beats that are made up: which part of being late is what."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    derived,
    evidence,
    judged,
    recording,
    seeing,
    server,
    with_spans,
)
from workerlab.analysis import TrialData
from workerlab.analysis.diagnosis.loop import (
    ASYNC_CALLS_OR_CLASS,
    ASYNC_CALLS_OR_THREADS,
    BlockedLoop,
    loop_busy_share,
    worth_sampling,
)
from workerlab.analysis.event_loop import LoopUse, WorkerLoop, loop_use, unexplained_ns
from workerlab.model import Beat, Beats, Pause
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
    """Due after 20 ms; all else in ms, `at_s` after the load began."""
    parts = (20 + late, late, cpu, queued, *others)
    return Beat(pid, 1_000_000_000 + round(at_s * 1000 * MS), *(round(part * MS) for part in parts))


def row(length_s: float = 30.0, pid: int = 100, each: int = 0, **late: float) -> list[Beat]:
    """Beats one after the other, every `each` of them late as it is said."""
    beats, at_s, number = list[Beat](), 0.0, 0
    while at_s < length_s:
        number += 1
        one = beat(pid=pid, **late) if each and number % each == 0 else beat(pid=pid)
        at_s += one.length_ns / 1e9
        beats.append(replace(one, at_ns=one.at_ns + round(at_s * 1e9)))
    return beats


def beating(trial: TrialData, *rows: Iterable[Beat]) -> TrialData:
    return replace(trial, beats=Beats(tuple(one for beats in rows for one in beats)))


ASGI = evidence(server("asgi", 2), 8, slots=[8])


def worst_of(trial: TrialData) -> WorkerLoop:
    finding = loop_use(derived(trial))
    assert finding is not None
    return finding.worst


def use_of(*rows: Iterable[Beat], trial: TrialData = ASGI) -> LoopUse:
    finding = loop_use(derived(beating(trial, *rows)))
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    ("one", "blocked_ms"),
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
def test_what_is_left_of_being_late(one: Beat, blocked_ms: float) -> None:
    assert unexplained_ns(one) == blocked_ms * MS


@given(*[st.integers(0, 10**12)] * 5)
def test_no_more_is_blocked_than_it_is_late(
    late: int, cpu: int, queued: int, others_cpu: int, others_queued: int
) -> None:
    one = Beat(1, 1, late + 20 * MS, late, cpu, queued, others_cpu, others_queued)
    assert 0 <= unexplained_ns(one) <= late


@pytest.mark.parametrize(
    ("beats", "alarms"),
    [
        (row(each=20, late=30.0), True),
        (row(each=20, late=30.0, cpu=30.0), True),  # a long computation
        (row(each=20, late=30.0, queued=25.0), False),
        (row(each=200, late=30.0), False),  # half a per cent of the beats
        (row(each=2, late=9.0), False),
    ],
)
def test_what_is_worth_a_look(beats: list[Beat], alarms: bool) -> None:
    assert worth_sampling(derived(beating(ASGI, beats))) == alarms


def test_shares_of_the_time_and_the_worst_loop_first() -> None:
    use = use_of(row(pid=100), row(pid=101, each=4, late=120.0, cpu=20.0))
    assert [worker.pid for worker in use.workers] == [101, 100]
    worst, idle = use.workers
    assert worst.blocked == pytest.approx(100 / 200, rel=0.1)
    assert worst.computing == pytest.approx(20 / 200, rel=0.1)
    assert (worst.longest_s, worst.core_wait) == (pytest.approx(0.1), 0)
    assert worst.late == pytest.approx(worst.beats / 4, abs=1)
    assert (idle.blocked, idle.late, idle.longest_s) == (0, 0, 0)


def test_another_thread_and_the_machine_are_told_apart() -> None:
    beats = [beat(2 + n / 10, late=80, queued=30, others=(20, 10)) for n in range(20)]
    worst = use_of(beats).worst
    assert worst.core_wait == pytest.approx(0.3)
    assert worst.blocked == pytest.approx(0.2)


def test_only_the_steady_part_counts() -> None:
    window = derived(ASGI).window
    assert window is not None
    outside = [beat(0.5, late=500), beat(1000.0, late=500)]
    assert use_of(row(), outside).worst.blocked == 0
    assert loop_use(derived(beating(ASGI, outside))) is None
    assert loop_use(derived(ASGI)) is None


def test_nothing_is_known_of_beats_in_which_the_machine_stood_still() -> None:
    """The observer was due a moment after the beat was."""
    trial = beating(ASGI, row(each=20, late=600.0, length_s=60.0))
    late = [one for one in trial.beats.beats if one.late_ns]
    seen = tuple(Pause(one.at_ns - 520 * MS, one.at_ns - MS) for one in late)
    assert worst_of(trial).blocked > 0.5
    assert worth_sampling(derived(trial))
    trial = seeing(trial, pauses=seen)
    finding = worst_of(trial)
    assert (finding.blocked, finding.late, finding.longest_s) == (0, 0, 0)
    assert not worth_sampling(derived(trial))
    # What blocks at other times is seen as before
    assert worst_of(seeing(trial, pauses=seen[::2])).longest_s == pytest.approx(0.6)


# --- what is said of it -------------------------------------------------------------------------


def said(trial: TrialData) -> BlockedLoop | None:
    diagnosis = judged(trial).diagnosis
    return diagnosis if isinstance(diagnosis, BlockedLoop) else None


def test_a_loop_that_is_blocked_in_a_part_of_its_time() -> None:
    finding = said(beating(ASGI, row(pid=100), row(pid=101, each=4, late=120.0)))
    assert finding is not None
    assert finding.blocked == pytest.approx(0.6, rel=0.1)
    assert finding.longest_s == pytest.approx(0.12)
    assert finding.late is not None
    assert finding.beats is not None
    assert 3 <= finding.late < finding.beats
    assert finding.advice[0].endswith(ASYNC_CALLS_OR_THREADS)
    assert text(finding).startswith("Something blocks the event loop at least 6")


SELDOM = row(each=50, late=40.0)  # 4 % of the time
SMALL = row(each=5, late=9.0)  # 8 %, and nobody waits for 10 ms
SHORT = row(each=1, late=5.0)  # 20 %: a loop that is full of short calls
NOW_AND_THEN = [*row(), beat(2.0, late=300.0)]
ONCE = [*row(length_s=4.0), beat(4.6, late=500.0)]  # 20 % of a short steady part
TWO_LONG = [beat(3.0, late=300.0), beat(3.4, late=300.0)]


@pytest.mark.parametrize(
    ("beats", "says"),
    [
        (SELDOM, True),
        (SMALL, False),
        (SHORT, True),
        (NOW_AND_THEN, False),
        (ONCE, False),
        (TWO_LONG, True),
        (row(each=4, late=40.0, cpu=40.0), False),
        (row(each=4, late=40.0, queued=38.0), False),
        (row(), False),
    ],
    ids=[
        "seldom",
        "small",
        "short",
        "now and then",
        "once",
        "two long ones",
        "computing",
        "waiting for a core",
        "free",
    ],
)
def test_what_matters_is_said(beats: list[Beat], says: bool) -> None:
    assert (said(beating(ASGI, beats)) is not None) == says


def test_time_that_the_host_took_is_not_blamed_on_the_app() -> None:
    samples = [replace(one, host_steal_s=0.0) for one in ASGI.observations.processes]
    taken = [replace(one, host_steal_s=0.05 * n) for n, one in enumerate(samples)]
    assert said(seeing(beating(ASGI, SELDOM), processes=tuple(samples))) is not None
    assert said(seeing(beating(ASGI, SELDOM), processes=tuple(taken))) is None


def test_what_the_host_took_of_other_trials_is_not_taken_off() -> None:
    """All but a hundredth of what was busy was theirs."""
    samples = [
        replace(one, host_busy_s=1.0 * n, host_steal_s=0.05 * n, beside_cpu_s=0.99 * n)
        for n, one in enumerate(ASGI.observations.processes)
    ]
    assert said(seeing(beating(ASGI, SELDOM), processes=tuple(samples))) is not None


def test_a_loop_that_nobody_else_waits_for_is_not_spoken_of() -> None:
    alone = evidence(server("asgi", 2), 2, slots=[2])
    assert said(beating(alone, SELDOM)) is None
    together = with_spans(alone, (replace(span, pid=100) for span in alone.spans.spans))
    assert said(beating(together, SELDOM)) is not None


def test_of_tornado_only_its_own_applications() -> None:
    trial = beating(evidence(server("tornado", 2), 8), SELDOM)
    assert said(recording(trial, proof={"app_kind": "wsgi"})) is None
    finding = said(recording(trial, proof={"app_kind": "tornado"}))
    assert finding is not None
    assert finding.advice[0].endswith(ASYNC_CALLS_OR_CLASS)


def test_beats_know_better_than_spans() -> None:
    """One request at a time in each worker, and yet no loop was blocked: they compute."""
    trial = evidence(server("asgi"), 8, slots=[1] * 4, deal=lambda number: number % 4)
    assert said(trial) is not None
    computing = row(each=1, late=900.0, cpu=900.0)
    assert said(beating(trial, computing)) is None
    assert loop_busy_share(derived(beating(ASGI, computing))) == pytest.approx(900 / 920)
    assert loop_busy_share(derived(ASGI)) == 0
