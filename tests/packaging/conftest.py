"""The sdist, the wheel built from it, and a virtual environment with that wheel."""

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


NO_INDEX = "Failed to fetch"


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def uv(*arguments: str | Path) -> None:
    """Use the package index, or else uv's cache; skip the test if neither has the packages."""
    program = Path(sys.executable).with_name("uv")
    done = run(program, *arguments)
    if NO_INDEX in done.stderr and run(program, "--offline", *arguments).returncode:
        pytest.skip("no package index, and not in uv's cache")
    assert done.returncode == 0 or NO_INDEX in done.stderr, done.stderr


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path

    def names_in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            return message_from_bytes(archive.read(f"{DIST_INFO}/METADATA"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """`uv build` builds the wheel from the sdist, not from the checkout."""
    directory = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", directory, ROOT)
    (sdist,), (wheel,) = directory.glob("*.tar.gz"), directory.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its requirements."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    uv("venv", "--quiet", "--python", sys.executable, venv)
    constraints = ROOT / "constraints.txt"
    python = venv / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", python, "-c", constraints, built.wheel)
    return venv
