"""The heartbeat on real loops: what a late beat shows, and what it must leave alone."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from time import process_time_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.conditions import LONG_S, until
from tests.builders.processes import compute, python, stand_still
from workerlab.analysis.diagnosis.loop import unexplained_ns
from workerlab.model.evidence import Beat
from workerlab.observe.spans import read_beats
from workerlab.server.inside import families, heartbeat, waits
from workerlab.server.inside.maps import BEATS, HEADER_BYTES, Ring, shrink

MS = 1_000_000
pytestmark = pytest.mark.skipif(
    not waits.counts_waits(), reason="this kernel does not say how long a thread waits for a core"
)


@pytest.fixture(autouse=True)
def _no_fork_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork hooks cannot be unregistered."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)


def beat_after(place: Path, work: Callable[[], None]) -> Beat:
    """The first beat after `work`, which a beating loop runs once."""

    async def beats_pass(count: int) -> None:
        before = len(read_beats(place).beats)
        while len(read_beats(place).beats) < before + count:
            await asyncio.sleep(0.005)

    async def main() -> int:
        heartbeat.start(families.asyncio_loop(asyncio.get_running_loop()), str(place))
        await beats_pass(2)
        work()
        ended_ns = time.monotonic_ns()
        await beats_pass(3)
        return ended_ns

    ended_ns = asyncio.run(main())
    beats = read_beats(place).beats
    assert {beat.pid for beat in beats} == {os.getpid()}
    return min((beat for beat in beats if beat.at_ns >= ended_ns), key=lambda beat: beat.at_ns)


def waited_ns() -> int:
    """Time that threads of pytest have waited for a core."""
    tasks = Path("/proc/self/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks)


def undisturbed(place: Path, work: Callable[[], None], *, alone: bool = False) -> tuple[Beat, int]:
    """A beat after `work` without a machine pause; `alone`: nor CPU of another thread of pytest.
    And the nanoseconds that threads waited for a core meanwhile."""
    disturbances = []
    with stand_still(place / "watched") as machine:
        for number in range(20):
            (directory := place / str(number)).mkdir()
            began_ns, others_ns = time.monotonic_ns(), process_time_ns() - thread_time_ns()
            before_ns = waited_ns()
            beat = beat_after(directory, work)
            during_ns = waited_ns() - before_ns
            others_ns = process_time_ns() - thread_time_ns() - others_ns
            assert beat.late_ns >= 179 * MS  # it was due 20 ms after the one before at the latest
            assert beat.length_ns >= beat.late_ns
            if machine.between(began_ns, time.monotonic_ns()):
                disturbances.append("the machine stood still")
            elif alone and others_ns > MS:
                disturbances.append(f"other threads computed for {others_ns / MS:.0f} ms")
            else:
                return beat, during_ns
    pytest.skip(f"disturbed each time: {', '.join(disturbances)}")


def test_a_call_that_sleeps_makes_the_next_beat_late(tmp_path: Path) -> None:
    """While the thread sleeps it neither computes nor waits for a core."""
    late, by_others_ns = undisturbed(tmp_path, lambda: time.sleep(0.2), alone=True)
    assert unexplained_ns(late) >= 170 * MS - by_others_ns


Timers = list[tuple[float, Callable[[], None]]]


def heart_in(place: Path) -> tuple[heartbeat.Heart, Timers]:
    """A heart with room for four beats that has begun, and the timers that it has asked for."""
    timers: Timers = []
    heart = heartbeat.Heart(Ring(str(place), BEATS, 4), lambda *timer: timers.append(timer))
    heart.begin()
    return heart, timers


def test_the_beat_after_a_late_one_comes_soon(tmp_path: Path) -> None:
    heart, timers = heart_in(tmp_path)
    time.sleep(0.05)
    heart.beat()
    intervals_ns = [heartbeat.INTERVAL_NS, heartbeat.LATE_INTERVAL_NS]
    assert [after_s for after_s, _ in timers] == [ns / 1e9 for ns in intervals_ns]


@pytest.fixture
def compute_and_live() -> Iterator[Callable[[], None]]:
    """Starts a thread that computes for 0.4 s and lives until the test ends."""
    ends, threads = threading.Event(), []

    def begin() -> None:
        computed = threading.Event()

        def computing() -> None:
            compute(0.4)
            computed.set()
            ends.wait()

        def counted() -> bool:
            """All CPU of a sleeping thread has been counted."""
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
            return computed.is_set() and stat.rpartition(")")[2].split()[0] == "S"

        threads.append(thread := threading.Thread(target=computing))
        thread.start()
        until(counted, "it has computed")

    yield begin
    ends.set()
    for thread in threads:
        thread.join()


def test_cpu_of_the_loop_explains_a_late_beat(tmp_path: Path) -> None:
    longest, _ = undisturbed(tmp_path, lambda: compute(0.2))
    assert unexplained_ns(longest) < 100 * MS
    assert longest.cpu_ns >= 199 * MS


def test_cpu_of_another_thread_explains_a_late_beat(
    tmp_path: Path, compute_and_live: Callable[[], None]
) -> None:
    """The loop waits for it, as for the GIL."""
    longest, _ = undisturbed(tmp_path, compute_and_live)
    assert unexplained_ns(longest) < 100 * MS
    assert longest.others_cpu_ns >= 399 * MS


def gone_after_computing() -> None:
    thread = threading.Thread(target=compute, args=(0.2,))
    thread.start()
    thread.join()
    while os.path.exists(f"{waits.TASKS}/{thread.native_id}"):
        time.sleep(0.001)


def test_an_ended_thread_may_have_held_the_gil_all_the_time(tmp_path: Path) -> None:
    """Its time waiting for a core is unknown."""
    longest = beat_after(tmp_path, gone_after_computing)
    assert longest.late_ns >= 179 * MS
    assert longest.others_queued_ns >= longest.late_ns
    assert unexplained_ns(longest) == 0


def test_cpu_before_the_first_beat_does_not_hide_an_ended_thread(
    tmp_path: Path, compute_and_live: Callable[[], None]
) -> None:
    compute_and_live()
    longest = beat_after(tmp_path, gone_after_computing)
    assert longest.others_cpu_ns >= 190 * MS
    assert longest.others_queued_ns == longest.length_ns


def test_cpu_in_small_parts_does_not_hide_an_ended_thread(
    tmp_path: Path, compute_and_live: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are examined one by one only after a beat in which they computed much."""
    heart, _ = heart_in(tmp_path)
    with monkeypatch.context() as much:
        much.setattr(heartbeat, "OTHERS_CPU_NS", 60_000 * MS)
        compute_and_live()
        heart.beat()
    gone_after_computing()
    heart.beat()
    (_, beat) = read_beats(tmp_path).beats
    assert beat.others_queued_ns == beat.length_ns


def test_other_threads_are_tracked_while_they_live() -> None:
    others, ends = waits.OtherThreads(), threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    others.queued_ns(0)
    assert str(thread.native_id) in others.threads
    assert str(threading.get_native_id()) not in others.threads
    (handle, _, _) = others.threads[str(thread.native_id)]
    ends.set()
    thread.join()
    while os.path.exists(f"{waits.TASKS}/{thread.native_id}"):
        time.sleep(0.001)
    assert others.queued_ns(0) is not None
    assert str(thread.native_id) not in others.threads
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(handle)


@pytest.mark.parametrize(("fired", "left"), [(1, 1), (6, 4)], ids=["half full", "full"])
def test_a_ring_keeps_the_last_beats_and_is_shrunk_to_them(
    tmp_path: Path, fired: int, left: int
) -> None:
    _, timers = heart_in(tmp_path)
    for _ in range(fired):
        timers.pop()[1]()
    result = read_beats(tmp_path)
    assert result.cut == ((os.getpid(),) if fired > left else ())
    moments = [beat.at_ns for beat in result.beats]
    assert len(moments) == left
    assert moments == sorted(moments)
    shrink(tmp_path)
    assert read_beats(tmp_path) == result
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == HEADER_BYTES + left * BEATS.record.size


def test_a_full_ring_overwrites_its_oldest_beat(tmp_path: Path) -> None:
    _, timers = heart_in(tmp_path)
    for _ in range(6):
        timers.pop()[1]()
    before = read_beats(tmp_path).beats
    timers.pop()[1]()
    assert read_beats(tmp_path).beats[:3] == before[1:]


NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME")


def test_no_request_is_kept_alive_by_its_context(tmp_path: Path) -> None:
    """A timer keeps the context it is made in, and the first is made in that of a request."""
    names: list[str | None] = []

    async def main() -> None:
        NAME.set("the first request's")
        loop = families.asyncio_loop(asyncio.get_running_loop())
        loop.schedule(0.0, lambda: names.append(NAME.get(None)))
        while not names:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert names == [None]


@pytest.mark.parametrize("worker", [SimpleNamespace(), SimpleNamespace(ioloop=None)])
def test_without_a_loop_nothing_is_recorded(worker: Any, tmp_path: Path) -> None:
    heartbeat.start(families.family_of(worker).loop(worker), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_unavailable_without_kernel_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = tmp_path / "schedstat"
    for path, text in ((off, "0 0 0\n"), (off, "\n"), (tmp_path / "none", None)):
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(waits, "SCHEDSTAT", str(path))
        assert not waits.counts_waits()


# --- processes --------------------------------------------------------------------------------

PROLOGUE = """
import asyncio, os, sys, time
from workerlab.server.inside import families, heartbeat
async def main():
    heartbeat.start(families.asyncio_loop(asyncio.get_running_loop()), sys.argv[1])
    await asyncio.sleep(0.1)
"""
FORKING = """
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    child = os.fork()
    loop.call_later(0.1, done.set_result, None)  # both go on with the loop
    await done
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
asyncio.run(main())
"""
KILLED = """
    print("beating", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_it_is_off_in_children_the_app_forks(tmp_path: Path) -> None:
    """A child that goes on with the loop would write into its parent's map."""
    with python(PROLOGUE + FORKING, tmp_path, isolated=False) as process:
        process.communicate(timeout=LONG_S)
    assert process.returncode == 0
    beats = read_beats(tmp_path).beats
    assert {beat.pid for beat in beats} == {process.pid}
    for before, after in pairwise(beats):  # one process wrote them
        assert after.at_ns - before.at_ns == pytest.approx(after.length_ns, abs=1000)


def test_a_killed_process_leaves_its_beats(tmp_path: Path) -> None:
    with python(PROLOGUE + KILLED, tmp_path, isolated=False) as process:
        assert process.stdout.readline() == "beating\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert read_beats(tmp_path).beats
