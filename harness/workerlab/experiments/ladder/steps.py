"""The trials of each configuration under each load, and what they say together.

Requests/s are averaged geometrically, since what is asked of them is a factor; everything else
arithmetically, so that parts still add up. The unit of replication is a fresh launch of the server.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean, geometric_mean

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.core_wait import worst
from workerlab.experiments.document import cores_of
from workerlab.experiments.ladder.configurations import Configuration, removals
from workerlab.model import CellResult, Finding
from workerlab.numbers.intervals import Ratio, ratio

ONE_USER = 1
USUAL_USERS = "usual_users"  # in the details of a plan that searches for the limit


class Load(Struct, frozen=True):
    """What is asked of every configuration: so many users, sent by this tool."""

    tool: str
    users: int

    @property
    def text(self) -> Finding:
        return Finding("ladder.load", {"users": self.users, "tool": self.tool})


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


class Step(Struct, frozen=True):
    """The valid trials of one configuration under one load: at least one. `removed`: what the
    configuration lacks. `ratio`: requests/s over those of the step before; None for the first."""

    configuration: Configuration
    removed: Finding
    load: Load
    cells: tuple[CellResult, ...]
    ratio: Ratio | None = None

    @property
    def rates(self) -> list[float]:
        """Requests/s of each trial."""
        return [cell.throughput_rps for cell in self.cells if cell.throughput_rps]

    @property
    def rps(self) -> float:
        return geometric_mean(self.rates)

    def mean(self, field: str) -> float | None:
        """Of a field of CellResult ("usage.server_cores"), over trials that know it, or None."""
        return _mean(map(attrgetter(field), self.cells))

    def metric(self, field: str, name: str) -> float | None:
        """Likewise, of a mapping of AppMetrics: ("spent_s", "pool")."""
        metrics = [cell.app_metrics for cell in self.cells if cell.app_metrics is not None]
        return _mean(getattr(one, field).get(name) for one in metrics)

    @property
    def app_cpu_s(self) -> float | None:
        """CPU of the app's workers per request."""
        cores = self.mean("usage.server_cores")
        return None if cores is None else cores / self.rps

    @property
    def others_cores(self) -> float | None:
        """Busy cores that nothing of the trials used."""
        return _mean(cell.core_wait.others_cores for cell in self.cells if cell.core_wait)

    @property
    def disturbance(self) -> Finding | None:
        """What others did to it, where half of the trials or more had to wait for a core."""
        waits = [cell.core_wait for cell in self.cells if cell.core_wait]
        often = 2 * sum(wait.doubtful for wait in waits) >= len(self.cells)
        return worst(waits) if often else None

    @property
    def tool_bound(self) -> bool:
        """Whether the load tool was the limit in half of the trials or more."""
        return 2 * sum(bool(cell.generator_bound) for cell in self.cells) >= len(self.cells)


class Ladder(Struct, frozen=True):
    """`removed`: what each configuration that can be run lacks, by its name. `steps`: by load, the
    fewest users first; configurations of which no trial is valid are not among them. `cells`: all
    of the run. `usual_users`: in a search for the limit, those of the steps, the fewest of many."""

    configurations: tuple[Configuration, ...]
    removed: Mapping[str, Finding]
    steps: Mapping[Load, tuple[Step, ...]]
    environment: Mapping[str, object]
    cells: tuple[CellResult, ...] = ()
    usual_users: int | None = None

    def usual(self, users: int) -> bool:
        """Whether so many are those of a step, and not of a search for the limit."""
        return self.usual_users is None or users <= self.usual_users

    @property
    def cores(self) -> int | None:
        return cores_of(self.environment)

    @property
    def one_user(self) -> tuple[Step, ...]:
        steps = (steps for load, steps in self.steps.items() if load.users == ONE_USER)
        return next(steps, ())

    @property
    def many_users(self) -> Mapping[Load, tuple[Step, ...]]:
        many = [load for load in self.steps if load.users > ONE_USER and self.usual(load.users)]
        return {load: self.steps[load] for load in many}

    @property
    def conclusive(self) -> tuple[Step, ...]:
        """Of many users, from the tool that was the limit least often; of several the fastest."""

        def order(steps: Sequence[Step]) -> tuple[int, float]:
            return sum(step.tool_bound for step in steps), -sum(step.rps for step in steps)

        return min(self.many_users.values(), key=order, default=())

    def with_one_user(self, step: Step) -> Step | None:
        """The same configuration."""
        same = (one for one in self.one_user if one.configuration.name == step.configuration.name)
        return next(same, None)


def ladder(
    cells: Iterable[CellResult],
    configurations: Sequence[Configuration],
    environment: Mapping[str, object],
    usual_users: int | None = None,
) -> Ladder:
    """`cells`: of a run, on servers that are named like their configuration."""
    cells = tuple(cells)
    valid: dict[Load, dict[str, list[CellResult]]] = {}
    for cell in cells:
        if cell.verdict != "invalid" and cell.throughput_rps:
            asked = cell.trial.cell
            by_name = valid.setdefault(Load(asked.tool, asked.concurrency), {})
            by_name.setdefault(asked.server.name, []).append(cell)
    removed = removals(configurations)
    steps: dict[Load, tuple[Step, ...]] = {}
    for load, by_name in sorted(valid.items(), key=lambda one: one[0].users):
        found: list[Step] = []
        for one in configurations:
            if one.name in by_name:
                step = Step(one, removed[one.name], load, tuple(by_name[one.name]))
                to_before = ratio(step.rates, found[-1].rates) if found else None
                found.append(replace(step, ratio=to_before))
        steps[load] = tuple(found)
    return Ladder(tuple(configurations), removed, steps, environment, cells, usual_users)
