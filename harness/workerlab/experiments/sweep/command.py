"""The sweep: every worker class at every concurrency, each trial on a fresh server."""

from msgspec.structs import replace

from workerlab.errors import UsageError
from workerlab.experiments.jobs import only_sleeps
from workerlab.experiments.planning import plan_of
from workerlab.experiments.runner import Setup
from workerlab.experiments.sweep_options import SweepOptions
from workerlab.model.plan import Plan


def setup(options: SweepOptions, plan: Plan | None) -> Setup:
    if options.fail_on_slo and not (options.slo if plan is None else plan.slo):
        raise UsageError("--fail-on-slo needs a target: --slo 'p95<300ms'")
    planned, serving = plan_of(options) if plan is None else (plan, {})
    if plan is None or options.jobs:
        planned = replace(planned, jobs=jobs_of(options.jobs, planned))
    label = "-".join(dict.fromkeys(server.worker_class for server in planned.servers))
    return Setup(planned, serving, label=label)


def jobs_of(requested: int | str | None, plan: Plan) -> int | None:
    """The Plan's `jobs`. By default, 1 for a user's app, which then has the machine to itself."""
    if requested is None:
        return None if all(only_sleeps(server.app) for server in plan.servers) else 1
    return None if requested == "auto" else int(requested)
