"""CPU and memory of real process trees, counted from the first sample."""

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
from tests.builders.processes import ended_pid, python
from workerlab.observe import cpu
from workerlab.observe.cpu import Lab, Processes, Tree

TICK_S = 0.01  # the unit of CPU times

BUSY = """
import os, subprocess, sys, time
if sys.argv[1:]:
    subprocess.run([sys.executable, "-I", "-S", "-c", os.environ["BUSY"]], check=True)
while time.process_time() < 0.2:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def busy(stack: ExitStack, *args: str) -> subprocess.Popen[str]:
    """A process that has used 0.2 s of CPU. With an argument, an ended child used 0.2 s more."""
    child = BUSY.replace("sys.stdin.read()", "").replace('print("done", flush=True)', "")
    process = stack.enter_context(python(BUSY, *args, env={**os.environ, "BUSY": child}))
    assert process.stdout.readline() == "done\n"
    until_status(process, psutil.STATUS_SLEEPING)  # it waits for the end of its input
    return process


def until_status(process: subprocess.Popen[str], status: str) -> None:
    until(lambda: psutil.Process(process.pid).status() == status, f"the process is {status}")


@pytest.mark.parametrize(("args", "min_cpu_s"), [((), 0.2), (("child",), 0.4)])
def test_a_tree_counts_cpu_and_memory_until_its_end(
    stack: ExitStack, args: tuple[str, ...], min_cpu_s: float
) -> None:
    process = busy(stack, *args)
    tree = Tree(process.pid)
    cpu_s, rss_bytes = tree.usage() or (0.0, 0)
    assert cpu_s >= min_cpu_s - 4 * TICK_S
    assert rss_bytes > 1 << 20
    process.stdin.close()
    until_status(process, psutil.STATUS_ZOMBIE)
    assert tree.usage() is None  # not 0 bytes
    process.wait()
    assert tree.usage() is None


def test_a_tree_includes_its_children(stack: ExitStack) -> None:
    pids = os.getpid(), busy(stack).pid
    cpu_s, rss_bytes = Tree(os.getpid()).usage() or (0.0, 0)
    assert cpu_s >= 0.2 - 4 * TICK_S
    assert rss_bytes >= sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2


ORPHANS = """
import subprocess, sys
program = "import os, time; os.fork(); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", program])
sys.stdin.readline()
child.kill()
child.wait()
print(flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="psutil is used elsewhere")
def test_an_orphan_is_a_descendant_of_its_new_parent(stack: ExitStack) -> None:
    process = stack.enter_context(python(ORPHANS))
    until(lambda: len(descendants(process.pid)) == 2, "both processes run")
    (child,) = (pid for pid in descendants(process.pid) if cpu.parent_of(pid) == process.pid)
    (grandchild,) = descendants(child)
    stack.callback(os.kill, grandchild, signal.SIGKILL)
    print(file=process.stdin, flush=True)
    process.stdout.readline()
    assert descendants(process.pid) == set()
    assert grandchild in descendants(cpu.parent_of(grandchild))
    assert cpu.parent_of(ended_pid()) == 0


def descendants(pid: int) -> set[int]:
    """The descendants of a process now; waits until the cached ones have expired."""
    time.sleep(cpu.PARENTS_VALID_S)
    return cpu.PARENTS.descendants(pid)


def test_usage_is_counted_from_the_first_sample(stack: ExitStack) -> None:
    server = busy(stack)
    usage = Processes(server.pid)
    first = usage.sample()
    assert (first.server_cpu_s, first.host_busy_s) == (0.0, 0.0)
    assert (first.tool_cpu_s, first.tool_rss_bytes) == (None, None)
    tool = busy(stack)
    usage.follow(tool.pid)
    second = usage.sample()
    assert second.server_cpu_s == 0.0  # it only waited
    assert second.tool_cpu_s >= 0.2 - 4 * TICK_S
    assert second.host_busy_s >= 0.2 - 4 * TICK_S
    tool.communicate()
    third = usage.sample()
    assert (third.tool_cpu_s, third.tool_rss_bytes) == (None, None)
    assert third.server_rss_bytes is not None


def test_a_server_without_a_pid_cannot_be_sampled() -> None:
    with pytest.raises(psutil.NoSuchProcess):
        Processes(None).sample()
    usage = Processes(os.getpid())
    usage.follow(None)
    assert usage.sample().tool_cpu_s is None


def test_other_processes_of_the_lab_count_as_other_trials(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "LAB_CPU_VALID_S", 0.0)
    server = busy(stack)
    usage = Processes(server.pid, lab=Lab())
    first = usage.sample()
    assert first.beside_cpu_s == 0.0
    tool = busy(stack)
    usage.follow(tool.pid)
    alone = usage.sample()
    assert alone.beside_cpu_s <= 0.1  # four clocks tick in steps of 10 ms; the tool used 0.2 s
    other = busy(stack)
    second = usage.sample()
    assert second.beside_cpu_s - alone.beside_cpu_s >= 0.2 - 8 * TICK_S
    for process in (other, tool):
        process.communicate()
    assert usage.sample().beside_cpu_s >= second.beside_cpu_s - 8 * TICK_S
    assert Processes(server.pid).sample().beside_cpu_s is None  # without a lab


def test_the_cpu_of_the_lab_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(Tree, "usage", lambda self: calls.append(self))
    monkeypatch.setattr(cpu, "LAB_CPU_VALID_S", 1000.0)
    lab = Lab()
    assert lab.cpu_s() == lab.cpu_s()
    assert len(calls) == 1
