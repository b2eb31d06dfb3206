"""The time budget of a run that plans its own next cells."""

import time
from collections.abc import Sequence
from pathlib import Path

from workerlab import run_store
from workerlab.experiments.execution import Predict, progress
from workerlab.model import Plan, Record, Trial
from workerlab.terminal.progress import Progress, Within

OVERHEAD_S = 0.5  # of a trial: writing and reading files, planning the next cells


def load_s(record: Record) -> float:
    """Duration of its load; 0 if it had none."""
    if record.load_start_ns is None or record.load_end_ns is None:
        return 0.0
    return (record.load_end_ns - record.load_start_ns) / 1e9


def used_s(record: Record) -> float:
    """Duration of a trial, as far as its record tells."""
    parts = (record.start_s, record.warmup_s, record.stop_s)
    return OVERHEAD_S + load_s(record) + sum(part or 0.0 for part in parts)


class Budget:
    """A time budget in seconds; a resumed run has used some of it before."""

    def __init__(self, budget_s: float, *, resumed: bool) -> None:
        self._budget_s = budget_s
        self._began_s = time.monotonic()
        self._before_s: float | None = None if resumed else 0.0

    def display(
        self, directory: Path, plan: Plan, todo: Sequence[Trial], predict: Predict
    ) -> Progress:
        """The default display with the time left."""
        self.look(directory)
        return Within(todo, predict, self.left_s)

    def at_first(
        self, directory: Path, plan: Plan, todo: Sequence[Trial], predict: Predict
    ) -> Progress:
        """The display for cells planned from the beginning."""
        self.look(directory)
        return progress(directory, plan, todo, predict)

    def look(self, directory: Path) -> None:
        """Load the time used before this process."""
        if self._before_s is None:
            records = run_store.load(directory).records
            self._before_s = sum(map(used_s, records.values()))

    def left_s(self) -> float:
        return self._budget_s - (self._before_s or 0.0) - (time.monotonic() - self._began_s)
