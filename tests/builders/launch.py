"""Launches of real servers from a copy of the lab's code, as in a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.builders.code import link_code
from workerlab.model.plan import App, Server
from workerlab.server.running import Launch


def launch(place: Path, server: Server, app: App, *, records: int = 100_000, **more: Any) -> Launch:
    """`place`: an empty directory for the code and the trial."""
    code, trial = place / "code", place / "trial"
    trial.mkdir()
    link_code(code)
    return Launch(server, app, sys.executable, code, trial, None, records, **more)
