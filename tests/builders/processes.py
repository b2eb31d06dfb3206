"""Processes that run on this machine, as a test sees them.

A list of processes is stale as soon as it is made: any of them may end before it is looked at
again. So all that a test asks for is read in one go, what ended meanwhile is left out, and who
sends a signal to one of them expects that it has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.builders.conditions import until

# Prints its clock and its CPU counter, in ns, every few ms. It ends with its parent
BURNING = """
import os, time
parent = os.getppid()
while os.getppid() == parent:
    print(time.monotonic_ns(), time.process_time_ns(), flush=True)
    sum(range(200_000))
"""


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    words: tuple[str, ...]
    environment: str
    directory: str

    def has(self, marker: str) -> bool:
        """Whether its words or its environment hold `marker`."""
        return marker in self.environment or any(marker in word for word in self.words)


def running(marker: str = "") -> list[Process]:
    """All but this one that have not ended (a zombie has) and hold `marker`."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has ended meanwhile, or is none of ours
                processes.append(_process(entry))
    return [process for process in processes if process is not None and process.has(marker)]


def _process(entry: Path) -> Process | None:
    """Raises OSError."""
    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    if state == "Z":
        return None
    words = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")
    environment = os.fsdecode((entry / "environ").read_bytes())
    return Process(
        int(entry.name), int(parent), tuple(words), environment, os.readlink(entry / "cwd")
    )


@contextmanager
def started(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that is killed at the end, whatever the test comes to. `options`: of Popen."""
    with subprocess.Popen(argv, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def python(
    code: str, *arguments: object, isolated: bool = True, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """As `started`, with pipes to and from this program; `isolated`: it needs only the stdlib."""
    argv = [sys.executable, *(("-I", "-S") if isolated else ()), "-c", code, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started(argv, **{**pipes, **options}) as process:
        yield process


def ended_pid() -> int:
    """The pid of a process that has ended."""
    with python("") as process:
        process.wait()
    return process.pid


def compute(cpu_s: float) -> int:
    """Uses `cpu_s` of CPU in this thread, more on a busy machine, and returns the nanoseconds."""
    began_ns = time.thread_time_ns()
    while time.thread_time_ns() < began_ns + cpu_s * 1e9:
        sum(range(100))
    return time.thread_time_ns() - began_ns


# Prints when it slept for longer than it should, although it waited for no core; then the moment
# until which it has watched
WATCHING = """
import os, time
handle, parent = os.open("/proc/thread-self/schedstat", os.O_RDONLY), os.getppid()
def queued_ns():
    return int(os.pread(handle, 64, 0).split()[1])
while os.getppid() == parent:
    began_ns, waited_ns = time.monotonic_ns(), queued_ns()
    time.sleep(0.005)
    now_ns = time.monotonic_ns()
    if now_ns - began_ns - (queued_ns() - waited_ns) > 20_000_000:
        print(began_ns, now_ns, flush=True)
    print(now_ns, flush=True)
"""


class StandStill:
    """Whether the machine, or all of these tests' processes, stood still: what another process saw.
    A premise of whoever measures how long something took."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def between(self, from_ns: int, to_ns: int) -> bool:
        def watched() -> list[list[int]]:
            lines = self._log.read_text().split("\n")[:-1]
            rows = [[int(word) for word in line.split()] for line in lines]
            return rows if rows and rows[-1][-1] > to_ns else []

        pauses = [row for row in until(watched, "the watcher has seen it") if len(row) == 2]
        return any(began_ns < to_ns and end_ns > from_ns for began_ns, end_ns in pauses)


@contextmanager
def stand_still(log: Path) -> Iterator[StandStill]:
    """Watches from now on."""
    with log.open("w") as file, python(WATCHING, stdout=file):
        until(lambda: log.read_text(), "it watches")
        yield StandStill(log)


def default_signals() -> None:
    """For `preexec_fn`: no signal is ignored or blocked, as in a terminal. What runs the tests may
    ignore some (nohup SIGHUP, a shell's background SIGINT and SIGQUIT), and children inherit it."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """To those that have not ended meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stop(pids: Sequence[int]) -> None:
    """SIGSTOP, and wait until all their threads stand still: one that runs on another core goes on
    for a moment."""
    send(pids, signal.SIGSTOP)

    def stopped(pid: int) -> bool:
        with suppress(OSError):  # ended meanwhile
            stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
            return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)
        return True

    until(lambda: all(map(stopped, pids)), "they stand still")


@contextmanager
def burning(log: Path, programs: int = 1) -> Iterator[None]:
    """So many other programs want a core all the time; `burned_s` reads their log."""
    with log.open("w") as file, ExitStack() as stack:
        for _ in range(programs):
            stack.enter_context(python(BURNING, stdout=file, start_new_session=True))
        yield


def burned_s(log: Path, from_ns: int, to_ns: int) -> float:
    """Seconds of CPU that the only burner used between two moments, by its own counter."""
    lines = (line.split() for line in log.read_text().splitlines()[:-1])
    used_ns = [int(cpu_ns) for at_ns, cpu_ns in lines if from_ns <= int(at_ns) <= to_ns]
    return (used_ns[-1] - used_ns[0]) / 1e9 if used_ns else 0.0
