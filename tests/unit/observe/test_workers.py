"""CPU and memory of real processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.builders.processes import ended_pid, python
from workerlab.observe.observer import memory_of, process_cpu_s, sample_memory, sample_workers

MB = 1 << 20
SPIN = "import time\nwhile time.thread_time() < 0.2: pass"
# Run the program given as argument in a thread, or in a child process, and print when it has ended
THREAD = """
import sys, threading
thread = threading.Thread(target=exec, args=(sys.argv[1], {}))
thread.start()
thread.join()
print("done", flush=True)
input()
"""
CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-I", "-S", "-c", sys.argv[1]])
print("done", flush=True)
input()
"""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports shared pages")


@pytest.mark.parametrize(
    ("program", "min_cpu_s"), [(THREAD, 0.2), (CHILD, 0.18)], ids=["thread", "child"]
)
def test_ended_threads_and_children_count(program: str, min_cpu_s: float) -> None:
    """The user and system times of a child are each rounded down to 10 ms."""
    with python(program, SPIN) as process:
        assert process.stdout.readline() == "done\n"
        assert sample_workers([process.pid]).cpu_s[process.pid] >= min_cpu_s


def test_an_ended_process_is_an_error() -> None:
    with pytest.raises(psutil.NoSuchProcess):
        process_cpu_s(ended_pid())


# Two processes share 64 MB; the child then writes to half of it and maps a file
SHARING = """
import mmap, os, sys
own = bytearray(b"x") * (64 << 20)
go, ready = os.pipe(), os.pipe()
pid = os.fork()
if not pid:
    os.close(go[1])  # or it would not end with its parent
    with open(sys.argv[1], "w+b") as file:
        file.truncate(16 << 20)
        shared = mmap.mmap(file.fileno(), 16 << 20)
        shared[:: mmap.PAGESIZE] = bytes(range(0, 1)) * (len(shared) // mmap.PAGESIZE)
        own[: 32 << 20 : mmap.PAGESIZE] = b"y" * ((32 << 20) // mmap.PAGESIZE)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
    os._exit(0)
os.read(ready[0], 1)
print(pid, flush=True)
input()
"""


@LINUX
def test_shared_pages_count_once_and_the_labs_maps_not_at_all(tmp_path: Path) -> None:
    with python(SHARING, tmp_path / "shared.map") as process:
        child = int(process.stdout.readline())
        memory = sample_memory([process.pid], [child], tmp_path)
        with_maps = sample_memory([process.pid], [child], tmp_path / "elsewhere")
    assert 96 * MB <= memory.pss_bytes <= 96 * MB + 40 * MB  # 64 shared, and 32 of the child
    assert 32 * MB <= memory.private_bytes[child] <= 32 * MB + 20 * MB
    assert with_maps.pss_bytes - memory.pss_bytes == pytest.approx(16 * MB, abs=MB)


@LINUX
def test_memory_of_this_process_is_read() -> None:
    memory = memory_of(Path("/proc/self/smaps").read_text(), Path("/nowhere"))
    assert 0 < memory.private <= memory.pss
    assert sample_memory([None], [os.getpid()], Path("/nowhere")) is not None
