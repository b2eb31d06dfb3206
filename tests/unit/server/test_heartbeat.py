"""The heartbeat by itself, on real loops: what a late beat says, and what it must leave alone."""

from __future__ import annotations

import asyncio
import contextvars
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from time import process_time_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.conditions import LONG_S, until
from tests.builders.processes import stand_still, started
from workerlab.analysis.event_loop import unexplained_ns
from workerlab.model import Beat
from workerlab.observe.map_readers import read_beats, shrink
from workerlab.server.inside import heartbeat, waits
from workerlab.server.inside.maps import BEATS, HEADER_BYTES, create_map, free_path

ROOT = Path(__file__).resolve().parents[3]
MS = 1_000_000
pytestmark = pytest.mark.skipif(
    not waits.available(), reason="this kernel does not say how long a thread waits for a core"
)


def create(place: Path, records: int = 1000) -> mmap.mmap:
    return create_map(free_path(str(place), BEATS), BEATS, records)


@pytest.fixture(autouse=True)
def _no_fork_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered for forks cannot be taken back."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)


def beat_after(place: Path, work: Callable[[], None]) -> Beat:
    """The first one after `work`, of a loop that runs it once, in the midst of beats."""

    async def several(count: int) -> None:
        before = len(read_beats(place).beats)
        while len(read_beats(place).beats) < before + count:
            await asyncio.sleep(0.005)

    async def main() -> int:
        heartbeat.start(SimpleNamespace(), lambda: create(place))
        await several(2)
        work()
        ended_ns = time.monotonic_ns()
        await several(3)
        return ended_ns

    ended_ns = asyncio.run(main())
    beats = read_beats(place).beats
    assert {beat.pid for beat in beats} == {os.getpid()}
    return min((one for one in beats if one.at_ns >= ended_ns), key=lambda beat: beat.at_ns)


def undisturbed(place: Path, work: Callable[[], None], *, alone: bool = False) -> Beat:
    """A beat after `work`, while the machine did not stand still; `alone`: nor did another thread
    of pytest compute."""
    failed = []
    with stand_still(place / "watched") as machine:
        for number in range(20):
            (own := place / str(number)).mkdir()
            began_ns, others_ns = time.monotonic_ns(), process_time_ns() - thread_time_ns()
            beat = beat_after(own, work)
            others_ns = process_time_ns() - thread_time_ns() - others_ns
            assert beat.late_ns >= 179 * MS  # it was due 20 ms after the one before at the latest
            assert beat.length_ns >= beat.late_ns
            if machine.between(began_ns, time.monotonic_ns()):
                failed.append("the machine stood still")
            elif alone and others_ns > MS:
                failed.append(f"other threads computed for {others_ns / MS:.0f} ms")
            else:
                return beat
    pytest.skip(f"disturbed each time: {', '.join(failed)}")


def test_a_call_that_sleeps_makes_the_next_beat_late(tmp_path: Path) -> None:
    """The thread neither computes nor waits for a core while it sleeps, so that nothing can explain
    those 180 ms."""
    late = undisturbed(tmp_path, lambda: time.sleep(0.2), alone=True)
    assert unexplained_ns(late) >= 170 * MS


def test_the_beat_after_a_late_one_comes_soon(tmp_path: Path) -> None:
    asked_s: list[float] = []
    heart = heartbeat.Heart(create(tmp_path, 4), 4, lambda delay_s, _: asked_s.append(delay_s))
    heart.begin()
    time.sleep(0.05)
    heart.beat()
    assert asked_s == [heartbeat.EVERY_NS / 1e9, heartbeat.SOON_NS / 1e9]


def compute() -> None:
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        sum(range(100))


@pytest.fixture
def lasting() -> Iterator[Callable[[], None]]:
    """Have a thread compute 0.4 s, which goes on to live until the test ends."""
    ends, threads = threading.Event(), []

    def begin() -> None:
        computed = threading.Event()

        def computing() -> None:
            compute()
            compute()
            computed.set()
            ends.wait()

        def counted() -> bool:
            """A thread that sleeps is counted in full."""
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
            return computed.is_set() and stat.rpartition(")")[2].split()[0] == "S"

        threads.append(thread := threading.Thread(target=computing))
        thread.start()
        until(counted, "it has computed")

    yield begin
    ends.set()
    for thread in threads:
        thread.join()


def test_what_it_computed_explains_it(tmp_path: Path) -> None:
    longest = undisturbed(tmp_path, compute)
    assert unexplained_ns(longest) < 100 * MS
    assert longest.cpu_ns >= 199 * MS


def test_what_another_thread_computed_explains_it(
    tmp_path: Path, lasting: Callable[[], None]
) -> None:
    """The loop waits for it, as it does for the GIL."""
    longest = undisturbed(tmp_path, lasting)
    assert unexplained_ns(longest) < 100 * MS
    assert longest.others_cpu_ns >= 399 * MS


def gone_after_computing() -> None:
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    while os.path.exists(f"{waits.TASKS}/{thread.native_id}"):
        time.sleep(0.001)


def test_a_thread_that_has_ended_may_have_had_the_gil_all_the_time(tmp_path: Path) -> None:
    """How long it waited for a core is gone with it."""

    longest = beat_after(tmp_path, gone_after_computing)
    assert longest.late_ns >= 179 * MS
    assert longest.others_queued_ns >= longest.late_ns
    assert unexplained_ns(longest) == 0


def test_one_that_computed_before_the_first_beat_hides_none_that_has_ended(
    tmp_path: Path, lasting: Callable[[], None]
) -> None:
    lasting()
    longest = beat_after(tmp_path, gone_after_computing)
    assert longest.others_cpu_ns >= 190 * MS
    assert longest.others_queued_ns == longest.length_ns


def test_one_that_computed_little_by_little_hides_none_that_has_ended(
    tmp_path: Path, lasting: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are looked at one by one only after a beat in which they computed much."""
    heart = heartbeat.Heart(create(tmp_path, 4), 4, lambda *_: None)
    heart.begin()
    with monkeypatch.context() as much:
        much.setattr(heartbeat, "OTHERS_CPU_NS", 60_000 * MS)
        lasting()
        heart.beat()
    gone_after_computing()
    heart.beat()
    (_, beat) = read_beats(tmp_path).beats
    assert beat.others_queued_ns == beat.length_ns


def test_other_threads_are_followed_while_they_live() -> None:
    others, ends = waits.Others(), threading.Event()
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


def test_the_ring_keeps_the_last_and_says_so(tmp_path: Path) -> None:
    later: list[Callable[[], None]] = []
    heart = heartbeat.Heart(create(tmp_path, 4), 4, lambda _, call: later.append(call))
    heart.begin()
    for _ in range(6):
        later.pop()()
    found = read_beats(tmp_path)
    assert found.cut == (os.getpid(),)
    moments = [beat.at_ns for beat in found.beats]
    assert len(moments) == 4
    assert moments == sorted(moments)
    shrink(tmp_path)
    assert read_beats(tmp_path) == found
    later.pop()()
    assert read_beats(tmp_path).beats[:3] == found.beats[1:]


def test_half_a_ring_is_cut_to_what_it_holds(tmp_path: Path) -> None:
    later: list[Callable[[], None]] = []
    heart = heartbeat.Heart(create(tmp_path, 4), 4, lambda _, call: later.append(call))
    heart.begin()
    later.pop()()
    found = read_beats(tmp_path)
    assert len(found.beats) == 1
    assert found.cut == ()
    shrink(tmp_path)
    assert read_beats(tmp_path) == found
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == HEADER_BYTES + BEATS.record.size


NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME")


def test_no_request_is_kept_alive_by_its_context(tmp_path: Path) -> None:
    """A timer keeps the context it is made in, and the first is made in a request's."""
    seen: list[str | None] = []

    async def main() -> None:
        NAME.set("the first request's")
        after = heartbeat.asyncio_timers(asyncio.get_running_loop())
        after(0.0, lambda: seen.append(NAME.get(None)))
        while not seen:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert seen == [None]


@pytest.mark.parametrize("worker", [SimpleNamespace(), SimpleNamespace(ioloop=None)])
def test_nothing_without_a_loop(worker: Any, tmp_path: Path) -> None:
    heartbeat.start(worker, lambda: create(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_nothing_where_the_kernel_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = tmp_path / "schedstat"
    for path, text in ((off, "0 0 0\n"), (off, "\n"), (tmp_path / "none", None)):
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(waits, "SCHEDSTAT", str(path))
        assert not waits.available()


# --- processes --------------------------------------------------------------------------------

PROLOGUE = """
import asyncio, os, sys, time
from types import SimpleNamespace
from workerlab.server.inside import heartbeat
from workerlab.server.inside.maps import BEATS, create_map, free_path
def create():
    return create_map(free_path(sys.argv[1], BEATS), BEATS, heartbeat.RECORDS)
async def main():
    heartbeat.start(SimpleNamespace(), create)
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


def program(text: str, place: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    words = [sys.executable, "-c", PROLOGUE + text, str(place)]
    return started(words, cwd=ROOT, stdout=subprocess.PIPE)


def test_it_is_off_in_children_the_app_forks(tmp_path: Path) -> None:
    """A child that goes on with the loop would write into its parent's map."""
    with program(FORKING, tmp_path) as process:
        process.communicate(timeout=LONG_S)
    assert process.returncode == 0
    moments = [beat.at_ns for beat in read_beats(tmp_path).beats]
    lengths = [beat.length_ns for beat in read_beats(tmp_path).beats]
    assert {beat.pid for beat in read_beats(tmp_path).beats} == {process.pid}
    for before, after, length in zip(moments, moments[1:], lengths[1:], strict=False):
        assert after - before == pytest.approx(length, abs=1000)  # one process wrote them


def test_a_killed_process_leaves_its_beats(tmp_path: Path) -> None:
    with program(KILLED, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "beating\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert read_beats(tmp_path).beats
