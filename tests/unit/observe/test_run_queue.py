"""Waiting for a core, with real processes that share one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.builders.conditions import LONG_S
from tests.builders.processes import ended_pid, python
from workerlab.observe.cpu import Processes, RunQueue, Tree, waited_ns
from workerlab.server.process import Guarded

pytestmark = pytest.mark.skipif(
    not waited_ns(os.getpid()), reason="this kernel does not say how long a thread waits for a core"
)

CPU_S = 0.2
# Two processes that spin on one core until each has used CPU_S; with a path as argument in a
# thread, which ends when that file exists. They end with stdin. Together they wait for at least
# CPU_S: the last to finish was runnable for at least 2 x CPU_S and had the core for CPU_S.
SPIN = f"""
import os, sys, threading, time
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
def say(word):
    os.write(1, f"{{word}}\\n".encode())
def spin(path=""):
    while time.thread_time() < {CPU_S}:
        pass
    say("done")
    while path and not os.path.exists(path):
        time.sleep(0.01)
os.fork()
if sys.argv[1:]:
    thread = threading.Thread(target=spin, args=sys.argv[1:])
    thread.start()
    thread.join()
    say("joined")
else:
    spin()
os.read(0, 1)
"""


def pair(stack: ExitStack, *go: Path) -> subprocess.Popen[str]:
    process = stack.enter_context(python(SPIN, *go))
    stack.callback(process.stdin.close)  # which also ends the one that it forked
    for path in go:
        stack.callback(path.touch)
    return process


def await_both(process: subprocess.Popen[str], word: str) -> None:
    assert [process.stdout.readline() for _ in range(2)] == [f"{word}\n"] * 2


def test_processes_that_share_a_core_wait_for_it(stack: ExitStack) -> None:
    process = pair(stack)
    await_both(process, "done")
    tree, queue = Tree(process.pid), RunQueue()
    tree.usage()
    queue.sample(tree.pids)
    assert queue.waited_s >= CPU_S * 0.9


def test_ended_threads_and_processes_stay_in_the_sum(tmp_path: Path, stack: ExitStack) -> None:
    """They spin in a thread; the main threads only join."""
    process = pair(stack, tmp_path / "go")
    tree, queue = Tree(process.pid), RunQueue()
    sums: list[float] = []

    def sample() -> None:
        tree.usage()
        queue.sample(tree.pids)
        sums.append(queue.waited_s or 0.0)

    await_both(process, "done")
    sample()
    (tmp_path / "go").touch()
    await_both(process, "joined")
    sample()
    process.stdin.close()
    process.wait()
    sample()
    assert tree.pids == ()
    assert sums == sorted(sums)
    assert sums[0] >= CPU_S * 0.9


def test_waiting_is_counted_from_the_first_sample() -> None:
    """A thread id that is used again is added."""
    queue = RunQueue(from_first=True)
    sums_s = []
    for ns in (5_000, 9_000, 2_000):
        queue.add({7: ns})
        sums_s.append(queue.waited_s)
    assert sums_s == pytest.approx([0.0, 4e-6, 6e-6])


def test_an_unknown_wait_is_missing() -> None:
    queue = RunQueue()
    queue.sample([])
    assert queue.waited_s is None
    queue.sample([ended_pid()])
    assert queue.waited_s is None


def test_a_load_tool_that_ends_between_two_samples_has_a_wait(tmp_path: Path) -> None:
    """Its guard reads the wait while the tool is a zombie."""
    argv = (sys.executable, "-I", "-S", "-c", "import time\nwhile time.process_time() < 0.1: pass")
    usage = Processes(os.getpid())
    first = usage.sample()
    assert (first.server_wait_s, first.tool_wait_s) == (0.0, None)
    out = tmp_path / "out"
    with Guarded(argv, cwd=tmp_path, env=os.environ, stdout=out, grace_s=1.0) as tool:
        assert tool.wait(LONG_S)
    usage.follow(tool.pid)  # too late for a sample
    usage.tool_ended(tool.wait_s)
    last = usage.sample()
    assert last.tool_cpu_s is None
    assert last.tool_wait_s == pytest.approx(tool.wait_s, abs=1e-6)
