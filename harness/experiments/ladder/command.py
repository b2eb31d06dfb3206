"""`workerlab ladder`: what makes a real web app fast? A blog, with one thing less at each step.

Every configuration is a server of ordinary cells, whose app is told by its environment where its
posts are stored and what it may cache.

Addresses may hold passwords: they are given to the servers and written nowhere, and a run that is
resumed asks for them again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from harness.experiments.ladder.configurations import (
    CACHE,
    Configuration,
    configurations,
    from_details,
    to_details,
)
from harness.experiments.ladder.options import STORAGES
from harness.experiments.ladder.services import Services, services
from harness.experiments.ladder.steps import ONE_USER
from harness.experiments.planning import check_tools, gunicorn_plan, installed
from harness.experiments.runner import Setup
from harness.model import Cell, EnvironmentProblem, Plan
from harness.server import preflight
from harness.server import services as server_services
from harness.server.service_check import KINDS, check_url

URLS = {f"{kind}_url": kind for kind in KINDS if kind != "sqlite"}  # options; may hold passwords
RESUMES_WITH = tuple(URLS)
ONE_USER_TOOL = "fast"
TOOLS = ("locust-fast", "fast")  # for many users: those of them that are installed


class Scale(NamedTuple):
    users: int
    duration_s: float
    trials: int


FULL = Scale(1000, 6.0, 3)
QUICK = Scale(100, 2.0, 1)


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    """All that can be refused is, before a service is started."""
    if why := server_services.lacks_packages(server_services.BLOG):
        raise EnvironmentProblem(why)
    urls = {kind: url for name, kind in URLS.items() if (url := getattr(options, name, None))}
    for kind, url in urls.items():
        check_url(kind, url)
    usual = QUICK if options.quick else FULL
    scale = Scale(
        options.users or usual.users,
        options.duration or usual.duration_s,
        options.trials or usual.trials,
    )
    preflight.check_levels([scale.users])
    check_tools(options.tools or ())
    tools, notes = installed(options.tools or TOOLS)
    interpreter = None if plan else preflight.interpreter(sys.executable, Path(), None)
    storages = options.storages or _storages(urls)
    with services(_kinds(plan) if plan else (*storages, CACHE), urls) as found:
        if plan and found.lacking:
            raise EnvironmentProblem("; ".join(found.lacking.values()))
        if interpreter is not None:
            wanted = configurations(found.lacking, storages, options.workers or 2)
            planned = [_with_page(one, found) for one in wanted]
            plan = gunicorn_plan(
                "ladder",
                _cells(planned, scale.users, tools),
                interpreter,
                trials=scale.trials,
                duration_s=scale.duration_s,
                notes=notes,
                details=to_details(planned),
            )
        if not plan or not plan.cells:
            raise EnvironmentProblem("; ".join(found.lacking.values()))
        by_name = {one.name: one for one in from_details(plan)}
        yield Setup(
            plan,
            interpreter,
            {"services": found.versions},
            beside=lambda trial, launch: found.beside(by_name[trial.cell.server.name], launch),
        )


def _cells(planned: Sequence[Configuration], users: int, tools: Sequence[str]) -> tuple[Cell, ...]:
    loads = [(ONE_USER_TOOL, ONE_USER), *((tool, users) for tool in tools)]
    return tuple(
        Cell(one.server, tool, many, keepalive=True)
        for one in planned
        if not one.why_not
        for tool, many in loads
    )


def _storages(urls: Mapping[str, str]) -> tuple[str, ...]:
    """All but SQLite, or that where none of them can be had."""
    others = tuple(kind for kind in STORAGES if kind != "sqlite")
    able = any(kind in urls or not server_services.lacks(kind) for kind in others)
    return others if able else STORAGES


def _kinds(plan: Plan) -> tuple[str, ...]:
    """Of the services that a plan needs."""
    able = [one for one in from_details(plan) if not one.why_not]
    return tuple(dict.fromkeys(kind for one in able for kind in (one.storage, one.cache) if kind))


def _with_page(one: Configuration, found: Services) -> Configuration:
    """Its app knows the only right answer."""
    app = replace(one.server.app, body_sha256=found.pages.get(one.storage))
    return replace(one, server=replace(one.server, app=app))
