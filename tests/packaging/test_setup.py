"""The first command of the README in a fresh checkout, with only PATH and HOME set."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, run

GENERATED = (".git", ".venv*", ".tox", ".setup*", "results", "__pycache__", "*.egg-info")
NO_INDEX = "NewConnectionError"


def test_a_fresh_checkout_sets_itself_up_and_measures(tmp_path: Path) -> None:
    checkout, cwd = tmp_path / "check out", tmp_path / "cwd"
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=shutil.ignore_patterns(*GENERATED))
    cwd.mkdir()
    # Faster, and other tests install all extras
    project = checkout / "pyproject.toml"
    text, replacements = re.subn(r"\nall = .*", "\nall = []", project.read_text())
    assert replacements == 1
    project.write_text(text)
    state = checkout / ".setup"
    state.mkdir()
    for program in ("ab", "wrk"):  # no system packages are installed
        (state / f"{program}-tried").touch()
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    python = Path(sys.executable).resolve().parent
    env = {**pip, "PATH": f"{python}:/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    setup = run(checkout / "scripts" / "setup.sh", env=env)
    if setup.returncode == 3 and NO_INDEX in setup.stderr:
        pytest.skip("no package index")
    assert (setup.returncode, setup.stdout) == (0, ""), setup.stderr
    assert "setup: pip install -e .[all]\nsetup: done\n" in setup.stderr
    assert not (checkout / ".venv-tox").exists()
    sweep = (checkout / "scripts" / "sweep.sh", "sync", "2", "--sleep", "0.1", "--tool", "fast")
    done = run(*sweep, "--duration", "1", "--out", "a run", cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    assert "setup:" not in done.stderr  # already complete
    assert "sync: 4 slots" in done.stdout
    assert (cwd / "a run").is_dir()
