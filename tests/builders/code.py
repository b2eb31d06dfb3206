"""A copy of the code that servers are started with, as in a run."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from workerlab.run_store import copy_code


@cache
def _copy() -> Path:
    """The copy of this process, which its first server compiles."""
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    copy_code(place / "code")
    return place / "code"


def link_code(code: Path) -> None:
    code.symlink_to(_copy())
