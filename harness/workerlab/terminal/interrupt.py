"""Ending on a signal: the first unwinds, so that contexts clean up; a second ends at once.

Ending at once is safe: the guards see their pipes close and kill what they guard. Until something
is started the first signal ends at once too, as an exception during an import may be lost.
"""

import os
import signal
from types import FrameType


class Stopped(BaseException):
    """A signal ends the harness. A BaseException, so that no `except Exception` swallows it."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending_signals() -> list[signal.Signals]:
    """The signals that end this process. SIGHUP stays ignored under nohup, as the terminal may
    close. SIGINT does not: shell scripts ignore it for whatever they start in the background."""
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGHUP or not nohup]


def end_at_once() -> None:
    """Let any signal end the process, as nothing was started yet."""
    for number in ending_signals():
        signal.signal(number, lambda number, _frame: os._exit(128 + number))


def install() -> None:
    """Let the first signal raise Stopped in the main thread, and a second one end the process."""
    unwinding = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal unwinding
        if unwinding:
            os._exit(128 + number)
        unwinding = True
        raise Stopped(number)

    for number in ending_signals():
        signal.signal(number, handle)


def finish() -> None:
    """Ignore late signals once all is cleaned up: they must not change the exit code. (The
    interpreter restores default handlers as it ends.)"""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
