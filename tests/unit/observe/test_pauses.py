"""Pauses of the machine, detected by a real process that is stopped, and false alarms."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from tests.builders.conditions import LONG_S, until
from tests.builders.processes import compute, python, stand_still, stop
from workerlab.model.evidence import Pause
from workerlab.observe import pauses as pauses_module
from workerlab.observe.observations import FILE, read_observations
from workerlab.observe.pauses import Pauses
from workerlab.server.inside import waits

pytestmark = pytest.mark.skipif(
    not waits.counts_waits(), reason="this kernel does not say how long a thread waits for a core"
)

HOUR_NS = 3_600_000_000_000
OBSERVING = """
import socket, sys
from pathlib import Path
from workerlab.observe.observer import Observer
listener = socket.create_server(("127.0.0.1", 0))
with Observer(Path(sys.argv[1]), [(*listener.getsockname(), None)], []):
    print("observing", flush=True)
    sys.stdin.readline()
"""


def detected_pauses(process: subprocess.Popen[str], directory: Path) -> tuple[int, list[int]]:
    """Stops the process for half a second. Nanoseconds: how long, and of the pauses it detected."""
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, "it sleeps")
    samples = len(read_observations(directory).queue)
    stop([process.pid])
    start_ns = time.monotonic_ns()
    time.sleep(0.5)
    end_ns = time.monotonic_ns()
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: len(read_observations(directory).queue) > samples + 1, "it takes samples again")
    pauses = read_observations(directory).pauses
    lengths_ns = [p.to_ns - p.from_ns for p in pauses if p.from_ns < end_ns and p.to_ns > start_ns]
    return end_ns - start_ns, lengths_ns


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables are Linux's")
def test_a_stopped_process_detects_the_pause(tmp_path: Path) -> None:
    """It cannot tell whether the rest of the machine runs. It detects a pause only while it sleeps,
    which is nearly always."""
    with python(OBSERVING, tmp_path, isolated=False) as process:
        assert process.stdout.readline() == "observing\n"
        attempts = [detected_pauses(process, tmp_path) for _ in range(5)]
        process.stdin.close()
        assert process.wait(timeout=LONG_S) == 0
    assert min(ns for _, pauses_ns in attempts for ns in pauses_ns) >= pauses_module.MIN_PAUSE_NS
    # Except for at most 0.1 s before the next sample was due
    assert any(sum(pauses_ns) >= ns - 110_000_000 for ns, pauses_ns in attempts), attempts
    assert "pauses" not in read_observations(tmp_path).missing


class Late(threading.Event):
    """An event whose wait runs `action` instead of waiting."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def wait(self, timeout: float | None = None) -> bool:
        self.action()
        return False


@pytest.fixture
def sleeper() -> Iterator[Pauses]:
    pauses = Pauses()
    yield pauses
    pauses.close()


def test_computing_is_not_a_pause(sleeper: Pauses, tmp_path: Path) -> None:
    with stand_still(tmp_path / "watched") as machine:
        for _ in range(20):
            sleeper.sleep(threading.Event(), 0.0)  # starting the watcher blocked this thread
            began_ns = time.monotonic_ns()
            pause = sleeper.sleep(Late(lambda: compute(0.2)), 0.0)
            if not machine.between(began_ns, time.monotonic_ns()):
                assert pause is None
                return
    pytest.skip("the machine stood still each time")


def test_a_delay_with_an_ended_thread_is_not_a_pause(sleeper: Pauses) -> None:
    """Its wait for a core is unknown, so even a long delay is not a pause."""

    def delay() -> None:
        thread = threading.Thread(target=compute, args=(0.02,))
        thread.start()
        thread.join()
        time.sleep(0.3)

    assert sleeper.sleep(Late(delay), 0.0) is None


def test_a_sleep_that_is_too_long_is_a_pause(sleeper: Pauses) -> None:
    before_ns = time.monotonic_ns()
    pause = sleeper.sleep(Late(lambda: time.sleep(1.0)), 0.1)
    assert pause.from_ns - before_ns >= 100_000_000
    assert pause.to_ns <= time.monotonic_ns()


def test_a_delay_between_two_sleeps_is_a_pause(sleeper: Pauses) -> None:
    start_ns = time.monotonic_ns()
    sleeper.sleep(Late(lambda: None), 0.0)
    time.sleep(1.0)  # as if it had been stopped while sampling
    end_ns = time.monotonic_ns()
    pause = sleeper.sleep(Late(lambda: None), 0.0)
    assert start_ns <= pause.from_ns <= end_ns - 900_000_000


def test_computing_between_two_sleeps_is_not_a_pause(sleeper: Pauses) -> None:
    def computing_between_sleeps() -> Pause | None:
        sleeper.sleep(Late(lambda: None), 0.0)
        compute(0.5)
        return sleeper.sleep(Late(lambda: None), 0.0)

    assert any(computing_between_sleeps() is None for _ in range(5))


@pytest.mark.parametrize("module", [pauses_module, waits], ids=["its own", "another thread's"])
def test_waiting_for_a_core_is_not_a_pause(
    monkeypatch: pytest.MonkeyPatch, sleeper: Pauses, module: ModuleType
) -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    sleeper.sleep(Late(lambda: None), 0.0)
    waited_ns = itertools.count(HOUR_NS, HOUR_NS)
    monkeypatch.setattr(module, "counted_ns", lambda _: (1, next(waited_ns)))
    try:
        assert sleeper.sleep(Late(lambda: time.sleep(0.3)), 0.0) is None
    finally:
        ends.set()
        thread.join()


def test_a_sleep_ends_when_the_observer_stops(sleeper: Pauses) -> None:
    stop = threading.Event()
    stop.set()
    assert sleeper.sleep(stop, LONG_S) is None


def test_without_kernel_counts_there_are_no_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "off").write_text("0 0 0\n")
    for name in ("off", "missing"):
        monkeypatch.setattr(pauses_module, "SCHEDSTAT", str(tmp_path / name))
        sleeper = Pauses()
        assert sleeper.sleep(Late(lambda: time.sleep(0.1)), 0.0) is None
        sleeper.close()


def test_an_older_run_has_no_pauses(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"header": {}}\n{"end": 1}\n')
    assert read_observations(tmp_path).pauses == ()
    (tmp_path / FILE).write_text('{"pauses":{"from_ns":1,"to_ns":2}}\n{"end":3}\n')
    assert read_observations(tmp_path).pauses == (Pause(1, 2),)


WATCHING = """
import time
from workerlab.observe.pauses import PauseWatch
with PauseWatch() as watch:
    since_ns = time.monotonic_ns()  # the pause may begin while this is printed
    print("watching", flush=True)
    input()
    print(watch.paused_since(since_ns), watch.paused_since(time.monotonic_ns()), flush=True)
"""


@pytest.mark.parametrize("paused", [True, False])
def test_pauses_are_detected_while_the_main_thread_is_blocked(paused: bool) -> None:
    for number in range(5):
        with python(WATCHING, isolated=False) as process:
            assert process.stdout.readline() == "watching\n"
            if paused:  # for longer than the blocked thread waits for a core on a busy machine
                stop([process.pid])
                time.sleep(0.5 * 2**number)
                os.kill(process.pid, signal.SIGCONT)
            output = process.communicate("\n", timeout=LONG_S)[0]
        if output.split() == [str(paused), "False"]:
            break
    else:  # the machine paused each time, or the pause was not detected
        pytest.fail(f"paused since the start, and since now: {output}")
