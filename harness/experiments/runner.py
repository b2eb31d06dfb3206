"""One runner for every command that makes a run: new or resumed, executed, stopped, its exit code.

    options ─► plan (or the one on file) ─► run directory ─► each trial ─► document ─► exit code

An experiment says what is to be run and what comes of it; how that is done stands here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import run_store
from harness.experiments import part
from harness.experiments.execution import Beside, Show, alone, execute, progress, unfinished
from harness.experiments.planning import check_tools, lacking
from harness.experiments.reading import find
from harness.experiments.results import document_of, kept, show
from harness.load.registry import tool_named
from harness.model import Document, EnvironmentProblem, Plan, UsageError
from harness.report.messages import text
from harness.server import preflight
from harness.terminal.console import program, tell
from harness.terminal.interrupt import Stopped

# Options that every command has and that do not change its plan
COMMON = frozenset({"command", "resume", "format", "explain"})


@dataclass(frozen=True)
class Setup:
    """A plan whose machine has been looked at. `interpreter`: runs Gunicorn and the apps, None
    where there are none; `environment`: what else a new run is measured on; `label`: ends the name
    of its directory, "" for the command's name. `beside`: adds to a server's launch what it works
    with. `show`: what the user sees while it runs."""

    plan: Plan
    interpreter: preflight.Interpreter | None = None
    environment: Mapping[str, object] = field(default_factory=dict)
    label: str = ""
    beside: Beside = alone
    show: Show = progress


# What is to be run: a new plan by the options, or that of the run that is resumed. Looks at the
# machine; what the servers work with lives as long as the context. Raises LabError
MakeSetup = Callable[[argparse.Namespace, Plan | None], AbstractContextManager[Setup]]


def command(options: argparse.Namespace) -> int:
    """Make or resume a run, and show what came of it. Returns the exit code."""
    experiment = part(options.command, "command")
    beside_resume = getattr(experiment, "RESUMES_WITH", ())
    directory, stopped = run(options.command, experiment.setup, options, beside_resume)
    document = document_of(directory)
    show(document, options)
    kept(directory)
    return exit_code(directory, document) if stopped is None else stopped


def run(
    kind: str, setup: MakeSetup, options: argparse.Namespace, beside_resume: Collection[str] = ()
) -> tuple[Path, int | None]:
    """Make or resume a run. Returns its directory and, where it was stopped, the exit code.
    `beside_resume`: options that are allowed then, since they do not change the plan."""
    resumed = _resumed(kind, options, beside_resume) if options.resume else None
    with setup(options, resumed and resumed[1]) as made:
        directory = resumed[0] if resumed else _created(kind, options, made)
        for note in made.plan.notes:
            tell(text(note))
        for name, why in made.plan.unavailable.items():
            tell(f"{name} is unavailable: {why}")
        again = f"{program()} {kind} --resume {directory}"
        try:
            todo = unfinished(directory, made.plan)
            execute(directory, made.plan, todo, made.beside, made.show)
        except Stopped as stopped:
            tell(f"Stopped. Finish it with: {again}")
            return directory, stopped.exit_code
        except (EnvironmentProblem, OSError) as problem:
            tell(f"{problem}. Fix it, then resume with: {again}")
            return directory, 3
    return directory, None


def exit_code(directory: Path, document: Document) -> int:
    """3 where something was unavailable, else 1 where something is invalid, else 0."""
    faults = [record.fault for record in run_store.load(directory).records.values() if record.fault]
    if any(fault.kind == "unavailable" for fault in faults):
        return 3
    return 0 if document.valid else 1


def _resumed(kind: str, options: argparse.Namespace, allowed: Collection[str]) -> tuple[Path, Plan]:
    """A run and its plan, whose needs are looked at again: what was missing may be there now.
    Raises UsageError for a run of another command, or options that would change its plan, and other
    LabErrors."""
    given = (value for name, value in vars(options).items() if name not in {*COMMON, *allowed})
    if any(value is not None and value is not False for value in given):
        raise UsageError("--resume takes a run and no other arguments: its plan is on file")
    directory = find(options.resume)
    plan = run_store.load(directory).plan
    if plan.kind != kind:
        raise UsageError(
            f"{options.resume} is a run of `{plan.kind}`: resume it with"
            f" {program()} {plan.kind} --resume {options.resume}"
        )
    preflight.check_levels([cell.concurrency for cell in plan.cells])
    if all(server.null for server in plan.servers):
        return directory, plan
    check_tools(plan.tools)
    chdir = Path(plan.servers[0].app.chdir or ".")
    classes = [server.worker_class for server in plan.servers]
    env = dict(pair for server in plan.servers for pair in server.app.env)
    found = preflight.interpreter(plan.python, chdir, plan.config, classes, env)
    return directory, replace(plan, unavailable=lacking(plan.servers, found))


def _created(kind: str, options: argparse.Namespace, made: Setup) -> Path:
    tools = {
        name: preflight.tool_version(argv)
        for name in made.plan.tools
        if (argv := tool_named(name).VERSION_ARGV) is not None
    }
    found = made.interpreter
    machine = preflight.fingerprint(found, tools) if found else preflight.machine(tools)
    directory = run_store.fresh(options.out, made.label or kind)
    run_store.create(directory, made.plan, {**machine, **made.environment})
    return directory
