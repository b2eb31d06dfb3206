"""What the lab tells its user while it works, what it asks, and how the user has called it."""

import os
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def tell(line: str) -> None:
    """On standard error: standard output holds results and nothing else."""
    print(line, file=sys.stderr, flush=True)


def program() -> str:
    """How the user called this program, and can call it again."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{Path(sys.executable).name} -m workerlab"
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


def output_columns() -> int | None:
    """Columns of standard output, by COLUMNS or its terminal; None: any, as in a pipe."""
    return shutil.get_terminal_size((80 if sys.stdout.isatty() else 0, 24)).columns or None


def one_key(prompt: str) -> str:
    """The next key, in lower case; "" for the end of input. Ctrl-C stays what it is. What was typed
    before the prompt is dropped: it was no answer to what is asked only now."""
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle, termios.TCSANOW)
        termios.tcflush(handle, termios.TCIFLUSH)
        print(prompt, end="", flush=True)
        return os.read(handle, 16).decode("utf-8", "ignore")[:1].lower()
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


@contextmanager
def unechoed() -> Iterator[None]:
    """What is typed meanwhile does not show, as it would in the middle of a picture."""
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(handle, termios.TCSADRAIN, quiet)
        yield
    finally:
        termios.tcflush(handle, termios.TCIFLUSH)  # or the shell would take it for its own
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
