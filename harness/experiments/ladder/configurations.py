"""The rungs of the caching ladder: the same blog, with one thing less each time. Pure.

    every cache -> without the workers' own -> without Redis -> the next storage instead
    -> one worker -> sync instead of async

All that a rung stands on must be there: what is missing leaves its rungs out, and the others stand
on what there is. The first storage that can be had carries the caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from harness.model import App, Server
from harness.plan import Plan

STORAGES = ("mongodb", "postgresql", "sqlite")  # in the order of the ladder
NAMES = {
    "mongodb": "MongoDB",
    "postgresql": "PostgreSQL",
    "sqlite": "SQLite",
    "redis": "Redis",
}
ASYNC, SYNC = "uvicorn", "sync"  # worker classes
PATH = "/posts/1"  # what everybody reads
POOL = 10  # connections to the storage, per worker
# A thousand requests at once keep an event loop from looking at an answer for seconds: that is what
# is measured, and no reason to call a database dead
ANSWER_S = 60
BACKLOG = 2048
CONNECTIONS = 4000  # a worker's, for classes that heed it


@dataclass(frozen=True)
class Configuration:
    """One step of the ladder: settings that differ from those of the one before in one thing.

    `storage`, `cache`: the kind of service the app needs (postgresql, mongodb, sqlite; redis), ""
    for none. `removed`: what the one before had and this one lacks, "" for the first. `why_not`:
    why it cannot be run here, "" where it can.
    """

    title: str  # all its settings, as a person would say them
    removed: str
    server: Server
    storage: str
    cache: str = ""
    why_not: str = ""

    @property
    def name(self) -> str:
        """Unique in its ladder."""
        return self.server.name

    @property
    def settings(self) -> tuple[str, int]:
        """Of its server, whatever the app may cache."""
        return self.server.worker_class, self.server.workers


@dataclass(frozen=True)
class _Step:
    """`local`: the workers keep what they have read."""

    storage: str
    redis: bool = True
    local: bool = True
    workers: int = 2
    waits: bool = True

    @property
    def name(self) -> str:
        caches = ["redis"] * self.redis + ["local"] * self.local
        face = ASYNC if self.waits else SYNC
        return "-".join([self.storage, *caches, face, f"w{self.workers}"])

    @property
    def title(self) -> str:
        workers = f"{self.workers} worker{'s' * (self.workers != 1)}"
        parts = ["async" if self.waits else "sync", workers]
        parts += [NAMES[self.storage]]
        parts += ["Redis"] * self.redis + ["in-process cache"] * self.local
        return ", ".join(parts)


def configurations(
    lacking: Mapping[str, str], storages: Sequence[str], workers: int = 2
) -> tuple[Configuration, ...]:
    """All rungs on these storages, with those that cannot be run: their `why_not` says it.

    `lacking`: kinds of components that cannot be had, and why.
    """
    able = [one for one in storages if one not in lacking]
    first = _Step(able[0] if able else storages[0], workers=workers)
    missing = [_Step(one, workers=workers, redis=False, local=False) for one in storages]
    without = [_configuration(one, "", lacking) for one in missing if one.storage in lacking]
    if not able:
        return tuple(without)
    if "redis" in lacking:
        both = _configuration(first, "", lacking)
        first = replace(first, redis=False)
        without.append(both)
    steps = [first, replace(first, local=False)]
    removed = ["", "the in-process cache"]
    if first.redis:
        steps.append(replace(steps[-1], redis=False))
        removed.append("Redis")
    for one in able[1:]:
        removed.append(f"{NAMES[steps[-1].storage]} (for {NAMES[one]})")
        steps.append(replace(steps[-1], storage=one))
    if workers > 1:
        steps.append(replace(steps[-1], workers=1))
        removed.append("the other workers")
    steps.append(replace(steps[-1], waits=False))
    removed.append("async")
    found = (_configuration(step, less, {}) for step, less in zip(steps, removed, strict=True))
    return (*without, *found)


def _configuration(step: _Step, removed: str, lacking: Mapping[str, str]) -> Configuration:
    face = "asgi" if step.waits else "wsgi"
    env = {"BLOG_LOCAL": int(step.local), "BLOG_POOL": POOL, "BLOG_ANSWER": ANSWER_S}
    needs = [step.storage, *["redis"] * step.redis]
    app = App(
        f"apps.blog.{face}:app",
        path=PATH,
        env=tuple((name, str(value)) for name, value in env.items()),
    )
    worker_class = ASYNC if step.waits else SYNC
    return Configuration(
        title=step.title,
        removed=removed,
        server=Server(worker_class, step.workers, 1, BACKLOG, CONNECTIONS, app=app, name=step.name),
        storage=step.storage,
        cache="redis" if step.redis else "",
        why_not="; ".join(lacking[one] for one in needs if one in lacking),
    )


def configurations_of(plan: Plan) -> tuple[Configuration, ...]:
    """Those that a plan was made of, with those that cannot be run."""
    return msgspec.convert(plan.details["configurations"], tuple[Configuration, ...])


def configuration_of(plan: Plan, name: str) -> Configuration:
    return next(one for one in configurations_of(plan) if one.name == name)
