"""Recorded runs in archives: small run directories of every command and the diagnosis corpus."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

PACKED = Path(__file__).resolve().parents[1] / "data" / "runs"
SUFFIX = ".tar.xz"
ARCHIVES = {path.name.removesuffix(SUFFIX): path for path in sorted(PACKED.glob(f"*{SUFFIX}"))}
# Named after a scenario, and whether it ran beside other programs
CORPUS = tuple(name for name in ARCHIVES if name.endswith(("-quiet", "-noise")))
NAMES = tuple(name for name in ARCHIVES if name not in CORPUS)


# Python 3.11.2, as in Debian 12, lacks the filter; later ones warn without it
FILTER = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def unpack(archive: Path, place: Path) -> None:
    shutil.unpack_archive(archive, place, **FILTER)


@cache
def _unpacked() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="workerlab-runs-")


def recorded(name: str) -> Path:
    """The directory of a recorded run, read-only and temporary."""
    place = Path(_unpacked().name) / name
    if not place.exists():
        unpack(ARCHIVES[name], place)
    (directory,) = place.iterdir()
    return directory
