"""Signal handling: the first signal raises, and contexts clean up; a second one exits at once.

Exiting at once is safe: the guards see their pipes close and kill what they guard. Until something
is started, the first signal exits at once too, as an exception during an import may be lost.
"""

import os
import signal
from types import FrameType


class Stopped(BaseException):
    """A signal ends the harness. A BaseException, which no `except Exception` swallows."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending_signals() -> list[signal.Signals]:
    """The signals that end this process. SIGHUP stays ignored under nohup, as the terminal may
    close. An ignored SIGINT does not: shell scripts ignore it for all background commands."""
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGHUP or not nohup]


def end_at_once() -> None:
    """Exit at once on any of these signals, while nothing has been started."""
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
        raise Stopped(number)

    for number in ending_signals():
        signal.signal(number, handle)


def finish() -> None:
    """Ignore signals after cleanup: they must not change the exit code. (The interpreter restores
    the default handlers when it exits.)"""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
