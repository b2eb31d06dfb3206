"""One runner for every command that makes a run: new or resumed, executed, stopped, its exit code.

    options ─► plan (or the one on file) ─► run directory ─► each trial ─► document ─► exit code

An experiment says what is to be run and what comes of it; how that is done stands here.
"""

import argparse
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from workerlab import run_store
from workerlab.experiments import part
from workerlab.experiments.calibration import calibrate
from workerlab.experiments.execution import (
    Display,
    PrepareLaunch,
    execute,
    no_services,
    progress,
    unfinished,
)
from workerlab.experiments.planning import check_tools, lacking
from workerlab.experiments.reading import find
from workerlab.experiments.results import document_of, print_document, print_location
from workerlab.load.registry import tool_named
from workerlab.model import Document, EnvironmentProblem, Plan, UsageError
from workerlab.plan import trials
from workerlab.report.messages import text
from workerlab.server import preflight
from workerlab.terminal.console import program, tell
from workerlab.terminal.interrupt import Stopped

# Options that every command has and that do not change its plan
COMMON = frozenset({"command", "resume", "format", "explain", "in_turn"})


def complete(_directory: Path, _plan: Plan) -> None:
    """Most plans are whole from the beginning."""


def nothing(_directory: Path) -> None:
    """Most runs leave nothing but what was measured."""


class Setup(Struct, frozen=True):
    """A plan, checked against this machine. `interpreters`: run Gunicorn and the apps, none where
    there is no Gunicorn; `environment`: what else a new run is measured on; `label`: ends the name
    of its directory, "" for the command's name. `prepare_launch`: gives a server the services it
    needs. `display`: what the user sees while it runs. `grow(directory, plan)`: the plan with
    further cells, once all of `plan` have been run; None: that was all. It needs nothing but what
    is on file, so that a run that is resumed goes on as it would have. `ceilings_anyway`: what the
    load tools can do is wanted even where no cell came near it. `perform(directory, plan)`: takes
    the place of all that, for trials that no load tool loads; it knows which are left."""

    plan: Plan
    interpreters: preflight.Interpreters = {}
    environment: Mapping[str, object] = {}
    label: str = ""
    prepare_launch: PrepareLaunch = no_services
    display: Display = progress
    grow: Callable[[Path, Plan], Plan | None] = complete
    ceilings_anyway: bool = False
    perform: Callable[[Path, Plan], None] | None = None


# What is to be run: a new plan by the options, or that of the run that is resumed. Services
# (database, cache) run until the context exits. Raises LabError
MakeSetup = Callable[[argparse.Namespace, Plan | None], AbstractContextManager[Setup]]


def command(options: argparse.Namespace) -> int:
    """Make or resume a run, and show what came of it. Returns the exit code."""
    experiment = part(options.command, "command")
    allowed_with_resume = getattr(experiment, "RESUMES_WITH", ())
    directory, interrupted = run(options.command, experiment.setup, options, allowed_with_resume)
    getattr(experiment, "finish", nothing)(directory)
    document = document_of(directory)
    print_document(document, options)
    print_location(directory)
    if interrupted is not None:
        return interrupted
    return exit_code(directory, document, getattr(options, "fail_on_slo", True))


def run(
    kind: str,
    setup: MakeSetup,
    options: argparse.Namespace,
    allowed_with_resume: Collection[str] = (),
) -> tuple[Path, int | None]:
    """Make or resume a run. Returns its directory and, where it was stopped, the exit code.
    `allowed_with_resume`: options that are allowed then, since they do not change the plan."""
    directory, plan = None, None
    if options.resume:
        directory, plan = _load_for_resume(kind, options, allowed_with_resume)
    with setup(options, plan) as prepared:
        if plan is None:
            project = getattr(options, "project", ())
            prepared = replace(prepared, plan=replace(prepared.plan, project=project))
        if directory is None:
            directory = run_store.fresh(options.out, prepared.label or kind)
            create_run(directory, prepared)
        again = f"{program()} {kind} --resume {directory}"
        try:
            carry_out(directory, prepared)
        except Stopped as signal:
            tell(f"Stopped. Finish it with: {again}")
            return directory, signal.exit_code
        except (EnvironmentProblem, OSError) as problem:
            tell(f"{problem}. Fix it, then resume with: {again}")
            return directory, 3
    return directory, None


def carry_out(directory: Path, prepared: Setup) -> None:
    """Every trial of the plan, and of what it grows to; what the plan notes is told first. Raises
    as `execute`."""
    for note in prepared.plan.notes:
        tell(text(note))
    for name, why in prepared.plan.unavailable.items():
        tell(f"{name} is unavailable: {why}")
    if prepared.perform is not None:
        prepared.perform(directory, prepared.plan)
        return
    plan, todo = prepared.plan, unfinished(directory, prepared.plan)
    while True:
        execute(directory, plan, todo, prepared.prepare_launch, prepared.display)
        if any(record.fault is None for record in run_store.load(directory).records.values()):
            calibrate(directory, plan, tell, anyway=prepared.ceilings_anyway)
        grown = prepared.grow(directory, plan)
        if grown is None:
            return
        run_store.amend(directory, grown)
        before = {one.key for one in trials(plan)}
        plan, todo = grown, [one for one in trials(grown) if one.key not in before]


def exit_code(directory: Path, document: Document, fail_on_slo: bool = True) -> int:
    """That of the document, where it has one; else 3 where something was unavailable, 1 where
    something is invalid, 4 where a target is not kept and that is a failure, 0."""
    if document.exit_code is not None:
        return document.exit_code
    faults = [record.fault for record in run_store.load(directory).records.values() if record.fault]
    if any(fault.kind == "unavailable" for fault in faults):
        return 3
    if not document.valid:
        return 1
    return 4 if fail_on_slo and document.target_kept is False else 0


def _load_for_resume(
    kind: str, options: argparse.Namespace, allowed: Collection[str]
) -> tuple[Path, Plan]:
    """A run and its plan, whose needs are looked at again: what was missing may be there now.
    Raises UsageError for a run of another command, or options that would change its plan, and other
    LabErrors."""
    given = (value for name, value in vars(options).items() if name not in {*COMMON, *allowed})
    if any(value is not None and value is not False for value in given):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in allowed)
        but = f" but {names}" if names else ""
        raise UsageError(f"--resume takes a run and no other arguments{but}: its plan is on file")
    directory = find(options.resume)
    plan = run_store.load(directory).plan
    if plan.kind != kind:
        raise UsageError(
            f"{options.resume} is a run of `{plan.kind}`: resume it with"
            f" {program()} {plan.kind} --resume {options.resume}"
        )
    if plan.cells:
        preflight.check_levels([cell.concurrency for cell in plan.cells])
    if all(server.null for server in plan.servers):
        return directory, plan
    check_tools(plan.tools)
    chdir = Path(plan.servers[0].app.chdir or ".")
    found = preflight.of_plan(plan, chdir)
    return directory, replace(plan, unavailable=lacking(plan.servers, found))


def create_run(directory: Path, prepared: Setup) -> None:
    """Make the directory of a new run."""
    tools = {
        name: preflight.tool_version(argv)
        for name in prepared.plan.tools
        if (argv := tool_named(name).VERSION_ARGV) is not None
    }
    found = prepared.interpreters.values()
    machine = preflight.fingerprint(found, tools) if found else preflight.machine(tools)
    run_store.create(directory, prepared.plan, {**machine, **prepared.environment})
