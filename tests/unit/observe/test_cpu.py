"""What real processes have used: a tree of them, and from when on it is counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import psutil
import pytest

from tests.builders.conditions import until
from workerlab.observe import cpu
from workerlab.observe.cpu import Lab, Processes, Tree

TICK_S = 0.01  # CPU times are counted in these


BUSY = """
import os, subprocess, sys, time
if sys.argv[1:]:
    subprocess.run([sys.executable, "-I", "-S", "-c", os.environ["BUSY"]], check=True)
while time.process_time() < 0.2:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def busy(stack: ExitStack, *words: str) -> subprocess.Popen[str]:
    """A process that has used 0.2 s of CPU, with a word 0.2 s more in a child that has ended."""
    child = BUSY.replace("sys.stdin.read()", "")
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BUSY, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "BUSY": child.replace('print("done", flush=True)', "")},
            text=True,
        )
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.stdin.close)
    assert process.stdout.readline() == "done\n"
    asleep = psutil.STATUS_SLEEPING
    until(lambda: psutil.Process(process.pid).status() == asleep, "it waits for its end")
    return process


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize(("words", "used_s"), [((), 0.2), (("child",), 0.4)])
def test_what_a_tree_used(stack: ExitStack, words: tuple[str, ...], used_s: float) -> None:
    process = busy(stack, *words)
    tree = Tree(process.pid)
    found = tree.used()
    assert found is not None
    assert found[0] >= used_s - 4 * TICK_S
    assert found[1] > 1 << 20
    end(process)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "it has ended")
    assert tree.used() is None  # not 0 bytes: nobody has collected it yet
    process.wait()
    assert tree.used() is None


def test_a_tree_counts_what_lives_below_it(stack: ExitStack) -> None:
    below = busy(stack)
    found = Tree(os.getpid()).used()
    alone = psutil.Process(below.pid).memory_info().rss
    assert found is not None
    assert found[0] >= 0.2 - 4 * TICK_S
    assert found[1] >= psutil.Process().memory_info().rss * 0.5 + alone * 0.5


ORPHANS = """
import subprocess, sys
program = "import os, time; os.fork(); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", program])
sys.stdin.readline()
child.kill()
child.wait()
print(flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil looks")
def test_a_process_whose_parent_ends_is_below_another(stack: ExitStack) -> None:
    """Its parent was read before, and has gone: it is no longer of that tree."""
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", ORPHANS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.stdin.close)
    until(lambda: len(below(process.pid)) == 2, "both are there")
    (child,) = (pid for pid in below(process.pid) if cpu.parent_of(pid) == process.pid)
    (grandchild,) = below(child)
    stack.callback(os.kill, grandchild, signal.SIGKILL)
    print(file=process.stdin, flush=True)
    process.stdout.readline()
    assert below(process.pid) == set()
    assert grandchild in below(cpu.parent_of(grandchild))


def below(pid: int) -> set[int]:
    """By a look of its own."""
    time.sleep(cpu.PARENTS_VALID_S)
    return cpu.PARENTS.below(pid)


def test_usage_is_counted_from_the_first_sample(stack: ExitStack) -> None:
    server = busy(stack)
    usage = Processes(server.pid)
    first = usage.sample()
    assert first.server_cpu_s == 0.0
    assert first.host_busy_s == 0.0
    assert first.tool_cpu_s is None
    assert first.tool_rss_bytes is None
    tool = busy(stack)
    usage.follow(tool.pid)
    second = usage.sample()
    assert second.server_cpu_s == 0.0  # it only waited meanwhile
    assert second.tool_cpu_s is not None
    assert second.tool_cpu_s >= 0.2 - 4 * TICK_S
    assert second.host_busy_s is not None
    assert second.host_busy_s >= 0.2 - 4 * TICK_S
    end(tool)
    tool.wait()
    third = usage.sample()
    assert third.tool_cpu_s is None
    assert third.tool_rss_bytes is None
    assert third.server_rss_bytes is not None


def test_a_server_that_never_ran_is_not_this_process() -> None:
    with pytest.raises(psutil.NoSuchProcess):
        Processes(None).sample()
    usage = Processes(os.getpid())
    usage.follow(None)
    assert usage.sample().tool_cpu_s is None


def test_other_trials_are_what_the_lab_started_beside_this_one(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server and a tool of its own, and a process of another trial, which ends: it has used what
    it has used."""
    monkeypatch.setattr(cpu, "LAB_CPU_VALID_S", 0.0)
    server = busy(stack)
    usage = Processes(server.pid, lab=Lab())
    first = usage.sample()
    assert first.beside_cpu_s == 0.0
    tool = busy(stack)
    usage.follow(tool.pid)
    alone = usage.sample()
    assert alone.beside_cpu_s is not None
    assert alone.beside_cpu_s <= 0.1  # ticks of four clocks: it used 0.2 s
    other = busy(stack)
    second = usage.sample()
    assert second.beside_cpu_s is not None
    assert second.beside_cpu_s - alone.beside_cpu_s >= 0.2 - 8 * TICK_S
    for process in (other, tool):
        end(process)
        process.wait()
    third = usage.sample()
    assert third.beside_cpu_s is not None
    assert third.beside_cpu_s >= second.beside_cpu_s - 8 * TICK_S


def test_alone_there_is_nothing_beside(stack: ExitStack) -> None:
    assert Processes(busy(stack).pid).sample().beside_cpu_s is None


def test_what_the_lab_used_is_asked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(Tree, "used", lambda self: looks.append(self))
    monkeypatch.setattr(cpu, "LAB_CPU_VALID_S", 1000.0)
    lab = Lab()
    assert lab.cpu_s() == lab.cpu_s()
    assert len(looks) == 1
