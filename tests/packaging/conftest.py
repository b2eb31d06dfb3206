"""The sdist, the wheel built from it, and that wheel in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from workerlab import __version__

ROOT = Path(__file__).resolve().parents[2]
DIST_INFO = f"workerlab-{__version__}.dist-info"


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def uv(*words: str | Path) -> None:
    """From the package index, else from uv's cache; skips where neither has what is needed."""
    program = Path(sys.executable).with_name("uv")
    done = run(program, *words)
    if NO_INDEX in done.stderr and run(program, "--offline", *words).returncode:
        pytest.skip("no package index, and not in uv's cache")
    assert done.returncode == 0 or NO_INDEX in done.stderr, done.stderr


NO_INDEX = "Failed to fetch"


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path

    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            return message_from_bytes(archive.read(f"{DIST_INFO}/METADATA"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """`uv build` makes the wheel from the sdist, not from the checkout."""
    place = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", place, ROOT)
    (sdist,), (wheel,) = place.glob("*.tar.gz"), place.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel and what it requires."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    uv("venv", "--quiet", "--python", sys.executable, place)
    constraints = ROOT / "constraints.txt"
    python = place / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", python, "-c", constraints, built.wheel)
    return place
