"""Terminal messages and prompts, and the command that started the program."""

import os
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def tell(line: str) -> None:
    """Print to standard error; standard output is for results only."""
    print(line, file=sys.stderr, flush=True)


def program() -> str:
    """The command that started this program, as the user typed it."""
    command = Path(sys.argv[0])
    if command.name == "__main__.py":
        return f"{Path(sys.executable).name} -m workerlab"
    if shutil.which(command.name):
        return command.name
    return str(short(command))


def short(path: Path) -> Path:
    """`path` relative to the current directory if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def interactive() -> bool:
    """Whether the program can prompt: both input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def output_columns() -> int | None:
    """The width of standard output, from COLUMNS or its terminal; None: unlimited, as in a pipe."""
    return shutil.get_terminal_size((80 if sys.stdout.isatty() else 0, 24)).columns or None


def one_key(prompt: str) -> str:
    """The next key in lower case; "" at the end of input. Ctrl-C still interrupts. Input typed
    before the prompt is discarded, because it does not answer it."""
    handle = sys.stdin.fileno()
    original = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle, termios.TCSANOW)
        termios.tcflush(handle, termios.TCIFLUSH)
        print(prompt, end="", flush=True)
        return os.read(handle, 16).decode("utf-8", "ignore")[:1].lower()
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, original)


@contextmanager
def without_echo() -> Iterator[None]:
    """Turn off the echo, so that typed characters do not appear in the middle of a live display."""
    handle = sys.stdin.fileno()
    original = termios.tcgetattr(handle)
    attributes = [*original]
    attributes[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(handle, termios.TCSADRAIN, attributes)
        yield
    finally:
        termios.tcflush(handle, termios.TCIFLUSH)  # otherwise the shell would read the input
        termios.tcsetattr(handle, termios.TCSADRAIN, original)
