"""The observer on a real listening socket: how often it samples, and every failure."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.blog.metrics import NAMES, Metrics
from tests.builders.conditions import LONG_S, until
from tests.builders.processes import ended_pid, python
from workerlab.model.evidence import ProcessSample, QueueSample
from workerlab.observe import observer as observe
from workerlab.observe.observations import FILE, SAMPLERS, read_observations
from workerlab.observe.observer import CPU_SHARE, Observer, Sampler
from workerlab.observe.tcp import SocketsUnreadable

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables are Linux's")


# --- the sampling rate --------------------------------------------------------------------------


@given(st.floats(0, 100), st.floats(0.01, 1), st.floats(1, 100))
def test_the_cost_of_a_sample_limits_its_rate(cost_s: float, min_s: float, max_s: float) -> None:
    pause_s = Sampler("any", lambda: None, min_s, max_s).pause_s(cost_s)
    assert min_s <= pause_s <= max_s * (1 + observe.JITTER)
    if pause_s < max_s:
        assert cost_s / pause_s <= CPU_SHARE * (1 + 1e-9)


def test_pauses_between_samples_vary() -> None:
    sampler = Sampler("any", lambda: None, 0.05, 0.08)
    assert len({sampler.pause_s(0.0) for _ in range(20)}) == 20


# --- the observer -------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=5) as listener:
        yield listener


@pytest.fixture
def observer(listener: socket.socket, tmp_path: Path) -> Observer:
    return Observer(tmp_path, [(*listener.getsockname(), os.getpid())], [os.getpid()])


def observers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "observer"]


def test_all_samplers_run_during_the_load(observer: Observer, tmp_path: Path) -> None:
    with observer:
        assert observers()
        first = read_observations(tmp_path)
        until(lambda: len(read_observations(tmp_path).processes) >= 2, "a second sample")
    assert not observers()
    observed = read_observations(tmp_path)
    linux_only = {"queue", "connections", "counters"}
    assert set(observed.missing) == (set() if sys.platform == "linux" else linux_only)
    if sys.platform == "linux":
        assert len(first.queue) >= 1  # taken before the load begins
        assert observed.counters is not None
        assert {sample.limit for sample in observed.queue} == {5}
        assert observer.latest_queue == 0
    assert observed.app_metrics == observed.services == ()
    assert observed.cores == os.cpu_count()
    at_ns = [sample.at_ns for sample in observed.processes]
    assert at_ns == sorted(at_ns)


def test_the_last_sample_is_at_the_end(observer: Observer, tmp_path: Path) -> None:
    with observer:
        before_ns = time.monotonic_ns()
        observer.stop()
        assert not observers()
        after_ns = time.monotonic_ns()
    observed = read_observations(tmp_path)
    assert before_ns <= observed.processes[-1].at_ns <= after_ns
    assert observed.processes[0].at_ns < before_ns
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
def test_a_failed_sampler_is_missing_and_the_others_continue(
    observer: Observer, tmp_path: Path, name: str, works: int
) -> None:
    (broken,) = [sampler for sampler in observer.samplers if sampler.name == name]
    take, calls = broken.take, itertools.count()

    def fail() -> object:
        if next(calls) < works:
            return take()
        raise RuntimeError("it broke")

    def counts() -> dict[str, int]:
        observations, others = read_observations(tmp_path), {"queue", "processes"} - {name}
        return {other: len(getattr(observations, other)) for other in others}

    broken.take = fail
    for sampler in observer.samplers:  # a large table of sockets would be read rarely
        sampler.min_pause_s = sampler.max_pause_s = 0.02
    with observer:
        until(lambda: read_observations(tmp_path).missing.get(name) == "it broke", "it is lost")
        before = counts()
        until(lambda: all(count > before[other] for other, count in counts().items()), "they go on")
    assert next(calls) == works + 1  # not called again, not even at the end
    observed = read_observations(tmp_path)
    assert observed.missing == {name: "it broke"}
    if name != "counters":
        assert len(getattr(observed, name)) == works
    assert (observed.counters is None) == (name == "counters")
    assert (observer.latest_queue is None) == (name == "queue" and not works)


@linux
def test_the_observer_ends_when_all_samplers_fail(observer: Observer, tmp_path: Path) -> None:
    def fail() -> object:
        raise SocketsUnreadable("it broke")

    for sampler in observer.samplers:
        sampler.take = fail
    missing = {sampler.name: "it broke" for sampler in observer.samplers}
    with observer:
        until(lambda: read_observations(tmp_path).missing == missing, "all are lost")
    assert not observers()
    assert read_observations(tmp_path).missing == missing


@linux
def test_a_full_disk_ends_the_observer(observer: Observer, tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to("/dev/full")
    with observer:
        until(lambda: not observers(), "the observer has given up")
    (tmp_path / FILE).unlink()
    assert set(read_observations(tmp_path).missing) == set(SAMPLERS)


def test_a_disk_that_fills_up_ends_the_observer(
    observer: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = observe.os.write, itertools.count()

    def write_part(handle: int, line: bytes) -> int:
        return write(handle, line if next(calls) < 6 else line[:9])

    with monkeypatch.context() as patched:
        patched.setattr(observe.os, "write", write_part)
        with observer:
            until(lambda: not observers(), "the observer has given up")
    lines = (tmp_path / FILE).read_text().split("\n")
    assert [len(lines), len(lines[-1])] == [7, 9]
    observed = read_observations(tmp_path)
    assert set(observed.missing) == set(SAMPLERS)
    assert observed.processes


def test_a_missing_directory_ends_the_observer(observer: Observer, tmp_path: Path) -> None:
    tmp_path.rename(tmp_path.with_name("moved"))
    try:
        with observer:
            until(lambda: not observers(), "the observer has given up")
    finally:
        tmp_path.with_name("moved").rename(tmp_path)
    assert not (tmp_path / FILE).exists()


def test_without_a_thread_all_samplers_are_missing(
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
def test_the_observer_leaves_no_open_files(listener: socket.socket, tmp_path: Path) -> None:
    def count_open_files() -> int:
        with Observer(tmp_path, [(*listener.getsockname(), os.getpid())], []):
            pass
        return len(os.listdir("/proc/self/fd"))

    first = count_open_files()  # modules may keep files open once imported
    assert [count_open_files() for _ in range(5)] == [first] * 5


@linux
def test_observations_can_be_read_during_the_load(
    stack: ExitStack, listener: socket.socket, tmp_path: Path
) -> None:
    with Observer(tmp_path, [(*listener.getsockname(), os.getpid())], []) as observer:
        for _ in range(2):
            stack.enter_context(socket.create_connection(listener.getsockname(), LONG_S))
        until(lambda: observer.latest_queue == 2, "the newest length")
        until(lambda: observer.latest["connections"].client, "the newest connections")
        assert isinstance(observer.latest["queue"], QueueSample)
        assert isinstance(observer.latest["processes"], ProcessSample)
    observed = read_observations(tmp_path)
    assert observed.missing == {}
    assert observed.connections[-1].server == {"ESTABLISHED": 2}
    entries = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert list(entries[0]) == ["header"]
    assert list(entries[-1]) == ["end"]


# --- optional samplers --------------------------------------------------------------------------


def test_metrics_of_all_workers_are_added(observer: Observer, tmp_path: Path) -> None:
    metrics = Metrics(str(tmp_path))
    metrics.add("requests", 3)
    # Another worker that has ended, and a third that has just started
    shutil.copy(tmp_path / f"metrics-{os.getpid()}.bin", tmp_path / "metrics-1.bin")
    (tmp_path / "metrics-2.bin").touch()
    with observer:
        assert {item.totals["requests"] for item in read_observations(tmp_path).app_metrics} == {6}
        until(lambda: len(read_observations(tmp_path).app_metrics) >= 2, "a second sample")
        metrics.add("requests", 4)
        metrics.add("storage_trips")
    observed = read_observations(tmp_path)
    totals = dict.fromkeys(NAMES, 0) | {"requests": 10, "storage_trips": 1}
    assert observed.app_metrics[-1].totals == totals
    assert "app_metrics" not in observed.missing


def test_unreadable_metrics_are_missing_with_a_reason(observer: Observer, tmp_path: Path) -> None:
    (tmp_path / "metrics-1.bin").write_bytes(b"another kind")
    with observer:
        pass
    reason = read_observations(tmp_path).missing["app_metrics"]
    assert "metrics-1.bin does not hold app metrics" in reason


SPIN = """
import sys, time
print("ready", flush=True)
sys.stdin.readline()
while time.process_time() < 0.3:
    pass
print("done", flush=True)
sys.stdin.readline()
"""


def test_services_of_the_app_are_sampled_by_name(stack: ExitStack, tmp_path: Path) -> None:
    busy, idle = stack.enter_context(python(SPIN)), stack.enter_context(python(SPIN))
    assert [process.stdout.readline() for process in (busy, idle)] == ["ready\n"] * 2
    pids = {"storage": busy.pid, "cache": idle.pid}
    with Observer(tmp_path, [("127.0.0.1", 1, os.getpid())], [], services=pids):
        first = read_observations(tmp_path).services[0]
        assert first.cpu_s == {"storage": 0.0, "cache": 0.0}
        busy.stdin.write("\n")
        busy.stdin.flush()
        assert busy.stdout.readline() == "done\n"
        idle.kill()
        idle.wait()
    last = read_observations(tmp_path).services[-1]
    assert set(last.cpu_s) == set(last.rss_bytes) == {"storage"}  # the ended service is not 0
    assert last.cpu_s["storage"] >= 0.2  # CPU times are counted in hundredths of a second
    assert last.rss_bytes["storage"] > 1 << 20


def test_services_that_do_not_run_are_missing(tmp_path: Path) -> None:
    servers, services = [("127.0.0.1", 1, os.getpid())], {"cache": ended_pid()}
    with Observer(tmp_path, servers, [], services=services):
        pass
    assert "services" in read_observations(tmp_path).missing
