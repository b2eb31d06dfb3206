"""Handles signals: the first raises Stopped, so contexts clean up; a second exits at once.

Exiting at once is safe: when their pipes close, the guards kill the processes they guard.
Before anything starts, the first signal exits at once, since an import may lose an exception.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


class Stopped(BaseException):
    """Raised when a signal stops the program. `except Exception` does not catch a BaseException."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_delaying = False
_delayed: list[int] = []  # the signal that `delayed` will raise


def ending_signals() -> list[signal.Signals]:
    """The signals that end this process. Under nohup, SIGHUP stays ignored: the terminal may
    close. An ignored SIGINT ends it: shell scripts ignore it for all background commands."""
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGHUP or not nohup]


def end_at_once() -> None:
    """Exit at once on any of these signals; for the time before anything starts."""
    for number in ending_signals():
        signal.signal(number, lambda number, _frame: os._exit(128 + number))


def install() -> None:
    """Raise Stopped in the main thread on the first signal, and exit at once on the second."""
    unwinding = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal unwinding
        if unwinding:
            os._exit(128 + number)
        unwinding = True
        if not _delaying:
            raise Stopped(number)
        _delayed.append(number)

    for number in ending_signals():
        signal.signal(number, handle)


@contextlib.contextmanager
def delayed() -> Iterator[None]:
    """Raise Stopped at the end of a short block in the main thread, not within it. Raised while a
    pool starts a thread, it would leave a thread for which the pool does not wait."""
    global _delaying
    _delaying = True
    try:
        yield
    finally:
        _delaying = False
    if _delayed:
        raise Stopped(_delayed.pop())


def finish() -> None:
    """Ignore signals after cleanup: they must not change the exit code. (The interpreter restores
    the default handlers when it exits.)"""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
