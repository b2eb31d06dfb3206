"""What the lab tells its user while it works, and how the user has called it."""

from __future__ import annotations

import shutil
import sys
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
