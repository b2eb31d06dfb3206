"""The observer, on a real listening socket: when it looks, and everything that can fail."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.blog.metrics import NAMES, Metrics
from tests.builders.conditions import LONG_S, until
from workerlab.model import ProcessSample, QueueSample
from workerlab.observe import observer as observe
from workerlab.observe.observations import FILE, SAMPLERS, read_observations
from workerlab.observe.observer import CPU_SHARE, Observer, Sampler
from workerlab.observe.tcp import Unseen

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables are Linux's")


# --- how often ------------------------------------------------------------------------------


@given(st.floats(0, 100), st.floats(0.01, 1), st.floats(1, 100))
def test_cost_decides_how_often(cost_s: float, least_s: float, most_s: float) -> None:
    pause_s = Sampler("any", lambda: None, least_s, most_s).pause_s(cost_s)
    assert least_s <= pause_s <= most_s * (1 + observe.JITTER)
    if pause_s < most_s:
        assert cost_s / pause_s <= CPU_SHARE * (1 + 1e-9)


def test_it_does_not_keep_step_with_the_app() -> None:
    sampler = Sampler("any", lambda: None, 0.05, 0.08)
    assert len({sampler.pause_s(0.0) for _ in range(20)}) == 20


# --- the observer ---------------------------------------------------------------------------


@pytest.fixture
def observer(stack: ExitStack, tmp_path: Path) -> Observer:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=5))
    return Observer(tmp_path, *listener.getsockname(), os.getpid(), [os.getpid()])


def observers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "observer"]


def test_all_is_seen_while_it_looks(observer: Observer, tmp_path: Path) -> None:
    with observer:
        assert observers()
        first = read_observations(tmp_path)
        until(lambda: len(read_observations(tmp_path).processes) >= 2, "a second look")
    assert not observers()
    found = read_observations(tmp_path)
    linux_only = {"queue", "connections", "counters"}
    assert set(found.missing) == (set() if sys.platform == "linux" else linux_only)
    if sys.platform == "linux":
        assert len(first.queue) >= 1  # taken before the load begins
        assert found.counters is not None
        assert {sample.limit for sample in found.queue} == {5}
        assert observer.latest_queue == 0
    assert found.cores == os.cpu_count()
    at_ns = [sample.at_ns for sample in found.processes]
    assert at_ns == sorted(at_ns)


def test_the_last_look_is_at_the_end(observer: Observer, tmp_path: Path) -> None:
    with observer:
        before_ns = time.monotonic_ns()
        observer.stop()
        assert not observers()
        after_ns = time.monotonic_ns()
    found = read_observations(tmp_path)
    assert before_ns <= found.processes[-1].at_ns <= after_ns
    assert found.processes[0].at_ns < before_ns
    text = (tmp_path / FILE).read_text()
    observer.stop()
    assert (tmp_path / FILE).read_text() == text


def test_an_exception_in_the_load_goes_through(observer: Observer, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), observer:
        raise KeyboardInterrupt
    assert not observers()
    assert not read_observations(tmp_path).missing or sys.platform != "linux"


@linux
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("works", [0, 1], ids=["never", "once"])
def test_a_sampler_that_dies_is_missing_and_the_others_go_on(
    observer: Observer, tmp_path: Path, name: str, works: int
) -> None:
    (broken,) = [sampler for sampler in observer.samplers if sampler.name == name]
    ask, asked = broken.ask, itertools.count()

    def dies() -> object:
        if next(asked) < works:
            return ask()
        raise RuntimeError("it broke")

    broken.ask = dies
    for sampler in observer.samplers:  # a large table of sockets would be asked for seldom
        sampler.least_s = sampler.most_s = 0.02
    with observer:
        until(lambda: read_observations(tmp_path).missing.get(name) == "it broke", "it is lost")
        before = read_observations(tmp_path)
        until(
            lambda: (
                (now := read_observations(tmp_path))
                and (len(now.queue) > len(before.queue) or name == "queue")
                and (len(now.processes) > len(before.processes) or name == "processes")
            ),
            "the others go on",
        )
    assert next(asked) == works + 1  # not asked again, not at the end either
    found = read_observations(tmp_path)
    assert found.missing == {name: "it broke"}
    seen = {"queue": found.queue, "processes": found.processes, "connections": found.connections}
    assert len(seen.get(name, [None] * works)) == works
    assert (found.counters is None) == (name == "counters")
    assert (observer.latest_queue is None) == (name == "queue" and not works)


@linux
def test_nothing_can_be_seen_at_all(
    observer: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind() -> object:
        raise Unseen("it is dark")

    for sampler in observer.samplers:
        sampler.ask = blind
    names = {sampler.name for sampler in observer.samplers}
    with observer:
        until(lambda: set(read_observations(tmp_path).missing) == names, "all are lost")
    assert not observers()
    assert read_observations(tmp_path).missing == dict.fromkeys(names, "it is dark")


@linux
def test_a_full_disk(observer: Observer, tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to("/dev/full")
    with observer:
        until(lambda: not observers(), "it has given up")
    (tmp_path / FILE).unlink()
    assert set(read_observations(tmp_path).missing) == set(SAMPLERS)


def test_a_disk_that_fills_up(
    observer: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = observe.os.write, itertools.count()

    def fills(handle: int, line: bytes) -> int:
        return write(handle, line if next(written) < 6 else line[:9])

    with monkeypatch.context() as patched:
        patched.setattr(observe.os, "write", fills)
        with observer:
            until(lambda: not observers(), "it has given up")
    lines = (tmp_path / FILE).read_text().split("\n")
    assert [len(lines), len(lines[-1])] == [7, 9]
    found = read_observations(tmp_path)
    assert set(found.missing) == set(SAMPLERS)
    assert found.processes


def test_no_directory_to_write_to(observer: Observer, tmp_path: Path) -> None:
    tmp_path.rename(tmp_path.with_name("moved"))
    try:
        with observer:
            until(lambda: not observers(), "it has given up")
    finally:
        tmp_path.with_name("moved").rename(tmp_path)
    assert not (tmp_path / FILE).exists()


def test_no_thread_to_be_had(
    observer: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr(observe, "SETUP_S", 0.0)
    with observer:
        pass
    assert set(read_observations(tmp_path).missing) == set(SAMPLERS)


@linux
def test_nothing_is_left_open(stack: ExitStack, tmp_path: Path) -> None:
    host, port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()

    def look() -> int:
        with Observer(tmp_path, host, port, os.getpid(), []):
            pass
        return len(os.listdir("/proc/self/fd"))

    first = look()  # what modules keep open once they are imported
    assert [look() for _ in range(5)] == [first] * 5


@linux
def test_it_can_be_read_while_it_is_written(stack: ExitStack, tmp_path: Path) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=5))
    with Observer(tmp_path, *listener.getsockname(), os.getpid(), []) as observer:
        for _ in range(2):
            stack.enter_context(socket.create_connection(listener.getsockname(), LONG_S))
        until(lambda: observer.latest_queue == 2, "the newest length")
        until(lambda: observer.latest["connections"].client, "the newest connections")
        assert isinstance(observer.latest["queue"], QueueSample)
        assert isinstance(observer.latest["processes"], ProcessSample)
    found = read_observations(tmp_path)
    assert found.missing == {}
    assert found.connections[-1].server == {"ESTABLISHED": 2}
    entries = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert list(entries[0]) == ["header"]
    assert list(entries[-1]) == ["end"]


# --- what only some apps have ---------------------------------------------------------------


def test_an_app_that_counts_nothing_has_nothing_to_say(observer: Observer, tmp_path: Path) -> None:
    with observer:
        pass
    found = read_observations(tmp_path)
    assert found.app_metrics == found.services == ()
    assert not {"app_metrics", "services"} & set(found.missing)


def test_metrics_of_all_workers_are_added_up(observer: Observer, tmp_path: Path) -> None:
    mine = Metrics(str(tmp_path))
    mine.add("requests", 3)
    gone = tmp_path / "metrics-1.bin"  # of a worker that has ended
    gone.write_bytes((tmp_path / f"metrics-{os.getpid()}.bin").read_bytes())
    (tmp_path / "metrics-2.bin").touch()  # of one that is about to begin its own
    with observer:
        assert {one.totals["requests"] for one in read_observations(tmp_path).app_metrics} == {6}
        until(lambda: len(read_observations(tmp_path).app_metrics) >= 2, "a second look")
        mine.add("requests", 4)
        mine.add("storage_trips")
    found = read_observations(tmp_path)
    totals = dict.fromkeys(NAMES, 0) | {"requests": 10, "storage_trips": 1}
    assert found.app_metrics[-1].totals == totals
    assert "app_metrics" not in found.missing


def test_metrics_of_another_kind_are_said_to_be_missing(observer: Observer, tmp_path: Path) -> None:
    (tmp_path / "metrics-1.bin").write_bytes(b"another kind")
    with observer:
        pass
    why = read_observations(tmp_path).missing["app_metrics"]
    assert "metrics-1.bin does not hold app metrics" in why


SPIN = """
import sys, time
print("ready", flush=True)
sys.stdin.readline()
while time.process_time() < 0.3:
    pass
print("done", flush=True)
sys.stdin.readline()
"""


def test_what_the_app_stands_on_is_looked_at_by_name(stack: ExitStack, tmp_path: Path) -> None:
    def started() -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        words = [sys.executable, "-I", "-S", "-c", SPIN]
        process = stack.enter_context(subprocess.Popen(words, **pipes))
        stack.callback(process.kill)
        assert process.stdout.readline() == "ready\n"
        return process

    busy, idle = started(), started()
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=5))
    pids = {"storage": busy.pid, "cache": idle.pid}
    with Observer(tmp_path, *listener.getsockname(), os.getpid(), [], services=pids):
        (first,) = read_observations(tmp_path).services[:1]
        assert first.cpu_s == {"storage": 0.0, "cache": 0.0}
        busy.stdin.write("\n")
        busy.stdin.flush()
        assert busy.stdout.readline() == "done\n"
        idle.kill()
        idle.wait()
    last = read_observations(tmp_path).services[-1]
    assert set(last.cpu_s) == set(last.rss_bytes) == {"storage"}  # the other one is not 0
    assert last.cpu_s["storage"] >= 0.2  # CPU times are counted in hundredths of a second
    assert last.rss_bytes["storage"] > 1 << 20


def test_what_never_ran_is_missing(observer: Observer, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    ended.wait()
    place = ("127.0.0.1", 1, os.getpid(), [])
    with Observer(tmp_path, *place, services={"cache": ended.pid}):
        pass
    assert "services" in read_observations(tmp_path).missing
