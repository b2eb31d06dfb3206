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
# Two processes spin on one core until each has used CPU_S; with a path as argument, in a thread
# that ends when the file exists. They end with stdin. Together they wait for at least CPU_S: the
# last to finish was runnable for at least 2 x CPU_S and had the core for CPU_S.
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


def pair(stack: ExitStack, *paths: Path) -> subprocess.Popen[str]:
    process = stack.enter_context(python(SPIN, *paths))
    stack.callback(process.stdin.close)  # also ends the forked process
    for path in paths:
        stack.callback(path.touch)
    return process


def await_both(process: subprocess.Popen[str], word: str) -> None:
    assert [process.stdout.readline() for _ in range(2)] == [f"{word}\n"] * 2


def sample(tree: Tree, queue: RunQueue) -> float:
    tree.usage()
    queue.sample(tree.pids)
    return queue.waited_s or 0.0


def test_processes_that_share_a_core_wait_for_it(stack: ExitStack) -> None:
    process = pair(stack)
    await_both(process, "done")
    assert sample(Tree(process.pid), RunQueue()) >= CPU_S * 0.9


def test_ended_threads_and_processes_stay_in_the_sum(tmp_path: Path, stack: ExitStack) -> None:
    """They spin in a thread; the main threads only join."""
    process = pair(stack, tmp_path / "go")
    tree, queue = Tree(process.pid), RunQueue()
    await_both(process, "done")
    spinning_s = sample(tree, queue)
    (tmp_path / "go").touch()
    await_both(process, "joined")
    joined_s = sample(tree, queue)
    process.stdin.close()
    process.wait()
    assert CPU_S * 0.9 <= spinning_s <= joined_s <= sample(tree, queue)
    assert tree.pids == ()


def test_waiting_is_counted_from_the_first_sample() -> None:
    """If a thread id is used again, the wait of the new thread is added."""
    queue = RunQueue(from_first=True)
    for thread_ns, total_s in ((5_000, 0.0), (9_000, 4e-6), (2_000, 6e-6)):
        queue.add({7: thread_ns})
        assert queue.waited_s == pytest.approx(total_s)


def test_an_unknown_wait_is_missing() -> None:
    queue = RunQueue()
    for pids in ([], [ended_pid()]):
        queue.sample(pids)
        assert queue.waited_s is None


def test_a_load_tool_that_ends_between_two_samples_has_a_wait(tmp_path: Path) -> None:
    """Its guard reads the wait while the tool is a zombie."""
    argv = (sys.executable, "-I", "-S", "-c", "import time\nwhile time.process_time() < 0.1: pass")
    usage = Processes(os.getpid())
    first = usage.sample()
    assert (first.server_wait_s, first.tool_wait_s) == (0.0, None)
    stdout = tmp_path / "out"
    with Guarded(argv, cwd=tmp_path, env=os.environ, stdout=stdout, grace_s=1.0) as tool:
        assert tool.wait(LONG_S)
    usage.follow(tool.pid)  # too late for a sample
    usage.tool_ended(tool.wait_s)
    last = usage.sample()
    assert last.tool_cpu_s is None
    assert last.tool_wait_s == pytest.approx(tool.wait_s, abs=1e-6)
