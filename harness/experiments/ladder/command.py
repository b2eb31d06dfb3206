"""`workerlab ladder`: what makes a real web app fast? A blog, with one thing less per rung.

Every rung is an ordinary cell on an ordinary server, whose app is told by its environment where its
posts stand and what it may cache. What it stands on is started once and shared by all: nobody
writes while it is measured. All rungs must show the same page, which is computed beforehand from
what was stored, past every cache; an answer of any other bytes is a failure.

Addresses may hold passwords: they are given to the servers and written nowhere, and a run that is
resumed asks for them again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness import run_store as store
from harness.experiments.ladder.configurations import (
    STORAGES,
    Configuration,
    configurations,
    from_details,
    to_details,
)
from harness.experiments.planning import check, lacking, lacks, new_seed
from harness.experiments.runner import Setup, recheck, tell, versions
from harness.model import App, Cell, EnvironmentProblem, Finding, Trial
from harness.plan import Plan
from harness.server import preflight
from harness.server import services as components
from harness.server.running import Launch
from harness.server.service_check import NAMES
from harness.server.services import Component

KIND = "ladder"
RESUMES_WITH = ("mongodb_url", "postgresql_url", "redis_url")  # they may hold passwords
ALONE = "fast"  # who asks for the page of one user
TOOLS = ("locust-fast", "fast")  # those of them that are installed
POSTS = 1000
POST = "1"  # whose page everybody reads
ANSWER_S = 120.0  # for a thousand posts on a busy machine


@dataclass(frozen=True)
class Scale:
    users: int
    duration_s: float
    trials: int


FULL = Scale(1000, 6.0, 3)
QUICK = Scale(100, 2.0, 1)


@dataclass(frozen=True)
class Ground:
    """What the rungs stand on, by kind, and why other kinds cannot be had. `folder`: for what the
    blog uploads. `pages`: SHA-256 of the page that everybody reads, by storage."""

    there: Mapping[str, Component]
    lacking: Mapping[str, str]
    folder: Path
    pages: Mapping[str, str]

    def env(self, storage: str, cache: str = "") -> tuple[tuple[str, str], ...]:
        redis = self.there[cache].url if cache else ""
        return (
            ("BLOG_STORAGE", self.there[storage].url),
            ("BLOG_REDIS", redis),
            ("BLOG_UPLOADS", str(self.folder)),
        )

    def beside(self, plan: Plan, one: Trial, launch: Launch) -> Launch:
        """The server's launch, with what its rung works with."""
        rung = next(c for c in from_details(plan) if c.name == one.cell.server.name)
        kinds = {"storage": rung.storage, "cache": rung.cache}
        pids = {name: self.there[kind].pid for name, kind in kinds.items() if kind}
        parts = {name: pid for name, pid in pids.items() if pid is not None}
        return replace(launch, env=self.env(rung.storage, rung.cache), parts=parts)


# --- what the rungs stand on --------------------------------------------------------------------


@contextmanager
def ground(kinds: tuple[str, ...], urls: Mapping[str, str]) -> Iterator[Ground]:
    """Everything of `kinds` that can be had, the storages seeded; gone afterwards. `urls`: what is
    used instead of starting one, by kind. Raises EnvironmentProblem for a URL that is of no use."""
    with ExitStack() as stack:
        there, missing = {}, {}
        for kind in kinds:
            try:
                there[kind] = stack.enter_context(_component(kind, urls))
                tell(f"{NAMES[kind]}: {there[kind].says}")
            except EnvironmentProblem as problem:
                if kind in urls:
                    raise
                missing[kind] = str(problem)
                tell(f"no {NAMES[kind]}: {problem}")
        folder = stack.enter_context(components.folder())
        found = Ground(there, missing, folder, {})
        storages = [kind for kind in there if kind in STORAGES]
        pages = {kind: stack.enter_context(_seeded(found, kind, kind in urls)) for kind in storages}
        yield replace(found, pages=pages)


START: Mapping[str, Callable[[], AbstractContextManager[Component]]] = {
    "postgresql": components.postgresql,
    "redis": components.redis,
    "sqlite": components.sqlite,
}


@contextmanager
def _component(kind: str, urls: Mapping[str, str]) -> Iterator[Component]:
    """Raises EnvironmentProblem where it cannot be had, with what to do about it."""
    if why := components.lacks_driver(kind):
        raise EnvironmentProblem(why)
    if kind in urls:
        yield components.given(kind, urls[kind])
    elif kind in START:
        with START[kind]() as started:
            yield started
    else:
        raise EnvironmentProblem(components.lacks(kind))


@contextmanager
def _seeded(ground: Ground, kind: str, foreign: bool) -> Iterator[str]:
    """The storage holds the lab's posts; SHA-256 of the page that everybody reads. One that is not
    the lab's own is left as it was. Raises EnvironmentProblem where it holds posts already."""
    if int(_blog(ground, kind, "count")):
        raise EnvironmentProblem(
            f"the {NAMES[kind]} that was named holds posts already: name an empty database"
        )
    try:
        _blog(ground, kind, "seed", "--posts", str(POSTS))
        yield hashlib.sha256(_blog(ground, kind, "page", POST)).hexdigest()
    finally:
        if foreign:
            _blog(ground, kind, "drop")


def _blog(ground: Ground, kind: str, *words: str) -> bytes:
    """What the blog's own command says. Raises EnvironmentProblem."""
    argv = [sys.executable, "-m", "apps.blog", *words]
    env = {**os.environ, **dict(ground.env(kind))}
    try:
        done = subprocess.run(
            argv, cwd=store.ROOT, env=env, capture_output=True, timeout=ANSWER_S, check=True
        )
    except subprocess.CalledProcessError as problem:
        last = problem.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise EnvironmentProblem(f"{NAMES[kind]} cannot be used: {last}") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"{NAMES[kind]} took longer than {ANSWER_S:g} s") from None
    return done.stdout


# --- the plan -----------------------------------------------------------------------------------


def plan_of(options: argparse.Namespace, found: Ground) -> tuple[Plan, preflight.Interpreter]:
    """Raises EnvironmentProblem, UsageError."""
    usual = QUICK if options.quick else FULL
    users = options.users or usual.users
    preflight.check_levels([users])
    interpreter = preflight.interpreter(sys.executable, Path(), None)
    planned = tuple(
        replace(one, server=replace(one.server, app=_with_page(one, found)))
        for one in configurations(found.lacking, options.storages, options.workers or 2)
    )
    tools, notes = _tools(options.tools)
    cells = tuple(cell for one in planned if not one.why_not for cell in _cells(one, tools, users))
    plan = Plan(
        kind=KIND,
        cells=cells,
        trials=options.trials or usual.trials,
        rounds=5,
        seed=new_seed(),
        python=sys.executable,
        config=None,
        unavailable=lacking([cell.server for cell in cells], interpreter),
        notes=notes,
        duration_s=options.duration or usual.duration_s,
        details=to_details(planned),
    )
    for cell in cells:
        check(plan, cell)
    return plan, interpreter


def _with_page(one: Configuration, found: Ground) -> App:
    """The app, and the only right answer of it."""
    return replace(one.server.app, body_sha256=found.pages.get(one.storage))


def _cells(one: Configuration, tools: tuple[str, ...], users: int) -> list[Cell]:
    asked = [(ALONE, 1), *((tool, users) for tool in tools)]
    return [Cell(one.server, tool, level, keepalive=True) for tool, level in asked]


def _tools(asked: tuple[str, ...] | None) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Load tools, and a note for each that is left out. Raises EnvironmentProblem for one that was
    asked for."""
    missing = {name: why for name in asked or TOOLS if (why := lacks(name))}
    if asked and missing:
        raise EnvironmentProblem(next(iter(missing.values())))
    there = tuple(name for name in asked or TOOLS if name not in missing)
    return there, tuple(Finding("note.left_out", {"why": why}) for why in missing.values())


# --- the command --------------------------------------------------------------------------------


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    if why := components.lacks_driver("blog"):
        raise EnvironmentProblem(why)
    urls = {kind: url for kind in NAMES if (url := getattr(options, f"{kind}_url", None))}
    kinds = _kinds(plan) if plan else (*_storages(options, urls), "redis")
    with ground(kinds, urls) as found:
        if plan is None:
            plan, interpreter = plan_of(options, found)
        elif found.lacking:
            raise EnvironmentProblem("; ".join(found.lacking.values()))
        else:
            interpreter = recheck(plan)
        if not plan.cells:
            raise EnvironmentProblem("; ".join(found.lacking.values()))
        environment = dict(preflight.fingerprint(interpreter, versions(plan)))
        environment["services"] = {kind: one.says for kind, one in found.there.items()}
        yield Setup(plan, environment, partial(found.beside, plan))


def _storages(options: argparse.Namespace, urls: Mapping[str, str]) -> tuple[str, ...]:
    """Those that were asked for, else all but SQLite, else that."""
    if options.storages is None:
        others = [kind for kind in STORAGES if kind != "sqlite"]
        able = [kind for kind in others if kind in urls or not components.lacks(kind)]
        options.storages = tuple(others if able else (*others, "sqlite"))
    return tuple(options.storages)


def _kinds(plan: Plan) -> tuple[str, ...]:
    there = [one for one in from_details(plan) if not one.why_not]
    kinds = [kind for one in there for kind in (one.storage, one.cache) if kind]
    return tuple(dict.fromkeys(kinds))
