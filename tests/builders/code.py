"""A copy of the lab's code for servers, as in a run."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from workerlab.run_store import copy_code


@cache
def _copy() -> Path:
    """One copy per process, compiled by the first server."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    copy_code(directory / "code")
    return directory / "code"


def link_code(code: Path) -> None:
    code.symlink_to(_copy())
