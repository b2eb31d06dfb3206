"""Starts, watches and stops a guarded process: the harness's side of `guard`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
GUARD_SLACK_S = 15.0  # longer than the guard's own timeout


class Guarded:
    """A program run by a guard, as a context manager: it is gone afterwards, whatever happens.

    `pid` is the program's pid and its process group; `exit_code` is negative if a signal ended it.
    `cpu_s` is the CPU time of the program and of the children it waited for, `wait_s` how long its
    main thread waited for a core. These and `exit_code` are None while it runs, or if unknown.
    `stderr`: by default the file of `stdout`. `user`, `remove`, `end`: see `guard`. Raises OSError
    if the guard itself cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path | None = None,
        grace_s: float,
        user: str | None = None,
        remove: Path | None = None,
        end: signal.Signals | None = None,
    ) -> None:
        self._grace_s = grace_s
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.cpu_s: float | None = None
        self.wait_s: float | None = None
        self._ended = False
        self._unread = b""
        self._pipe_lock = threading.Lock()  # `abandon` closes the pipe that `stop` writes to
        options = {"--as": user, "--remove": remove, "--end": end and end.name.removeprefix("SIG")}
        flags = [str(value) for pair in options.items() if pair[1] is not None for value in pair]
        arguments = (str(grace_s), str(stdout), str(stderr or stdout))
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), *flags, *arguments, *argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is handled by the harness
        )
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._stdin, self._stdout = self._guard.stdin, self._guard.stdout

    def __enter__(self) -> Guarded:
        while self.pid is None and not self._ended:
            self._listen(GUARD_SLACK_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop() if kind is None else self.kill()

    @property
    def running(self) -> bool:
        """Whether the program runs, according to the guard's last report."""
        if not self._ended:
            self._listen(0.0)
        return not self._ended

    def wait(self, timeout_s: float) -> bool:
        """Wait until the program has ended; False if it has not within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while not self._ended:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s < 0:
                return False
            self._listen(remaining_s)
        return True

    def stop(self) -> None:
        """TERM, then KILL after the grace; returns once no descendant is left."""
        if not self._ended:
            with contextlib.suppress(BrokenPipeError), self._pipe_lock:  # the guard is gone
                if not self._stdin.closed:
                    os.write(self._stdin.fileno(), b"stop\n")
            self.wait(self._grace_s + GUARD_SLACK_S)
        self.kill()

    def kill(self) -> None:
        """KILL at once; returns once no descendant is left and the guard has exited."""
        self.abandon()
        deadline_s = time.monotonic() + GUARD_SLACK_S
        with contextlib.suppress(subprocess.TimeoutExpired):
            while self._guard.poll() is None and time.monotonic() < deadline_s:
                self._listen(0.05)
                if self._ended and not self._unread:
                    self._guard.wait(max(0.01, deadline_s - time.monotonic()))
        if self.exit_code is None and not self._stdout.closed:
            self._listen(0.0)  # the last report, if the guard exited right after it
        self._ended = True
        self._stdout.close()

    def abandon(self) -> None:
        """KILL at once without waiting. For other threads: the thread that uses the program then
        sees it end."""
        with self._pipe_lock:
            self._stdin.close()

    def _listen(self, timeout_s: float) -> None:
        """Read the guard's reports, for at most `timeout_s`."""
        readable, _, _ = select.select([self._stdout], [], [], max(0.0, timeout_s))
        if not readable:
            return
        data = os.read(self._stdout.fileno(), 4096)
        if not data:
            self._ended = True
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            name, _, value = line.decode().partition(" ")
            if name == "started":
                self.pid = int(value)
            elif name == "exited":
                code, cpu_s, wait_s = value.split()
                self.exit_code, self.cpu_s = int(code), float(cpu_s)
                self.wait_s = None if wait_s == "-" else float(wait_s)
                self._ended = True
