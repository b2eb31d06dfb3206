"""The launches of each rung under each load, and what they say together.

Requests/s are averaged geometrically, since what is asked of them is a factor; everything else
arithmetically, so that parts still add up. The unit of replication is a fresh launch of the server:
the factor between two rungs is the ratio of their geometric means, and its 95 % interval Welch's
(Welch 1947) on the logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from harness.experiments.ladder.configurations import Configuration
from harness.model import AppMetrics, CellResult
from harness.numbers.intervals import half_width

ALONE = 1  # users that have the server for themselves


@dataclass(frozen=True)
class Load:
    """What every rung is asked to stand: so many users, sent by this tool."""

    tool: str
    users: int

    @property
    def words(self) -> str:
        return f"{self.users} user{'s' if self.users > 1 else ''} by {self.tool}"


@dataclass(frozen=True)
class Factor:
    """Requests/s here over those of the rung before; `low`, `high`: its 95 % interval, None where
    there are too few launches."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def known(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1: no difference."""
        return self.known and not (self.low or 0.0) <= 1.0 <= (self.high or 0.0)


@dataclass(frozen=True)
class Step:
    """The believed launches of one rung under one load: at least one."""

    rung: Configuration
    load: Load
    cells: tuple[CellResult, ...]
    factor: Factor | None = None  # to the rung before it that was measured

    @property
    def name(self) -> str:
        return named(self.rung)

    @property
    def rps(self) -> float:
        """Geometric mean over the launches."""
        return math.exp(fmean(self.logs))

    @property
    def logs(self) -> list[float]:
        rates = (cell.throughput_rps or 0.0 for cell in self.cells)
        return [math.log(rps) for rps in rates if rps > 0]

    def mean(self, value: Callable[[CellResult], float | None]) -> float | None:
        """Over the launches in which it is known; None where it never is."""
        known = [one for cell in self.cells if (one := value(cell)) is not None]
        return fmean(known) if known else None

    def of_parts(self, value: Callable[[AppMetrics], float | None]) -> float | None:
        return self.mean(
            lambda cell: value(cell.app_metrics) if cell.app_metrics is not None else None
        )

    def per_request(self, name: str) -> float | None:
        """A count of the app's ledger."""
        return self.of_parts(lambda parts: parts.per_request.get(name))

    def spent_s(self, name: str) -> float | None:
        """Wall-clock time per request in a part of the app."""
        return self.of_parts(lambda parts: parts.spent_s.get(name))

    def cores(self, name: str) -> float | None:
        """CPU of a component, in cores."""
        return self.of_parts(lambda parts: parts.cores.get(name))

    @property
    def app_cpu_s(self) -> float | None:
        """CPU of the app's workers per request."""
        cores = self.mean(lambda cell: cell.usage.server_cores)
        return None if cores is None else cores / self.rps


def named(rung: Configuration) -> str:
    """In a table or chart, where the rungs above it are seen, too."""
    return rung.removed or "nothing"


@dataclass(frozen=True)
class Ladder:
    """`steps`: by load, in the order of the rungs; rungs of which no launch is believed are not
    among them."""

    rungs: tuple[Configuration, ...]
    steps: Mapping[Load, tuple[Step, ...]]
    environment: Mapping[str, object] = field(default_factory=dict)

    @property
    def cores(self) -> int | None:
        found = self.environment.get("cores")
        return found if isinstance(found, int) and found > 0 else None

    @property
    def alone(self) -> tuple[Step, ...]:
        """Of one user."""
        found = (steps for load, steps in self.steps.items() if load.users == ALONE)
        return next(found, ())

    @property
    def crowds(self) -> Mapping[Load, tuple[Step, ...]]:
        """Of many users, by load."""
        return {load: steps for load, steps in self.steps.items() if load.users > ALONE}

    @property
    def crowd(self) -> tuple[Step, ...]:
        """Of many users, from the tool that held up fewest rungs; of several the fastest."""

        def place(steps: Sequence[Step]) -> tuple[int, float]:
            return sum(held_up(step) for step in steps), -sum(step.rps for step in steps)

        return min(self.crowds.values(), key=place, default=())

    def twin(self, step: Step) -> Step | None:
        """The same rung with one user."""
        return next((one for one in self.alone if one.rung.name == step.rung.name), None)


def held_up(step: Step) -> bool:
    """Whether the load tool was the limit in half of the launches or more."""
    return 2 * sum(bool(cell.generator_bound) for cell in step.cells) >= len(step.cells)


def ladder(
    cells: Iterable[CellResult], rungs: Sequence[Configuration], environment: Mapping[str, object]
) -> Ladder:
    """`cells`: of a run whose cells name their rung."""
    believed: dict[Load, dict[str, list[CellResult]]] = {}
    for cell in cells:
        asked = cell.trial.cell
        of_load = believed.setdefault(Load(asked.tool, asked.concurrency), {})
        if cell.verdict != "invalid" and cell.throughput_rps:
            of_load.setdefault(asked.server.name, []).append(cell)
    steps = {
        load: _steps(load, of_load, rungs)
        for load, of_load in sorted(believed.items(), key=lambda pair: pair[0].users)
        if of_load
    }
    return Ladder(tuple(rungs), steps, environment)


def _steps(
    load: Load, cells: Mapping[str, list[CellResult]], rungs: Sequence[Configuration]
) -> tuple[Step, ...]:
    found: list[Step] = []
    for rung in rungs:
        if rung.name in cells:
            step = Step(rung, load, tuple(cells[rung.name]))
            before = found[-1] if found else None
            factor = None if before is None else factor_of(before.logs, step.logs)
            found.append(Step(rung, load, step.cells, factor))
    return tuple(found)


def factor_of(before: Sequence[float], after: Sequence[float]) -> Factor:
    """From the logarithms of each side's launches, at least one on each."""
    centre = fmean(after) - fmean(before)
    half = half_width(after, before) if min(len(before), len(after)) > 1 else None
    if half is None:
        return Factor(math.exp(centre))
    return Factor(math.exp(centre), math.exp(centre - half), math.exp(centre + half))
