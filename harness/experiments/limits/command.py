"""`workerlab limits`: how far one client goes, and what stops it.

From a hundred requests to a million, against a server that answers after a seeded random delay; the
limits of the machine are run into on purpose (errno 24, errno 99), recognised, and avoided; and two
classic mistakes are made, to be recognised again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from harness.experiments.limits.steps import LEAST_FILES, Machine, left_out, steps
from harness.experiments.planning import lacks
from harness.experiments.runner import Setup, versions
from harness.model import Finding, Plan, UsageError
from harness.plan import null_plan
from harness.server import preflight

KIND = "limits"
RESUMES_WITH = ()


def machine() -> Machine:
    return Machine(
        has=lambda tool: lacks(tool) is None,
        files=preflight.raise_file_limit(),
        ports=preflight.port_range() if preflight.narrows_ports() else None,
        core=preflight.own_core(),
    )


def plan_of(here: Machine, quick: bool) -> Plan:
    """Raises UsageError where too little can be shown."""
    if here.files is not None and here.files < LEAST_FILES:
        raise UsageError(
            f"limits needs at least {LEAST_FILES} open files, and 10,064 to show everything; the"
            f" limit is {here.files}: raise it (ulimit -n 10064, as root where that is refused)"
        )
    missing = [why for tool in ("threads", "coroutines") if (why := lacks(tool))]
    notes = [*left_out(here, quick), *(Finding("note.left_out", {"why": why}) for why in missing)]
    chosen = steps(here, quick)
    details = {"steps": {step.cell.name: step.to_json() for step in chosen}}
    return null_plan(KIND, (step.cell for step in chosen), notes, details)


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    here = machine()
    plan = plan or plan_of(here, bool(options.quick))
    preflight.check_levels(cell.concurrency for cell in plan.cells)
    yield Setup(plan, preflight.machine(versions(plan)))
