"""The time budget of a run that adds cells while it runs, and the display of its progress."""

import time
from collections.abc import Callable, Sequence

from workerlab import run_store
from workerlab.experiments.load_trials import default_display
from workerlab.experiments.scheduler import TrialSource
from workerlab.experiments.trial import load_s
from workerlab.model.evidence import Record
from workerlab.model.plan import Trial
from workerlab.numbers.units import format_wait
from workerlab.terminal.progress import Progress

OVERHEAD_S = 0.5  # per trial, for writing and reading files and planning the next cells


class BudgetProgress(Progress):
    """The progress of a part of a run with a time budget. `left_s()`: the seconds left in it."""

    def __init__(
        self,
        todo: Sequence[Trial],
        predict: Callable[[Trial], float | None],
        left_s: Callable[[], float],
    ) -> None:
        super().__init__(todo, predict, lambda *_: None)
        self._left_s = left_s

    def _announce(self) -> None:
        """Print nothing: each part of the run would repeat it."""

    def _place(self) -> str:
        return ""

    def _status(self) -> str:
        """The rest of the budget, instead of the finished cells: most parts have a single cell."""
        return f"{format_wait(max(0.0, self._left_s()))} of the budget left"

    def _rest(self) -> str:
        return f", {self._status()}"


def used_s(record: Record) -> float:
    """The seconds that a trial took according to its record, without loads before the last one."""
    parts = (record.start_s, record.warmup_s, record.stop_s)
    return OVERHEAD_S + load_s(record) + sum(part or 0.0 for part in parts)


class Budget:
    """A time budget in seconds; a resumed run has already used some of it."""

    def __init__(self, budget_s: float, *, resumed: bool, began_s: float | None = None) -> None:
        self._budget_s = budget_s
        self._began_s = time.monotonic() if began_s is None else began_s
        self._used_before_s: float | None = None if resumed else 0.0  # None: not read yet

    def display(self, source: TrialSource, todo: Sequence[Trial]) -> Progress:
        """A display of the time left in the budget."""
        self._read_used_time(source)
        return BudgetProgress(todo, source.predict, self.left_s)

    def first_display(self, source: TrialSource, todo: Sequence[Trial]) -> Progress:
        """The default display, for the cells planned at the start."""
        self._read_used_time(source)
        return default_display(source, todo)

    def _read_used_time(self, source: TrialSource) -> None:
        """In a resumed run, read the time that earlier processes used."""
        if self._used_before_s is None:
            records = run_store.load(source.directory).records
            self._used_before_s = sum(map(used_s, records.values()))

    def left_s(self) -> float:
        """Seconds left; negative once the budget is used up."""
        return self._budget_s - (self._used_before_s or 0.0) - (time.monotonic() - self._began_s)
