"""One key from the person at the terminal, without Enter."""

from __future__ import annotations

import os
import sys
import termios
import tty


def interactive() -> bool:
    """Whether somebody can be asked: both ends are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def one_key() -> str:
    """The next key, in lower case; "" for the end of input. Ctrl-C stays what it is."""
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle, termios.TCSANOW)
        return os.read(handle, 16).decode("utf-8", "ignore")[:1].lower()
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
