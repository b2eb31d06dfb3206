"""The heartbeat on real loops: what explains a late beat, and what the heart must not change."""

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
pytestmark = [
    pytest.mark.usefixtures("_no_fork_hooks"),
    pytest.mark.skipif(not waits.counts_waits(), reason="this kernel does not count waits"),
]


def beat_after(directory: Path, work: Callable[[], None]) -> Beat:
    """The first beat after `work`, which a loop with a heartbeat runs once."""

    async def wait_for_beats(count: int) -> None:
        earlier = len(read_beats(directory).beats)
        while len(read_beats(directory).beats) < earlier + count:
            await asyncio.sleep(0.005)

    async def main() -> int:
        heartbeat.start(families.asyncio_loop(asyncio.get_running_loop()), str(directory))
        await wait_for_beats(2)
        work()
        ended_ns = time.monotonic_ns()
        await wait_for_beats(3)
        return ended_ns

    ended_ns = asyncio.run(main())
    beats = read_beats(directory).beats
    assert {beat.pid for beat in beats} == {os.getpid()}
    return min((beat for beat in beats if beat.at_ns >= ended_ns), key=lambda beat: beat.at_ns)


def waited_ns() -> int:
    """Nanoseconds that the threads of this process have waited for a core."""
    tasks = Path("/proc/self/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks)


def undisturbed_beat(
    directory: Path, work: Callable[[], None], *, single_thread: bool = False
) -> tuple[Beat, int]:
    """A beat after `work` without a pause of the machine or, if `single_thread`, CPU of another
    thread of this process; and the nanoseconds that threads waited for a core meanwhile."""
    disturbances = []
    with stand_still(directory / "watched") as machine:
        for number in range(20):
            (attempt := directory / str(number)).mkdir()
            began_ns, others_ns = time.monotonic_ns(), process_time_ns() - thread_time_ns()
            waited_before_ns = waited_ns()
            beat = beat_after(attempt, work)
            wait_ns = waited_ns() - waited_before_ns
            others_ns = process_time_ns() - thread_time_ns() - others_ns
            assert beat.late_ns >= 179 * MS  # it was due 20 ms after the previous one at the latest
            assert beat.length_ns >= beat.late_ns
            if machine.between(began_ns, time.monotonic_ns()):
                disturbances.append("the machine paused")
            elif single_thread and others_ns > MS:
                disturbances.append(f"other threads computed for {others_ns / MS:.0f} ms")
            else:
                return beat, wait_ns
    pytest.skip(f"disturbed each time: {', '.join(disturbances)}")


def test_a_call_that_sleeps_makes_the_next_beat_late(tmp_path: Path) -> None:
    """A thread that sleeps neither computes nor waits for a core."""
    beat, wait_ns = undisturbed_beat(tmp_path, lambda: time.sleep(0.2), single_thread=True)
    assert unexplained_ns(beat) >= 170 * MS - wait_ns


Timers = list[tuple[float, Callable[[], None]]]


def start_heart(directory: Path) -> tuple[heartbeat.Heart, Timers]:
    """A heart with a ring of four beats, and the timers that it schedules."""
    timers: Timers = []
    heart = heartbeat.Heart(Ring(str(directory), BEATS, 4), lambda *timer: timers.append(timer))
    heart.begin()
    return heart, timers


def test_the_beat_after_a_late_one_comes_soon(tmp_path: Path) -> None:
    heart, timers = start_heart(tmp_path)
    time.sleep(0.05)
    heart.beat()
    intervals_ns = [heartbeat.INTERVAL_NS, heartbeat.LATE_INTERVAL_NS]
    assert [after_s for after_s, _ in timers] == [ns / 1e9 for ns in intervals_ns]


@pytest.fixture
def compute_in_live_thread() -> Iterator[Callable[[], None]]:
    """Starts a thread that computes for 0.4 s and lives until the test ends."""
    test_ended, threads = threading.Event(), []

    def start_thread() -> None:
        computed = threading.Event()

        def compute_and_wait() -> None:
            compute(0.4)
            computed.set()
            test_ended.wait()

        def is_counted() -> bool:
            """The kernel has counted all CPU of a thread that sleeps."""
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
            return computed.is_set() and stat.rpartition(")")[2].split()[0] == "S"

        threads.append(thread := threading.Thread(target=compute_and_wait))
        thread.start()
        until(is_counted, "the thread has computed")

    yield start_thread
    test_ended.set()
    for thread in threads:
        thread.join()


def test_cpu_of_the_loop_explains_a_late_beat(tmp_path: Path) -> None:
    beat, _ = undisturbed_beat(tmp_path, lambda: compute(0.2))
    assert unexplained_ns(beat) < 100 * MS
    assert beat.cpu_ns >= 199 * MS


def test_cpu_of_another_thread_explains_a_late_beat(
    tmp_path: Path, compute_in_live_thread: Callable[[], None]
) -> None:
    """The loop waits for that thread, as for the GIL."""
    beat, _ = undisturbed_beat(tmp_path, compute_in_live_thread)
    assert unexplained_ns(beat) < 100 * MS
    assert beat.others_cpu_ns >= 399 * MS


def wait_for_end(thread: threading.Thread) -> None:
    """Returns once the kernel no longer lists the thread."""
    thread.join()
    while os.path.exists(f"{waits.TASKS}/{thread.native_id}"):
        time.sleep(0.001)


def compute_in_ended_thread() -> None:
    thread = threading.Thread(target=compute, args=(0.2,))
    thread.start()
    wait_for_end(thread)


@pytest.mark.parametrize("has_live_thread", [False, True])
def test_an_ended_thread_may_have_held_the_gil_all_the_time(
    tmp_path: Path, compute_in_live_thread: Callable[[], None], has_live_thread: bool
) -> None:
    """Its wait for a core is unknown, even if a live thread computed before the first beat."""
    if has_live_thread:
        compute_in_live_thread()
    beat = beat_after(tmp_path, compute_in_ended_thread)
    assert beat.late_ns >= 179 * MS
    assert beat.others_cpu_ns >= 190 * MS
    assert beat.others_queued_ns == beat.length_ns
    assert unexplained_ns(beat) == 0


def test_cpu_in_small_parts_does_not_hide_an_ended_thread(
    tmp_path: Path, compute_in_live_thread: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are read one by one only after a beat in which they used much CPU."""
    heart, _ = start_heart(tmp_path)
    with monkeypatch.context() as high_threshold:
        high_threshold.setattr(heartbeat, "OTHERS_CPU_NS", 60_000 * MS)
        compute_in_live_thread()
        heart.beat()
    compute_in_ended_thread()
    heart.beat()
    (_, beat) = read_beats(tmp_path).beats
    assert beat.others_queued_ns == beat.length_ns


def test_other_threads_are_tracked_while_they_live() -> None:
    others, may_end = waits.OtherThreads(), threading.Event()
    thread = threading.Thread(target=may_end.wait)
    thread.start()
    others.queued_ns(0)
    assert str(thread.native_id) in others.threads
    assert str(threading.get_native_id()) not in others.threads
    fd, _, _ = others.threads[str(thread.native_id)]
    may_end.set()
    wait_for_end(thread)
    assert others.queued_ns(0) is not None
    assert str(thread.native_id) not in others.threads
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (6, 4)], ids=["half full", "full"])
def test_a_ring_keeps_the_last_beats_and_is_shrunk_to_them(
    tmp_path: Path, count: int, kept: int
) -> None:
    _, timers = start_heart(tmp_path)
    beats = list[Beat]()
    for _ in range(count):
        timers.pop()[1]()
        beats.append(read_beats(tmp_path).beats[-1])
    result = read_beats(tmp_path)
    assert result.cut == ((os.getpid(),) if count > kept else ())
    assert result.beats == tuple(beats[-kept:])
    assert beats == sorted(beats, key=lambda beat: beat.at_ns)
    shrink(tmp_path)
    assert read_beats(tmp_path) == result
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == HEADER_BYTES + kept * BEATS.record.size


NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME")


def test_no_request_is_kept_alive_by_its_context(tmp_path: Path) -> None:
    """A timer keeps the context in which it is made: for the first one, that of a request."""
    names: list[str | None] = []

    async def main() -> None:
        NAME.set("first request")
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


@pytest.mark.parametrize("text", ["0 0 0\n", "\n", None])
def test_waits_are_unavailable_without_kernel_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    path = tmp_path / "schedstat"
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
    loop.call_later(0.1, done.set_result, None)  # both processes run the loop
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


def test_the_heart_stops_in_children_that_the_app_forks(tmp_path: Path) -> None:
    """A child that runs the loop would write into its parent's map."""
    with python(PROLOGUE + FORKING, tmp_path, isolated=False) as process:
        process.communicate(timeout=LONG_S)
    assert process.returncode == 0
    beats = read_beats(tmp_path).beats
    assert {beat.pid for beat in beats} == {process.pid}
    for previous, beat in pairwise(beats):  # only one process wrote them
        assert beat.at_ns - previous.at_ns == pytest.approx(beat.length_ns, abs=1000)


def test_a_killed_process_leaves_its_beats(tmp_path: Path) -> None:
    with python(PROLOGUE + KILLED, tmp_path, isolated=False) as process:
        assert process.stdout.readline() == "beating\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert read_beats(tmp_path).beats
