"""The sweep: every worker class at every concurrency, each trial on a fresh server."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from workerlab.experiments.jobs import sleeps
from workerlab.experiments.planning import plan_of
from workerlab.experiments.runner import Setup
from workerlab.model import Plan, UsageError

RESUMES_WITH = ("fail_on_slo", "jobs")


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    if options.fail_on_slo and not (options.slo if plan is None else plan.slo):
        raise UsageError("--fail-on-slo needs a target: --slo 'p95<300ms'")
    made, found = plan_of(options) if plan is None else (plan, {})
    if plan is None or options.jobs:
        made = replace(made, jobs=jobs_of(options.jobs, made))
    label = "-".join(dict.fromkeys(server.worker_class for server in made.servers))
    yield Setup(made, found, label=label)


def jobs_of(asked: int | str | None, plan: Plan) -> int | None:
    """As in Plan. Unasked, an app of the user's has the machine for itself."""
    if asked is None:
        return None if all(sleeps(server.app) for server in plan.servers) else 1
    return None if asked == "auto" else int(asked)
