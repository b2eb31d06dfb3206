"""Trials with a real server and a real load, run as in an experiment."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.builders.code import link_code
from workerlab.analysis.facts import Facts
from workerlab.experiments import trial
from workerlab.experiments.load_trials import task_for
from workerlab.experiments.reading import read_trial
from workerlab.model.plan import Cell, Plan, Trial


def run_trial(place: Path, cell: Cell, duration_s: float = 2.0, config: str | None = None) -> Facts:
    """The facts of a finished trial. `place`: an empty directory for the run; `config`: the path of
    a Gunicorn file."""
    link_code(place / "code")
    plan = Plan(*("sweep", (cell,), 1, 5, 1, sys.executable, config, {}, ()), duration_s=duration_s)
    key = Trial(cell, 1)
    rps = cell.rate.rps if cell.rate else None
    record = trial.run(task_for(plan, key, place, rps))
    assert record.fault is None, record.fault
    facts = read_trial(key, record, plan, place).facts
    assert isinstance(facts, Facts), facts
    return facts
