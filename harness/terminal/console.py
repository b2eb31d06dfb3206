"""What the lab tells its user while it works, what it asks, and how the user has called it."""

import os
import shutil
import sys
import termios
import tty
from pathlib import Path


def tell(line: str) -> None:
    """On standard error: standard output holds results and nothing else."""
    print(line, file=sys.stderr, flush=True)


def program() -> str:
    """How the user called this program, and can call it again."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{Path(sys.executable).name} -m harness"
    if shutil.which(called.name):
        return called.name
    here = Path.cwd()
    return str(called.relative_to(here) if called.is_relative_to(here) else called)


def short(path: Path) -> Path:
    """As one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


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
