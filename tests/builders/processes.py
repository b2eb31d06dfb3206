"""Processes on this machine.

A list of processes is stale as soon as it is made, because any of them may end. So everything about
a process is read at once, ended processes are left out, and signals to them are no error.
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

# Prints its clock and its CPU counter, in ns, every few ms. Ends with its parent
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
        """Whether its arguments or its environment contain `marker`."""
        return marker in self.environment or any(marker in word for word in self.words)


def running(marker: str = "") -> list[Process]:
    """All other processes that have not ended (a zombie has) and contain `marker`."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has ended, or belongs to another user
                processes.append(_process(entry))
    return [process for process in processes if process is not None and process.has(marker)]


def _process(entry: Path) -> Process | None:
    """Raises OSError."""
    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    if state == "Z":
        return None
    words = tuple(os.fsdecode((entry / "cmdline").read_bytes()).split("\0"))
    environment = os.fsdecode((entry / "environ").read_bytes())
    return Process(int(entry.name), int(parent), words, environment, os.readlink(entry / "cwd"))


@contextmanager
def started(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that is always killed at the end. `options`: of Popen."""
    with subprocess.Popen(argv, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def python(
    code: str, *arguments: object, isolated: bool = True, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Like `started`, with pipes to and from `code`; `isolated`: it needs only the stdlib."""
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


# Prints the start and end of each sleep that took too long without waiting for a core, and the time
# after every sleep
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
    """Whether the machine, or all processes of these tests, stood still, as observed by another
    process. Measured durations are valid only if they did not."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def between(self, from_ns: int, to_ns: int) -> bool:
        def watched() -> list[list[int]]:
            lines = self._log.read_text().split("\n")[:-1]
            rows = [[int(word) for word in line.split()] for line in lines]
            return rows if rows and rows[-1][-1] > to_ns else []

        pauses = [
            row for row in until(watched, "the watcher printed a later time") if len(row) == 2
        ]
        return any(began_ns < to_ns and end_ns > from_ns for began_ns, end_ns in pauses)


@contextmanager
def stand_still(log: Path) -> Iterator[StandStill]:
    """Watches until the end of the block."""
    with log.open("w") as file, python(WATCHING, stdout=file):
        until(log.read_text, "the watcher printed a time")
        yield StandStill(log)


def default_signals() -> None:
    """For `preexec_fn`: no signal is ignored or blocked, as in a terminal. The parent of the tests
    may ignore some (nohup: SIGHUP; a shell in the background: SIGINT and SIGQUIT), and children
    inherit that."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to all that have not ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stop(pids: Sequence[int]) -> None:
    """Sends SIGSTOP and waits until all threads have stopped: a thread on another core goes on for
    a moment."""
    send(pids, signal.SIGSTOP)

    def stopped(pid: int) -> bool:
        with suppress(OSError):  # it has ended
            stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
            return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)
        return True

    until(lambda: all(map(stopped, pids)), "all threads stopped")


@contextmanager
def burning(log: Path, programs: int = 1) -> Iterator[None]:
    """Other programs that always want a core; `burned_s` reads their log."""
    with log.open("w") as file, ExitStack() as stack:
        for _ in range(programs):
            stack.enter_context(python(BURNING, stdout=file, start_new_session=True))
        yield


def burned_s(log: Path, from_ns: int, to_ns: int) -> float:
    """CPU seconds that a single program of `burning` used between two moments, by its own
    counter."""
    lines = (line.split() for line in log.read_text().splitlines()[:-1])
    used_ns = [int(cpu_ns) for at_ns, cpu_ns in lines if from_ns <= int(at_ns) <= to_ns]
    return (used_ns[-1] - used_ns[0]) / 1e9 if used_ns else 0.0
