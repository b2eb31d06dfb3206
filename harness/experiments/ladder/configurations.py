"""The configurations of the ladder: the same blog, with one thing less at each step. Pure.

    every cache -> without the workers' own -> without Redis -> the next storage instead
    -> one worker -> sync instead of async

A configuration whose services cannot be had is left out, and the others are built on what there is.
The first storage that can be had is the one that is measured with the caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

from harness import codec
from harness.model import App, Finding, Plan, Server, UsageError
from harness.server.service_check import name_of

CACHE = "redis"
ASYNC, SYNC = "uvicorn", "sync"  # worker classes
PATH = "/posts/1"  # what every user reads
POOL = 10  # connections to the storage, per worker
# A thousand requests at once keep an event loop from looking at an answer for seconds: that is what
# is measured, and no reason to call a database dead
ANSWER_S = 60
BACKLOG = 2048
CONNECTIONS = 4000  # a worker's, for classes that heed it
LOCAL = "BLOG_LOCAL"  # tells the blog whether its workers keep what they have read


@dataclass(frozen=True)
class Configuration:
    """One step of the ladder. `storage`, `cache`: the services that the app needs (postgresql,
    mongodb, sqlite; redis), "" for none. `why_not`: why it cannot be run here, "" where it can."""

    server: Server
    storage: str
    cache: str = ""
    why_not: str = ""

    @property
    def name(self) -> str:
        """Unique in its ladder."""
        return self.server.name

    @property
    def local_cache(self) -> bool:
        return (LOCAL, "1") in self.server.app.env

    @property
    def workers(self) -> int:
        return self.server.workers

    @property
    def text(self) -> Finding:
        """All its settings."""
        return Finding(
            "ladder.configuration",
            {
                "worker_class": self.server.worker_class,
                "workers": self.workers,
                "storage": name_of(self.storage),
                "cache": name_of(self.cache),
                "local_cache": Finding("ladder.local_cache") if self.local_cache else None,
            },
        )


# What two configurations may differ in
SETTINGS = {
    name.rpartition(".")[2]: attrgetter(name)
    for name in ("local_cache", "cache", "storage", "server.workers", "server.worker_class")
}


def differences(one: Configuration, other: Configuration) -> tuple[str, ...]:
    return tuple(name for name, setting in SETTINGS.items() if setting(one) != setting(other))


def removals(configurations: Sequence[Configuration]) -> dict[str, Finding]:
    """What each of those that can be run lacks that the one before had, by its name."""
    able = [one for one in configurations if not one.why_not]
    found = {one.name: Finding("ladder.removed.nothing") for one in able[:1]}
    for before, after in pairwise(able):
        (setting,) = differences(before, after)
        values: dict[str, dict[str, object]] = {
            "cache": {"cache": name_of(before.cache)},
            "storage": {
                "storage": name_of(before.storage),
                "instead": name_of(after.storage),
            },
        }
        found[after.name] = Finding(f"ladder.removed.{setting}", values.get(setting, {}))
    return found


@dataclass(frozen=True)
class _Settings:
    storage: str
    redis: bool = True
    local: bool = True
    workers: int = 2
    worker_class: str = ASYNC

    def configuration(self, lacking: Mapping[str, str]) -> Configuration:
        caches = ["redis"] * self.redis + ["local"] * self.local
        name = "-".join([self.storage, *caches, self.worker_class, f"w{self.workers}"])
        env = {LOCAL: int(self.local), "BLOG_POOL": POOL, "BLOG_ANSWER": ANSWER_S}
        app = App(
            f"apps.blog.{'asgi' if self.worker_class == ASYNC else 'wsgi'}:app",
            path=PATH,
            env=tuple((name, str(value)) for name, value in env.items()),
        )
        cache = CACHE if self.redis else ""
        return Configuration(
            Server(self.worker_class, self.workers, 1, BACKLOG, CONNECTIONS, app=app, name=name),
            self.storage,
            cache,
            why_not="; ".join(lacking[one] for one in (self.storage, cache) if one in lacking),
        )


def configurations(
    lacking: Mapping[str, str], storages: Sequence[str], workers: int = 2
) -> tuple[Configuration, ...]:
    """All of them on these storages, with those that cannot be run: their `why_not` is not empty.

    `lacking`: services that cannot be had, and why.
    """
    able = [one for one in storages if one not in lacking]
    left_out = [_Settings(one, False, False, workers) for one in storages if one in lacking]
    steps: list[_Settings] = []
    if able:
        first = _Settings(able[0], workers=workers)
        if CACHE in lacking:
            left_out.append(first)
            first = replace(first, redis=False)
        steps = _steps(first, able[1:])
    return tuple(one.configuration(lacking) for one in (*left_out, *steps))


def _steps(first: _Settings, storages: Sequence[str]) -> list[_Settings]:
    """`first`, then one thing less each time."""
    steps = [first, replace(first, local=False)]
    if first.redis:
        steps.append(replace(steps[-1], redis=False))
    steps += [replace(steps[-1], storage=one) for one in storages]
    if first.workers > 1:
        steps.append(replace(steps[-1], workers=1))
    return [*steps, replace(steps[-1], worker_class=SYNC)]


def to_details(configurations: Sequence[Configuration]) -> dict[str, object]:
    """What a plan keeps of them."""
    return {"configurations": codec.plain(configurations)}


def from_details(plan: Plan) -> tuple[Configuration, ...]:
    """Those that a plan was made of, with those that cannot be run. Raises UsageError."""
    try:
        return codec.convert(plan.details["configurations"], tuple[Configuration, ...])
    except (KeyError, ValueError):
        raise UsageError("the plan of this run has no configurations: begin a new one") from None
