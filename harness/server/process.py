"""The harness's end of a guarded process: start, watch, stop. See `guard` for the other end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

GUARD = Path(__file__).with_name("guard.py")
GUARD_SLACK_S = 15.0  # longer than the guard itself tries


class Guarded:
    """A program run below a guard, as a context manager: whatever happens, it is gone after it.

    `pid` is the program's pid and its process group; `exit_code` is negative when a signal ended
    it and None while it runs or when it could not be learned; so is `cpu_s`, the CPU time of the
    program and of the children it awaited, user and system.

    `user`: whom it runs as, where that is another one (root may say so). `remove`: a directory that
    is made where it is missing, and is gone after it as well; the output may lie in it. `end`: the
    signal that ends it, where killing would leave something behind; it then gets the grace however
    it has to go.

    Raises OSError if the guard itself cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        grace_s: float,
        user: str | None = None,
        remove: Path | None = None,
        end: signal.Signals | None = None,
    ) -> None:
        self.argv, self.grace_s = tuple(argv), grace_s
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.cpu_s: float | None = None
        self._ended = False
        self._unread = b""
        words = ["--as", user] if user is not None else []
        words += ["--remove", str(remove)] if remove is not None else []
        words += ["--end", end.name.removeprefix("SIG")] if end is not None else []
        command = [sys.executable, "-I", "-S", str(GUARD), *words, str(grace_s)]
        self._guard = subprocess.Popen(
            [*command, str(stdout), str(stderr), *argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the harness alone
        )

    def __enter__(self) -> Guarded:
        while self.pid is None and not self._ended:
            self._listen(GUARD_SLACK_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            self._tell(b"stop\n")
            self.wait(self.grace_s + GUARD_SLACK_S)
        self._close()

    def kill(self) -> None:
        """KILL at once; returns when nothing of it is left."""
        self._close()

    def _tell(self, words: bytes) -> None:
        assert self._guard.stdin is not None
        try:
            os.write(self._guard.stdin.fileno(), words)
        except BrokenPipeError:
            self._ended = True

    def _listen(self, timeout_s: float) -> None:
        """Read what the guard says, for at most `timeout_s`."""
        assert self._guard.stdout is not None
        heard, _, _ = select.select([self._guard.stdout], [], [], max(0.0, timeout_s))
        if not heard:
            return
        words = os.read(self._guard.stdout.fileno(), 4096)
        if not words:
            self._ended = True
        *lines, self._unread = (self._unread + words).split(b"\n")
        for line in lines:
            name, _, value = line.decode().partition(" ")
            if name == "started":
                self.pid = int(value)
            elif name == "exited":
                code, _, cpu_s = value.partition(" ")
                self.exit_code, self.cpu_s = int(code), float(cpu_s)
                self._ended = True

    def _close(self) -> None:
        """End-of-file is the guard's signal to kill; its exit says that nothing is left."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        until = time.monotonic() + GUARD_SLACK_S
        try:
            while self._guard.poll() is None and time.monotonic() < until:
                self._listen(0.05)
                if self._ended and not self._unread:
                    self._guard.wait(max(0.01, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        if self.exit_code is None:
            self._listen(0.0)  # its last words, where it ended right after them
        self._ended = True
        self._guard.stdout.close()
