"""`workerlab ladder`: what makes a real web app fast? A blog, with one thing less at each step.

Every configuration is a server of ordinary cells, whose app is told by its environment where its
posts are stored and what it may cache.

Addresses may hold passwords: they are given to the servers and written nowhere, and a run that is
resumed asks for them again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.experiments.ladder.configurations import (
    CACHE,
    configurations,
    from_details,
    to_details,
)  # fmt: skip
from harness.experiments.ladder.options import STORAGES
from harness.experiments.ladder.services import services
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
    if plan:  # of the services that it needs
        able = [one for one in from_details(plan) if not one.why_not]
        kinds = tuple(dict.fromkeys(kind for one in able for kind in one.kinds))
    else:
        kinds = (*(options.storages or _storages(urls)), CACHE)
    with services(kinds, urls) as found:
        if plan and found.lacking:
            raise EnvironmentProblem("; ".join(found.lacking.values()))
        if interpreter is not None:
            workers = options.workers or 2
            planned = configurations(found.lacking, kinds[:-1], workers, found.pages)
            loads = [(ONE_USER_TOOL, ONE_USER), *((tool, scale.users) for tool in tools)]
            cells = (
                Cell(one.server, tool, users, keepalive=True)
                for one in planned
                if not one.why_not
                for tool, users in loads
            )
            plan = gunicorn_plan(
                "ladder",
                cells,
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


def _storages(urls: Mapping[str, str]) -> tuple[str, ...]:
    """All but SQLite, or that where none of them can be had."""
    others = tuple(kind for kind in STORAGES if kind != "sqlite")
    able = any(kind in urls or not server_services.lacks(kind) for kind in others)
    return others if able else STORAGES
