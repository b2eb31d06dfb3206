"""One runner for every command that makes a run: new or resumed, executed, stopped, its exit code.

    options ─► plan (or the one on file) ─► run directory ─► each trial ─► document ─► exit code

An experiment says what is to be run and what comes of it; how that is done stands here.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness import run_store
from harness.experiments import part
from harness.experiments.execution import Beside, Show, alone, execute, progress, unfinished
from harness.experiments.planning import check_tools
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
    """A plan whose machine has been looked at. `environment`: what it is measured on, for a new
    run; `label`: ends the name of its directory, "" for the command's name. `beside`: adds to a
    server's launch what it works with. `show`: what the user sees while it runs."""

    plan: Plan
    environment: Mapping[str, object]
    label: str = ""
    beside: Beside = alone
    show: Show = progress


class Experiment(Protocol):
    """What a command that makes runs offers; a module is one."""

    @property
    def KIND(self) -> str:
        """Its name as a command, and in the plans of its runs."""

    @property
    def RESUMES_WITH(self) -> Collection[str]:
        """Options that are allowed beside --resume, since they do not change the plan."""

    def setup(
        self, options: argparse.Namespace, plan: Plan | None
    ) -> AbstractContextManager[Setup]:
        """What is to be run: a new plan by the options, or `plan` where a run is resumed. Looks at
        the machine; what the servers work with lives as long as the context. Raises LabError."""


def command(options: argparse.Namespace) -> int:
    """Make or resume a run, and show what came of it. Returns the exit code."""
    directory, stopped = run(part(options.command, "command"), options)
    document = document_of(directory)
    show(document, options)
    kept(directory)
    return exit_code(directory, document) if stopped is None else stopped


def run(experiment: Experiment, options: argparse.Namespace) -> tuple[Path, int | None]:
    """Make or resume a run. Returns its directory and, where it was stopped, the exit code."""
    directory = _resumed(experiment, options) if options.resume else None
    plan = None if directory is None else run_store.load(directory).plan
    with experiment.setup(options, plan) as setup:
        if directory is None:
            directory = _created(experiment, options, setup)
        for note in setup.plan.notes:
            tell(text(note))
        for name, why in setup.plan.unavailable.items():
            tell(f"{name} is unavailable: {why}")
        again = f"{program()} {experiment.KIND} --resume {directory}"
        try:
            todo = unfinished(directory, setup.plan)
            execute(directory, setup.plan, todo, setup.beside, setup.show)
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


def _resumed(experiment: Experiment, options: argparse.Namespace) -> Path:
    """Raises UsageError for a run of another command, or options that would change its plan."""
    allowed = COMMON | set(experiment.RESUMES_WITH)
    given: dict[str, Any] = {k: v for k, v in vars(options).items() if k not in allowed}
    if any(value is not None and value is not False for value in given.values()):
        raise UsageError("--resume takes a run and no other arguments: its plan is on file")
    directory = find(options.resume)
    kind = run_store.load(directory).plan.kind
    if kind != experiment.KIND:
        raise UsageError(
            f"{options.resume} is a run of `{kind}`: resume it with"
            f" {program()} {kind} --resume {options.resume}"
        )
    return directory


def _created(experiment: Experiment, options: argparse.Namespace, setup: Setup) -> Path:
    directory = run_store.fresh(options.out, setup.label or experiment.KIND)
    run_store.create(directory, setup.plan, setup.environment)
    return directory


def recheck(plan: Plan) -> preflight.Interpreter:
    """Look again at what a plan on file needs. Raises LabError."""
    check_tools(plan.tools)
    preflight.check_levels([cell.concurrency for cell in plan.cells])
    chdir = plan.cells[0].server.app.chdir
    classes = [server.worker_class for server in plan.servers]
    env = dict(pair for server in plan.servers for pair in server.app.env)
    return preflight.interpreter(plan.python, Path(chdir or "."), plan.config, classes, env)


def versions(plan: Plan) -> dict[str, str | None]:
    """What each load tool says of itself."""
    return {
        name: preflight.tool_version(argv)
        for name in plan.tools
        if (argv := tool_named(name).VERSION_ARGV) is not None
    }
