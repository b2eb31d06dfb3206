"""Run a command under a disturbance: `python tests/disturb.py --mode burn -- pytest`.

    quiet    no disturbance
    burn     another program burns one core for 1 to 20 s at random times
    freeze   all processes of the command are frozen for 0.05 to 2.5 s at random times

The command runs in its own session, without a terminal. Its processes are frozen by a cgroup (v2),
or by SIGSTOP if none can be created; a parent process can observe SIGSTOP, but not the cgroup. Each
disturbance is logged with its time. Processes that the command leaves running are logged, then
killed. The exit code is the command's, or 128 + the signal that ended it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

BURN_S, BURN_GAP_S = (1.0, 20.0), (1.0, 20.0)
FREEZE_S, FREEZE_GAP_S = (0.05, 2.5), (0.5, 15.0)
GRACE_S = 15.0  # for the command after a signal, and for remaining processes after its end
POLL_S = 0.05
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_CHILD_SUBREAPER = 36


class Command:
    """A running command and its descendants. This process becomes the parent of orphans."""

    def __init__(self, argv: list[str]) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.exit_code: int | None = None
        self.cgroup = make_cgroup()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                if self.cgroup:
                    (self.cgroup / "cgroup.procs").write_text("0")
                os.execvp(argv[0], argv)
            except OSError as error:
                os.write(2, f"disturb: cannot run {argv[0]}: {error}\n".encode())
            os._exit(127)

    def has_ended(self) -> bool:
        """Reap all children that have ended."""
        with suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                if child[0] == self.pid:
                    code = os.waitstatus_to_exitcode(child[1])
                    self.exit_code = 128 - code if code < 0 else code
        return self.exit_code is not None

    def pids(self) -> list[int]:
        """The command and its descendants, without zombies."""
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(stat.parent.name))
        pids = children.get(os.getpid(), [])
        for pid in pids:  # grows during the loop
            pids += children.get(pid, [])
        return pids

    def freeze(self, duration_s: float) -> None:
        if self.cgroup:
            (self.cgroup / "cgroup.freeze").write_text("1")
            try:
                time.sleep(duration_s)
            finally:
                (self.cgroup / "cgroup.freeze").write_text("0")
            return
        stopped: set[int] = set()
        try:
            while new := set(self.pids()) - stopped:  # processes may start new ones until stopped
                stopped |= new
                send(new, signal.SIGSTOP)
            time.sleep(duration_s)
        finally:
            send(stopped, signal.SIGCONT)

    def end(self, log: Log) -> None:
        """Wait for processes that are still running, then kill them."""
        deadline = time.monotonic() + GRACE_S
        while (pids := self.pids()) and time.monotonic() < deadline:
            self.has_ended()
            time.sleep(POLL_S)
        for pid in pids:
            with suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
                log.write(f"left running, now killed: {pid} {' '.join(argv)}")
        while pids := self.pids():
            send(pids, signal.SIGKILL)
            self.has_ended()
            time.sleep(POLL_S)
        self.has_ended()
        if self.cgroup:
            self.cgroup.rmdir()


def make_cgroup() -> Path | None:
    """None if the user or the machine cannot create a cgroup v2."""
    own = Path("/proc/self/cgroup").read_text().partition("0::/")[2].partition("\n")[0]
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    for root in (Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"):
        cgroup = root / own / f"disturb-{os.getpid()}"
        with suppress(OSError):
            cgroup.mkdir()
            # Moving processes between groups requires write access to their common parent
            writable = os.access(root / own / "cgroup.procs", os.W_OK)
            if writable and (cgroup / "cgroup.freeze").exists():
                return cgroup
            cgroup.rmdir()
    return None


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Log:
    def __init__(self, file: TextIO) -> None:
        self._file, self._start = file, time.monotonic()

    def write(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._start
        print(f"disturb {time.strftime('%H:%M:%S')} +{elapsed_s:.2f} s: {text}", file=self._file)
        self._file.flush()


def wait(command: Command, duration_s: float) -> None:
    """Return early if the command ends."""
    deadline = time.monotonic() + duration_s
    while not command.has_ended() and (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))


def burn(command: Command, rng: random.Random, log: Log) -> None:
    """Burn in this process: half of the time on any core, otherwise pinned to one."""
    cores = os.sched_getaffinity(0)
    duration_s, core = rng.uniform(*BURN_S), rng.choice([None, *sorted(cores)])
    if core is not None:
        os.sched_setaffinity(0, {core})
    start_s, cpu_s = time.monotonic(), time.process_time()
    while time.monotonic() < start_s + duration_s and not command.has_ended():
        sum(range(100_000))
    cpu_s = time.process_time() - cpu_s
    os.sched_setaffinity(0, cores)
    where = "any core" if core is None else f"core {core}"
    log.write(f"burned {where} for {time.monotonic() - start_s:.2f} s, {cpu_s:.2f} s of CPU")


def disturb(command: Command, mode: str, rng: random.Random, log: Log) -> None:
    """Return when the command has ended."""
    while not command.has_ended():
        if mode == "quiet":
            wait(command, 60)
        elif mode == "burn":
            wait(command, rng.uniform(*BURN_GAP_S))
            burn(command, rng, log)
        else:
            wait(command, rng.uniform(*FREEZE_GAP_S))
            duration_s = rng.uniform(*FREEZE_S)
            if not command.has_ended():
                command.freeze(duration_s)
                log.write(f"froze for {duration_s:.2f} s")


class Interrupted(Exception):
    """A signal to this process, which is passed on to the command."""


def interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=["quiet", "burn", "freeze"], required=True)
    parser.add_argument("--seed", type=int, default=1, help="of the random times (default: 1)")
    parser.add_argument("--log", help="append the log to this file (default: stderr)")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, interrupt)
    with open(args.log, "a") if args.log else os.fdopen(os.dup(2), "w") as file:
        log, command = Log(file), Command(args.command)
        freezer = "" if args.mode != "freeze" else " by cgroup" if command.cgroup else " by SIGSTOP"
        log.write(f"{args.mode}{freezer}, seed {args.seed}: {' '.join(args.command)}")
        try:
            disturb(command, args.mode, random.Random(args.seed), log)
        except Interrupted as interrupted:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, interrupted.args[0])
            wait(command, GRACE_S)
        finally:
            for number in INTERRUPTS:
                signal.signal(number, signal.SIG_IGN)
            command.end(log)
        code = 128 + signal.SIGKILL if command.exit_code is None else command.exit_code
        log.write(f"exit code {code}")
        return code


if __name__ == "__main__":
    sys.exit(main())
