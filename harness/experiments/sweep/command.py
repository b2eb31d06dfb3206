"""The sweep: every worker class at every concurrency, each trial on a fresh server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from harness.experiments.planning import lacking, plan_of
from harness.experiments.runner import Setup, recheck, versions
from harness.model import Plan
from harness.server import preflight

KIND = "sweep"
RESUMES_WITH = ()


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    """What was missing when a run was begun may be there now, so that is looked up anew."""
    if plan is None:
        plan, interpreter = plan_of(options)
    else:
        interpreter = recheck(plan)
        plan = replace(plan, unavailable=lacking(plan.servers, interpreter))
    label = "-".join(dict.fromkeys(server.worker_class for server in plan.servers))
    yield Setup(plan, preflight.fingerprint(interpreter, versions(plan)), label)
