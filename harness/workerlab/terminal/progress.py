"""Shows progress on standard error: a bar on a terminal, otherwise a line per cell."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from workerlab.model.evidence import Fault, Record
from workerlab.model.plan import Trial
from workerlab.numbers.intervals import Prior, interval_of_sum
from workerlab.numbers.units import counted, format_wait
from workerlab.terminal.console import tell

MIN_SHOWN_S = 0.05  # shorter times are not shown: nothing was launched
UNKNOWN_TIME = "; time left unknown until the app has responded"
MIN_DISTINCT_RATIO = 1.1  # of two times; with a smaller ratio, only one is printed
# Seconds by which trials exceeded their predictions in 49 recorded runs. Trials with a maximum of
# extra time used 80 % of it on average; the share is similar within a run but differs between runs
USUAL_S = Prior(mean=0.0, deviation=1.0)
USUAL_SHARE = Prior(mean=0.8, deviation=0.18, weight=1 / 3)

Predict = Callable[[Trial], float | None]


def describe(trial: Trial) -> str:
    """The trial in words, such as 'gthread with 4 workers x 2 threads, ab at 16'."""
    cell, server = trial.cell, trial.cell.server
    tool = f"{cell.tool} x{cell.processes}" if cell.processes > 1 else cell.tool
    if cell.load is not None:
        requests = "" if cell.load.timed else f"{cell.load.requests:,} requests by "
        late = ", delayed responses" if server.null is not None and max(server.null.delay_s) else ""
        return f"{requests}{tool} at {cell.load.concurrency:,}{late}"
    level, rate = str(cell.concurrency), cell.rate
    if rate is not None:
        level = f"{rate.label} {'requests/s' if rate.share is None else 'of its capacity'}"
    size = counted(server.workers, "worker")
    size += f" x {server.threads} threads" if server.threads > 1 else ""
    parts = (
        server.name or f"{server.worker_class} with {size}",
        server.gunicorn and f"Gunicorn {server.gunicorn}",
        server.python,
        f"{tool} at {level}",
        "keep-alive" if cell.keepalive else "",
        f"trial {trial.number}" if trial.number > 1 else "",
    )
    return ", ".join(filter(None, parts))


class Progress:
    """Shows the progress of trials. `predict(trial)`: its seconds; 0 if it will not be launched,
    None while unknown (before a user's app first responds). `left_s(predict, todo, so_far_s)`:
    seconds until all are done; `so_far_s` has the seconds of the running ones, by key.
    `more_s(trial)`: the seconds by which it may exceed the prediction. `name(trial)`: its label."""

    def __init__(
        self,
        todo: Sequence[Trial],
        predict: Predict,
        left_s: Callable[[Predict, Sequence[Trial], Mapping[str, float]], float | None],
        more_s: Callable[[Trial], float] = lambda _: 0.0,
        name: Callable[[Trial], str] = describe,
    ) -> None:
        self._todo, self._predict, self._more_s, self._name = list(todo), predict, more_s, name
        self._all_left_s, self._start_s = left_s, time.monotonic()
        self._total = len(self._todo)
        self._done = 0
        self._began: dict[str, float] = {}
        self._predicted: dict[str, float | None] = {}
        # Seconds by which finished trials exceeded their predictions, by `more_s`
        self._excess_s: dict[float, list[float]] = defaultdict(list)
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._reasons: set[str] = set()

    def __enter__(self) -> Progress:
        self._announce()
        if self._console.is_terminal:
            self._live = Live(self, console=self._console, transient=True, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _announce(self) -> None:
        note = UNKNOWN_TIME if self._left(self._predict) is None else ", about " + self._time_left()
        skipped = sum(self._predict(trial) == 0.0 for trial in self._todo)
        if skipped == len(self._todo):
            note = ""
        cells = f"{self._cell_count()}{f' ({skipped} cannot run)' if skipped else ''}"
        tell(f"{cells}{note}" if self._todo else "all trials are finished")

    def _finished_count(self) -> str:
        """The number of finished trials: "[3/8] "."""
        return f"[{self._done}/{self._total}] "

    def _cell_count(self) -> str:
        return f"{self._total} cell{'' if self._total == 1 else 's'}"

    def begin(self, trial: Trial) -> None:
        self._began[trial.key] = time.monotonic()
        self._predicted[trial.key] = self._predict(trial)

    def watch(self, server: object, observer: object) -> None:
        """Called repeatedly while a load runs. Does nothing, as `__rich__` draws the progress."""

    def end(self, trial: Trial, record: Record) -> None:
        self._todo = [other for other in self._todo if other is not trial]
        self._done += 1
        took_s = time.monotonic() - self._began.pop(trial.key)
        predicted_s = self._predicted.pop(trial.key, None)
        new_predicted_s = self._predict(trial)  # the trial may have got the app's first responses
        if new_predicted_s and not record.fault:
            self._excess_s[self._more_s(trial)].append(took_s - new_predicted_s)
        if record.fault and predicted_s == 0.0:
            return  # not launched: the reason was printed before
        outcome = f"done in {took_s:.1f} s"
        if record.fault:
            after = f" after {took_s:.1f} s" if took_s >= MIN_SHOWN_S else ""
            outcome = self._fault(record.fault, after)
        line = f"{self._finished_count()}{self._name(trial)}: {outcome}{self._rest()}"
        if self._live is None:
            tell(line)
        elif record.fault:
            self._console.print(line, markup=False, highlight=False)

    def _status(self) -> str:
        """The text next to the bar."""
        return f"{self._done} of {self._cell_count()} done{self._rest()}"

    def _rest(self) -> str:
        return f", {self._time_left()} left" if self._todo and self._left(self._predict) else ""

    def _fault(self, fault: Fault, after: str) -> str:
        """The fault in short, with each reason only once; the report has the details."""
        if fault.reason in self._reasons:
            return f"invalid{after}, for the same reason"
        self._reasons.add(fault.reason)
        return f"invalid{after}: {fault.reason.partition(': ')[0]}"

    def _running(self) -> dict[str, float]:
        """The seconds that each running trial has taken so far, by key, in order of start."""
        now_s = time.monotonic()
        return {key: now_s - began_s for key, began_s in tuple(self._began.items())}

    def _left(self, predict: Predict) -> float | None:
        return self._all_left_s(predict, self._todo, self._running())

    def _time_left(self) -> str:
        """The time left, as a range that is correct in 9 of 10 cases."""
        kinds = Counter(self._more_s(trial) for trial in self._todo if self._predict(trial))
        excess_s = {more_s: self._mean_excess_s(more_s, trials) for more_s, trials in kinds.items()}

        def end_s(trial: Trial, end: int) -> float | None:
            predicted_s = self._predict(trial)
            if not predicted_s:  # unknown, or not launched
                return predicted_s
            return max(predicted_s / 2, predicted_s + excess_s[self._more_s(trial)][end])

        return time_range(*(self._left(partial(end_s, end=end)) or 0.0 for end in (0, 1)))

    def _mean_excess_s(self, more_s: float, trials: int) -> tuple[float, float]:
        """The lower and upper bound of the mean seconds by which `trials` trials exceed their
        predictions."""
        mean, deviation, weight = USUAL_SHARE
        prior = Prior(mean * more_s, deviation * more_s, weight) if more_s else USUAL_S
        low, high = interval_of_sum(trials, self._excess_s[more_s], prior)
        return low / trials, high / trials

    def __rich__(self) -> Group:
        done_s, left_s = time.monotonic() - self._start_s, self._left(self._predict)
        total_s = None if left_s is None else done_s + left_s
        line = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=total_s, completed=done_s, width=30, complete_style="cyan")
        line.add_row(bar, Text(self._status()))
        names = {trial.key: self._name(trial) for trial in self._todo}
        rows = [
            f"{so_far_s:5.0f} s  {names.get(key, key)}" for key, so_far_s in self._running().items()
        ]
        return Group(line, Text("\n".join(rows)))


def time_range(min_s: float, max_s: float) -> str:
    """Both times as text, or only the longer one if they are similar."""
    low, high = format_wait(min_s), format_wait(max_s)
    return high if low == high or max_s < MIN_DISTINCT_RATIO * min_s else f"{low} to {high}"
