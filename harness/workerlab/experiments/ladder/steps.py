"""The trials of each configuration under each load, and their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from workerlab.analysis.diagnosis.cpu import Disturbance, worst
from workerlab.analysis.trials import Replicates, Trials, by_cell
from workerlab.experiments.document import cores_of
from workerlab.experiments.ladder.configurations import Configuration, removals
from workerlab.model import CellResult
from workerlab.numbers.formats import counted
from workerlab.numbers.intervals import Ratio

ONE_USER = 1
USUAL_USERS = "usual_users"  # in the details of a plan that searches for the limit


class UserLoad(Struct, frozen=True):
    """What is asked of every configuration: so many users, sent by this tool."""

    tool: str
    users: int

    @property
    def text(self) -> str:
        return f"{counted(self.users, 'user')} by {self.tool}"


class ConfigurationStep(Replicates[CellResult], frozen=True, kw_only=True):
    """The trials of one configuration under one load: at least one is valid. `removed`: what the
    configuration lacks. `change`: requests/s over those of the step before; None for the first."""

    configuration: Configuration
    removed: str
    load: UserLoad
    change: Ratio | None = None

    @property
    def rates(self) -> list[float]:
        """Requests/s of each trial."""
        return [rps for rps in self.values("throughput_rps") if rps > 0]

    @property
    def rps(self) -> float:
        return self.geometric_mean("throughput_rps") or 0.0

    def app_metric(self, field: str, name: str) -> float | None:
        """The mean of an item of AppMetrics: ("spent_s", "pool")."""

        def value(result: CellResult) -> float | None:
            metrics = result.app_metrics
            return None if metrics is None else getattr(metrics, field).get(name)

        return self.mean(value)

    @property
    def app_cpu_s(self) -> float | None:
        """CPU of the app's workers per request."""
        cores = self.mean("usage.server_cores")
        return None if cores is None else cores / self.rps

    @property
    def disturbance(self) -> Disturbance | None:
        """What others did to it, where half of the trials or more had to wait for a core."""
        waits = [result.core_wait for result in self.valid if result.core_wait]
        often = 2 * sum(wait.doubtful for wait in waits) >= len(self.valid)
        return worst(waits) if often else None

    @property
    def tool_bound(self) -> bool:
        """Whether the load tool was the limit in half of the trials or more."""
        return 2 * sum(bool(result.generator_bound) for result in self.valid) >= len(self.valid)


Steps = Sequence[ConfigurationStep]


class Ladder(Struct, frozen=True):
    """`removed`: what each configuration that can be run lacks, by its name. `steps`: by load, the
    fewest users first; configurations of which no trial is valid are not among them. `cells`: all
    of the run. `usual_users`: in a search for the limit, those of the steps, the fewest of many."""

    configurations: tuple[Configuration, ...]
    removed: Mapping[str, str]
    steps: Mapping[UserLoad, tuple[ConfigurationStep, ...]]
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
    def one_user(self) -> tuple[ConfigurationStep, ...]:
        steps = (steps for load, steps in self.steps.items() if load.users == ONE_USER)
        return next(steps, ())

    @property
    def many_users(self) -> Mapping[UserLoad, tuple[ConfigurationStep, ...]]:
        many = [load for load in self.steps if load.users > ONE_USER and self.usual(load.users)]
        return {load: self.steps[load] for load in many}

    @property
    def conclusive(self) -> tuple[ConfigurationStep, ...]:
        """Of many users, from the tool that was the limit least often; of several the fastest."""

        def order(steps: Steps) -> tuple[int, float]:
            return sum(step.tool_bound for step in steps), -sum(step.rps for step in steps)

        return min(self.many_users.values(), key=order, default=())

    def with_one_user(self, step: ConfigurationStep) -> ConfigurationStep | None:
        """The same configuration."""
        name = step.configuration.name
        return next((same for same in self.one_user if same.configuration.name == name), None)


def ladder(
    cells: Iterable[CellResult],
    configurations: Sequence[Configuration],
    environment: Mapping[str, object],
    usual_users: int | None = None,
) -> Ladder:
    """`cells`: of a run, on servers that are named like their configuration."""
    cells = tuple(cells)
    trials: dict[UserLoad, dict[str, Trials]] = {}
    for cell, trials_of_cell in by_cell(cells).items():
        if trials_of_cell.valid:
            load = UserLoad(cell.tool, cell.concurrency)
            trials.setdefault(load, {})[cell.server.name] = trials_of_cell
    removed = removals(configurations)
    return Ladder(
        configurations=tuple(configurations),
        removed=removed,
        steps={
            load: tuple(steps_of(load, by_name, configurations, removed))
            for load, by_name in sorted(trials.items(), key=lambda item: item[0].users)
        },
        environment=environment,
        cells=cells,
        usual_users=usual_users,
    )


def steps_of(
    load: UserLoad,
    trials: Mapping[str, Trials],
    configurations: Iterable[Configuration],
    removed: Mapping[str, str],
) -> Iterable[ConfigurationStep]:
    """`trials`, `removed`: by the name of the configuration."""
    before: Trials | None = None
    for configuration in configurations:
        name = configuration.name
        if name in trials:
            yield ConfigurationStep(
                valid=trials[name].valid,
                left_out=trials[name].left_out,
                configuration=configuration,
                removed=removed[name],
                load=load,
                change=trials[name].ratio(before) if before else None,
            )
            before = trials[name]
