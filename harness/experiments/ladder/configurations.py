"""The rungs of the caching ladder: the same blog, with one thing less each time. Pure.

    every cache -> without the workers' own -> without Redis -> the next storage instead
    -> one worker -> sync instead of async

All that a rung stands on must be there: what is missing leaves its rungs out, and the others stand
on what there is. The first storage that can be had carries the caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.model import App, Rung, Server

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


def rungs(
    lacking: Mapping[str, str], storages: Sequence[str], workers: int = 2
) -> tuple[Rung, ...]:
    """All rungs on these storages, with those that cannot be run: their `why_not` says it.

    `lacking`: kinds of components that cannot be had, and why.
    """
    able = [one for one in storages if one not in lacking]
    first = _Step(able[0] if able else storages[0], workers=workers)
    missing = [_Step(one, workers=workers, redis=False, local=False) for one in storages]
    without = [_rung(one, "", lacking) for one in missing if one.storage in lacking]
    if not able:
        return tuple(without)
    if "redis" in lacking:
        both = _rung(first, "", lacking)
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
    found = (_rung(step, less, {}) for step, less in zip(steps, removed, strict=True))
    return (*without, *found)


def _rung(step: _Step, removed: str, lacking: Mapping[str, str]) -> Rung:
    face = "asgi" if step.waits else "wsgi"
    env = {"BLOG_LOCAL": int(step.local), "BLOG_POOL": POOL, "BLOG_ANSWER": ANSWER_S}
    needs = [step.storage, *["redis"] * step.redis]
    return Rung(
        name=step.name,
        title=step.title,
        removed=removed,
        server=Server(ASYNC if step.waits else SYNC, step.workers, 1, BACKLOG, CONNECTIONS),
        app=App(
            f"apps.blog.{face}:app",
            "",
            path=PATH,
            env=tuple((name, str(value)) for name, value in env.items()),
        ),
        storage=step.storage,
        cache="redis" if step.redis else "",
        why_not="; ".join(lacking[one] for one in needs if one in lacking),
    )
