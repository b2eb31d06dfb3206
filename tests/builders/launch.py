"""A real Gunicorn's launch, from a copy of the lab's code, as a run has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from workerlab.model.plan import App, Server
from workerlab.run_store import copy_code
from workerlab.server.running import Launch


def launch(place: Path, server: Server, app: App, *, records: int = 100_000, **more: Any) -> Launch:
    """`place`: an empty directory, for the copy and for the trial."""
    code, trial = place / "code", place / "trial"
    trial.mkdir()
    copy_code(code)
    return Launch(server, app, sys.executable, code, trial, None, records, **more)
