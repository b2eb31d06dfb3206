"""Recorded runs: small run directories of every command, packed."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

PACKED = Path(__file__).resolve().parents[1] / "data" / "runs"
NAMES = tuple(sorted(path.stem for path in PACKED.glob("*.zip")))


@cache
def _unpacked() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="workerlab-runs-")


def recorded(name: str, place: Path = PACKED) -> Path:
    """The directory of a recorded run, for reading only; it goes with this process."""
    directory = Path(_unpacked().name) / name
    if not directory.exists():
        shutil.unpack_archive(place / f"{name}.zip", _unpacked().name)
    return directory
