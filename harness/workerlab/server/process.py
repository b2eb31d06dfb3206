"""The harness's end of a guarded process: start, watch, stop. See `guard` for the other end."""

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
GUARD_SLACK_S = 15.0  # longer than the guard itself tries


class Guarded:
    """A program run below a guard, as a context manager: whatever happens, it is gone after it.

    `pid` is the program's pid and its process group; `exit_code` is negative when a signal ended
    it; None while it runs or when it could not be learned, as are `cpu_s`, the CPU time of the
    program and of the children it awaited, and `wait_s`, how long its main thread was ready to run
    without a core. `stderr`: a file of its own, else with `stdout`. `user`,
    `remove`, `end`: see `guard`. Raises OSError if the guard itself cannot be started.
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
        self._talking = threading.Lock()  # `abandon` closes what `stop` writes to
        options = {"--as": user, "--remove": remove, "--end": end and end.name.removeprefix("SIG")}
        words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        places = (str(grace_s), str(stdout), str(stderr or stdout))
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), *words, *places, *argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the harness alone
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
        """As far as its guard has said by now."""
        if not self._ended:
            self._listen(0.0)
        return not self._ended

    def wait(self, timeout_s: float) -> bool:
        """Wait until the program has ended; False when it has not within `timeout_s`."""
        until = time.monotonic() + timeout_s
        while not self._ended:
            left = until - time.monotonic()
            if left < 0:
                return False
            self._listen(left)
        return True

    def stop(self) -> None:
        """TERM, then KILL after the grace; returns when nothing of it is left."""
        if not self._ended:
            with contextlib.suppress(BrokenPipeError), self._talking:  # the guard is gone
                if not self._stdin.closed:
                    os.write(self._stdin.fileno(), b"stop\n")
            self.wait(self._grace_s + GUARD_SLACK_S)
        self.kill()

    def kill(self) -> None:
        """KILL at once; returns when nothing of it is left: the guard's exit says so."""
        self.abandon()
        until = time.monotonic() + GUARD_SLACK_S
        with contextlib.suppress(subprocess.TimeoutExpired):
            while self._guard.poll() is None and time.monotonic() < until:
                self._listen(0.05)
                if self._ended and not self._unread:
                    self._guard.wait(max(0.01, until - time.monotonic()))
        if self.exit_code is None and not self._stdout.closed:
            self._listen(0.0)  # its last words, where it ended right after them
        self._ended = True
        self._stdout.close()

    def abandon(self) -> None:
        """KILL at once, and do not wait: for another thread than the one that uses it, which will
        see its program end."""
        with self._talking:
            self._stdin.close()

    def _listen(self, timeout_s: float) -> None:
        """Read what the guard says, for at most `timeout_s`."""
        heard, _, _ = select.select([self._stdout], [], [], max(0.0, timeout_s))
        if not heard:
            return
        words = os.read(self._stdout.fileno(), 4096)
        if not words:
            self._ended = True
        *lines, self._unread = (self._unread + words).split(b"\n")
        for line in lines:
            name, _, value = line.decode().partition(" ")
            if name == "started":
                self.pid = int(value)
            elif name == "exited":
                code, cpu_s, wait_s = value.split()
                self.exit_code, self.cpu_s = int(code), float(cpu_s)
                self.wait_s = None if wait_s == "-" else float(wait_s)
                self._ended = True
