"""The configurations of the ladder, their trials under each load, and the statistics.

All run the same blog; each step removes one thing:

    every cache -> no in-process cache -> no Redis -> the next storage instead
    -> one worker -> sync instead of async

A configuration whose services are unavailable is left out.
The caches are measured with the first available storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from workerlab import codec
from workerlab.analysis.diagnosis.cpu import Disturbance, worst_disturbance
from workerlab.analysis.trials import Trials, by_cell
from workerlab.errors import UsageError
from workerlab.model.plan import App, Plan, Server
from workerlab.model.result import TrialResult
from workerlab.numbers.intervals import Ratio
from workerlab.numbers.units import counted
from workerlab.paths import target_of
from workerlab.report.values import cores_of
from workerlab.server.service_check import name_of

CACHE = "redis"
ASYNC, SYNC = "uvicorn", "sync"  # worker classes
PATH = "/posts/1"  # what every user reads
POOL_CONNECTIONS = 10  # connections to the storage, per worker
# With a thousand requests at once, an event loop may read a reply seconds late. That delay should
# be measured, not reported as a database failure
STORAGE_TIMEOUT_S = 60
BACKLOG = 2048
WORKER_CONNECTIONS = 4000  # per worker, for classes that honour it
LOCAL = "BLOG_LOCAL"  # turns the blog's in-process cache on or off
LOCAL_CACHE = "in-process cache"
NOTHING = "nothing"  # removed from the first configuration


class Configuration(Struct, frozen=True):
    """One step of the ladder. `storage`, `cache`: the services that the app needs (postgresql,
    mongodb, sqlite; redis), "" for none. `why_not`: why it cannot be run here, "" if it can.
    `stand_ins`: kinds replaced by another server with the same protocol."""

    server: Server
    storage: str
    cache: str = ""
    why_not: str = ""
    stand_ins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name, unique in its ladder."""
        return self.server.name

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the services that the configuration needs."""
        return tuple(filter(None, (self.storage, self.cache)))

    def service(self, kind: str) -> str:
        """The display name of a service."""
        return f"{name_of(kind)}-compatible server" if kind in self.stand_ins else name_of(kind)

    @property
    def local_cache(self) -> bool:
        return (LOCAL, "1") in self.server.app.env

    @property
    def text(self) -> str:
        """All its settings, as text."""
        parts = [self.server.worker_class, counted(self.server.workers, "worker")]
        parts += [self.service(kind) for kind in self.kinds]
        return ", ".join([*parts, LOCAL_CACHE] if self.local_cache else parts)


# Settings in which two configurations may differ
SETTINGS = {
    name.rpartition(".")[2]: attrgetter(name)
    for name in ("local_cache", "cache", "storage", "server.workers", "server.worker_class")
}


def differences(before: Configuration, after: Configuration) -> tuple[str, ...]:
    """Names of the SETTINGS in which they differ."""
    return tuple(name for name, setting in SETTINGS.items() if setting(before) != setting(after))


def removals(configurations: Sequence[Configuration]) -> dict[str, str]:
    """What each runnable configuration lacks compared with the previous one, by name."""
    runnable = [configuration for configuration in configurations if not configuration.why_not]
    removed = {first.name: NOTHING for first in runnable[:1]}
    for before, after in pairwise(runnable):
        (setting,) = differences(before, after)
        removed[after.name] = {
            "local_cache": LOCAL_CACHE,
            "cache": before.service(before.cache),
            "storage": f"{before.service(before.storage)} (for {name_of(after.storage)})",
            "workers": "other workers",
            "worker_class": "async",
        }[setting]
    return removed


def configurations(
    unavailable: Mapping[str, str],
    storages: Sequence[str],
    workers: int = 2,
    pages: Mapping[str, str] = {},
    stand_ins: tuple[str, ...] = (),
) -> tuple[Configuration, ...]:
    """All configurations on these storages. Those that cannot run have a `why_not`.

    `unavailable`: reasons by service. `pages`: SHA-256 of the only valid page, by storage.
    `stand_ins`: as in Configuration.
    """
    available = [storage for storage in storages if storage not in unavailable]
    settings = [
        Settings(storage, workers, redis=False, local=False)
        for storage in storages
        if storage in unavailable
    ]
    if available:
        full = Settings(available[0], workers)
        if CACHE in unavailable:
            settings.append(full)
            full = full._replace(redis=False)
        changes: list[dict[str, Any]] = [
            {"local": False},
            {"redis": False},
            *({"storage": storage} for storage in available[1:]),
            {"workers": 1},
            {"worker_class": SYNC},
        ]
        settings += accumulate(changes, lambda last, change: last._replace(**change), initial=full)
    # Drops changes without effect
    return tuple(
        configuration(variant, unavailable, pages, stand_ins) for variant in dict.fromkeys(settings)
    )


class Settings(NamedTuple):
    storage: str
    workers: int
    redis: bool = True
    local: bool = True
    worker_class: str = ASYNC


def configuration(
    settings: Settings, unavailable: Mapping[str, str], pages: Mapping[str, str],
    stand_ins: tuple[str, ...],
) -> Configuration:  # fmt: skip
    storage, workers, redis, local, worker_class = settings
    caches = ["redis"] * redis + ["local"] * local
    kind = f"{storage}-compatible" if storage in stand_ins else storage
    name = "-".join([kind, *caches, worker_class, f"w{workers}"])
    env = (
        (LOCAL, str(int(local))),
        ("BLOG_POOL", str(POOL_CONNECTIONS)),
        ("BLOG_ANSWER", str(STORAGE_TIMEOUT_S)),
    )
    target = target_of("@blog.asgi" if worker_class == ASYNC else "@blog.wsgi")
    app = App(target, path=PATH, env=env, body_sha256=pages.get(storage))
    server = Server(worker_class, workers, 1, BACKLOG, WORKER_CONNECTIONS, app=app, name=name)
    cache = CACHE if redis else ""
    why_not = "; ".join(unavailable[kind] for kind in (storage, cache) if kind in unavailable)
    return Configuration(server, storage, cache, why_not, stand_ins)


def to_details(configurations: Sequence[Configuration]) -> dict[str, object]:
    """The configurations in the form that a plan stores."""
    return {"configurations": codec.plain(configurations)}


def from_details(plan: Plan) -> tuple[Configuration, ...]:
    """All configurations of a plan, runnable or not. Raises UsageError if it has none."""
    try:
        return codec.convert(plan.details["configurations"], tuple[Configuration, ...])
    except (KeyError, ValueError):
        raise UsageError("this run's plan has no configurations: start a new run") from None


ONE_USER = 1
USUAL_USERS = "usual_users"  # in the details of a plan that searches for the limit


class UserLoad(Struct, frozen=True):
    """The load on every configuration: a number of users, simulated by one load tool."""

    tool: str
    users: int

    @property
    def text(self) -> str:
        return f"{counted(self.users, 'user')} ({self.tool})"


class ConfigurationStep(Trials, frozen=True, kw_only=True):
    """The trials of one configuration under one load, at least one of them valid. `removed`: what
    the step removed. `change`: requests/s relative to the previous step; None for the first."""

    configuration: Configuration
    removed: str
    change: Ratio | None = None

    @property
    def load(self) -> UserLoad:
        return UserLoad(self.cell.tool, self.cell.concurrency)

    @property
    def rates(self) -> list[float]:
        """Requests/s of each trial."""
        return self.positive("throughput_rps")

    @property
    def rps(self) -> float:
        return self.throughput_rps or 0.0

    def spent_s(self, parts: Iterable[str]) -> float | None:
        """The time of a request in these parts, as the app times them; None if it times none."""
        times_s = [self.mean(f"app_metrics.spent_s.{part}") for part in parts]
        timed_s = [time_s for time_s in times_s if time_s is not None]
        return sum(timed_s) if timed_s else None

    @property
    def app_cpu_s(self) -> float | None:
        """CPU time of the app's workers per request."""
        cores = self.mean("usage.server_cores")
        return None if cores is None else cores / self.rps

    @property
    def disturbance(self) -> Disturbance | None:
        """The worst disturbance by other programs or machines, if at least half of the trials were
        disturbed."""
        waits = (result.core_wait for result in self.valid)
        return worst_disturbance(waits) if self.mostly("core_wait.disturbed") else None


Steps = Sequence[ConfigurationStep]


class Ladder(Struct, frozen=True):
    """`removed`: what each runnable configuration removed, by name. `steps`: by load, the fewest
    users first, without configurations that have no valid trial. `cells`: all of the run.
    `usual_users`: the users of the steps, at which a search for the limit starts; None: no
    search."""

    configurations: tuple[Configuration, ...]
    removed: Mapping[str, str]
    steps: Mapping[UserLoad, Steps]
    environment: Mapping[str, object]
    cells: tuple[TrialResult, ...] = ()
    usual_users: int | None = None

    def is_usual(self, users: int) -> bool:
        """Whether the steps have this many users; further levels of a limit search have more."""
        return self.usual_users is None or users <= self.usual_users

    @property
    def cores(self) -> int | None:
        return cores_of(self.environment)

    @property
    def one_user(self) -> Steps:
        steps = (steps for load, steps in self.steps.items() if load.users == ONE_USER)
        return next(steps, ())

    @property
    def many_users(self) -> Mapping[UserLoad, Steps]:
        loads = [load for load in self.steps if load.users > ONE_USER and self.is_usual(load.users)]
        return {load: self.steps[load] for load in loads}

    @property
    def conclusive(self) -> Steps:
        """The steps under many users with the load tool that was the limit least often; if several
        tie, the fastest of these."""

        def order(steps: Steps) -> tuple[int, float]:
            return sum(bool(step.generator_bound) for step in steps), -sum(
                step.rps for step in steps
            )

        return min(self.many_users.values(), key=order, default=())

    def single_user_step(self, step: ConfigurationStep) -> ConfigurationStep | None:
        """The step of the same configuration for a single user, if it was measured."""
        name = step.configuration.name
        return next((other for other in self.one_user if other.configuration.name == name), None)


def ladder(
    cells: Iterable[TrialResult],
    configurations: Sequence[Configuration],
    environment: Mapping[str, object],
    usual_users: int | None = None,
) -> Ladder:
    """The ladder of a run. `cells`: each server is named after its configuration."""
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
            load: tuple(steps_of(by_name, configurations, removed))
            for load, by_name in sorted(trials.items(), key=lambda item: item[0].users)
        },
        environment=environment,
        cells=cells,
        usual_users=usual_users,
    )


def steps_of(
    trials: Mapping[str, Trials],
    configurations: Iterable[Configuration],
    removed: Mapping[str, str],
) -> Iterable[ConfigurationStep]:
    """The steps under one load. `trials`, `removed`: by the name of the configuration."""
    before: Trials | None = None
    for configuration in configurations:
        if (trials_of_step := trials.get(configuration.name)) is not None:
            yield ConfigurationStep(
                **asdict(trials_of_step),
                configuration=configuration,
                removed=removed[configuration.name],
                change=trials_of_step.ratio(before) if before else None,
            )
            before = trials_of_step
