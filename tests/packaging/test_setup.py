"""The first command of the README, in a fresh checkout with nothing but PATH and HOME."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, run

MADE = (".git", ".venv*", ".tox", ".setup*", "results", "__pycache__", "*.egg-info")
NO_INDEX = "NewConnectionError"


def test_a_fresh_checkout_sets_itself_up_and_measures(tmp_path: Path) -> None:
    checkout, place = tmp_path / "check out", tmp_path / "place"
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=shutil.ignore_patterns(*MADE))
    place.mkdir()
    # Quick: other environments of these tests install every extra
    project = checkout / "pyproject.toml"
    text, extras = re.subn(r"\nall = .*", "\nall = []", project.read_text())
    assert extras == 1
    project.write_text(text)
    state = checkout / ".setup"
    state.mkdir()
    for program in ("ab", "wrk"):  # a test installs nothing into the system
        (state / f"{program}-tried").touch()
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    python = Path(sys.executable).resolve().parent
    env = {**pip, "PATH": f"{python}:/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    setup = checkout / "scripts" / "setup.sh"

    first = run(setup, env=env)
    if first.returncode == 3 and NO_INDEX in first.stderr:
        pytest.skip("no package index")
    assert (first.returncode, first.stdout) == (0, ""), first.stderr
    assert "setup: pip install -e .[all]\nsetup: done\n" in first.stderr
    assert not (checkout / ".venv-tox").exists()
    sweep = (checkout / "scripts" / "sweep.sh", "sync", "2", "--sleep", "0.1", "--tool", "fast")
    done = run(*sweep, "--duration", "1", "--out", "a run", cwd=place, env=env)
    assert done.returncode == 0, done.stderr
    assert "setup:" not in done.stderr  # nothing is missing any more
    assert "sync: 4 slots" in done.stdout
    assert (place / "a run").is_dir()
