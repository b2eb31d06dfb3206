"""Ending on a signal: the first one unwinds (contexts clean up), a second one ends at once.

Ending at once is safe: the guards see their pipes close and kill what they guard. As long as
nothing was started, the first one does so, too: an exception amid an import may be lost.
"""

import os
import signal
from types import FrameType


class Stopped(BaseException):
    """A signal asked the harness to end. Not an Exception: nothing may swallow it."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending_signals() -> list[signal.Signals]:
    """Those that end this process. Under nohup, SIGHUP is ignored and stays so: the terminal may
    close. SIGINT is not: a shell script ignores it for all that it starts in the background."""
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGHUP or not nohup]


def end_at_once() -> None:
    """Let any signal end the process: nothing was started yet."""
    for number in ending_signals():
        signal.signal(number, lambda number, _frame: os._exit(128 + number))


def install() -> None:
    """Let the first signal raise Stopped in the main thread, and a second one end the process."""
    seen = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            os._exit(128 + number)
        seen = True
        raise Stopped(number)

    for number in ending_signals():
        signal.signal(number, handle)


def finish() -> None:
    """All is said and cleaned up: a late signal must not change the exit code. (The interpreter
    puts default handlers back while it ends.)"""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
