"""Executes the commands that make or resume a run.

    options ─► plan (new or saved) ─► run directory ─► each trial ─► document ─► exit code

An experiment defines what to run and what to conclude. This module executes it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from workerlab import run_store
from workerlab.errors import EnvironmentProblem, ExitCode, UsageError
from workerlab.experiments import setup_of
from workerlab.experiments.calibration import calibrate
from workerlab.experiments.load_trials import (
    LoadTrials,
    PrepareLaunch,
    default_display,
    no_services,
)
from workerlab.experiments.planning import available_here
from workerlab.experiments.reading import document_of, find_run, print_document, print_location
from workerlab.experiments.scheduler import Display, TrialSource, execute
from workerlab.load.registry import tool_named
from workerlab.model.plan import Plan
from workerlab.model.result import Document
from workerlab.notes import Unfinished
from workerlab.options import Option, RunOptions, SloOptions, StoredOptions, options_of
from workerlab.plan import trials
from workerlab.report.values import text
from workerlab.server import preflight
from workerlab.terminal.console import program, tell
from workerlab.terminal.interrupt import Stopped

R = TypeVar("R", bound=StoredOptions)

DISPLAY_OPTIONS = (RunOptions.format, RunOptions.explain)


class Setup(Struct, frozen=True):
    """A plan that was checked against this machine, and how to execute it.

    `interpreters`: those that run Gunicorn and the apps; empty if there are none. `environment`:
    further facts to store. `label`: the end of the run directory's name; "": the command's name.
    `prepare_launch`: adds addresses and pids of the services that a server uses. `display`: shows
    the progress. `grow(directory, plan)`: returns the plan with further cells, or None; called once
    all trials of `plan` have run. It may use only stored data, so that a resumed run grows in the
    same way. `always_calibrate`: measures the load tools' ceilings even if no cell came near them.
    `trials`: makes the source of the trials, by default trials with a load tool.
    `perform(directory, plan)`: replaces the execution of a plan without trials; it must find out
    what remains to be done. `finish(directory)`: called after the trials, even if they
    were stopped.
    """

    plan: Plan
    interpreters: preflight.Interpreters = {}
    environment: Mapping[str, object] = {}
    label: str = ""
    prepare_launch: PrepareLaunch = no_services
    display: Display = default_display
    grow: Callable[[Path, Plan], Plan | None] | None = None
    always_calibrate: bool = False
    trials: Callable[[Path, Plan, PrepareLaunch], TrialSource] = LoadTrials
    perform: Callable[[Path, Plan], None] | None = None
    finish: Callable[[Path], object] = lambda directory: None

    def __enter__(self) -> Self:
        """A Setup is also a context, for commands that start no services."""
        return self

    def __exit__(self, *error: object) -> None: ...


# Makes a new plan from the options, or prepares the plan of a resumed run. Services (databases,
# caches) run until the context exits. Raises LabError
MakeSetup = Callable[[R, Plan | None], AbstractContextManager[Setup]]


def command(options: RunOptions) -> int:
    """Make or resume a run, and show the results. Returns the exit code."""
    directory, interrupted = run(options.command, setup_of(options.command), options)
    document = document_of(directory)
    resume_is_printed = interrupted is not None and options.format == "table"
    print_document(without_resume(document) if resume_is_printed else document, options)
    print_location(directory)
    if interrupted is not None:
        return interrupted
    fail_on_slo = options.fail_on_slo if isinstance(options, SloOptions) else True
    return exit_code(directory, document, fail_on_slo)


def without_resume(document: Document) -> Document:
    """The document without the command that resumes the run, because `run` has printed it."""
    notes = (
        replace(note, command="") if isinstance(note, Unfinished) else note
        for note in document.notes
    )
    return replace(document, notes=tuple(notes))


def run(kind: str, setup: MakeSetup[R], options: R) -> tuple[Path, int | None]:
    """Make or resume a run. Returns its directory, and the exit code if it was stopped."""
    directory, plan = None, None
    if options.resume:
        directory, plan = _load_for_resume(kind, options, options.resume)
    with setup(options, plan) as run_setup:
        if directory is None:
            run_setup = replace(run_setup, plan=replace(run_setup.plan, project=options.project))
            directory = run_store.new_directory(options.out, run_setup.label or kind)
            create_run(directory, run_setup)
        resume_command = f"{program()} {kind} --resume {directory}"
        interrupted: int | None = None
        try:
            carry_out(directory, run_setup)
        except Stopped as signal:
            tell(f"Stopped. Finish it with: {resume_command}")
            interrupted = signal.exit_code
        except (EnvironmentProblem, OSError) as problem:
            tell(f"{problem}. Fix it, then resume with: {resume_command}")
            interrupted = ExitCode.UNAVAILABLE
    run_setup.finish(directory)
    return directory, interrupted


def carry_out(directory: Path, run_setup: Setup) -> None:
    """Print the plan's notes, then run the unfinished trials and those that `grow` adds. Raises the
    errors of `execute`."""
    for note in run_setup.plan.notes:
        tell(text(note))
    for name, why in run_setup.plan.unavailable.items():
        tell(f"{name} is unavailable: {why}")
    if run_setup.perform is not None:
        run_setup.perform(directory, run_setup.plan)
        return
    plan, todo = run_setup.plan, None
    while True:
        source = run_setup.trials(directory, plan, run_setup.prepare_launch)
        execute(source, source.unfinished() if todo is None else todo, run_setup.display)
        if any(record.fault is None for record in run_store.load(directory).records.values()):
            calibrate(directory, plan, tell, always=run_setup.always_calibrate)
        grown_plan = run_setup.grow(directory, plan) if run_setup.grow else None
        if grown_plan is None:
            return
        run_store.update_plan(directory, grown_plan)
        planned_keys = {trial.key for trial in trials(plan)}
        plan = grown_plan
        todo = [trial for trial in trials(plan) if trial.key not in planned_keys]


def exit_code(directory: Path, document: Document, fail_on_slo: bool = True) -> int:
    """The exit code of the document if it has one; else it depends on the faults, the validity and,
    if `fail_on_slo`, the target."""
    if document.exit_code is not None:
        return document.exit_code
    faults = [record.fault for record in run_store.load(directory).records.values() if record.fault]
    if any(fault.kind == "unavailable" for fault in faults):
        return ExitCode.UNAVAILABLE
    if not document.valid:
        return ExitCode.INVALID
    missed = fail_on_slo and document.target_kept is False
    return ExitCode.TARGET_MISSED if missed else ExitCode.DONE


def _load_for_resume(kind: str, options: StoredOptions, name: str) -> tuple[Path, Plan]:
    """A saved run and its plan, whose availability is checked again. Raises UsageError for a run of
    another command, or for options that would change the plan, and other LabErrors."""
    allowed = [option for option in options_of(type(options)).values() if option.resumes]
    compatible: list[Option[Any]] = [StoredOptions.resume, *DISPLAY_OPTIONS, *allowed]
    if vars(options).keys() - {"command", *(option.name for option in compatible)}:
        flags = sorted(option.flag for option in allowed)
        exceptions = f" but {', '.join(flags)}" if flags else ""
        raise UsageError(
            f"--resume takes a run and no other arguments{exceptions}: its plan is saved"
        )
    directory = find_run(name)
    plan = run_store.load(directory).plan
    if plan.kind != kind:
        raise UsageError(
            f"{name} is a run of `{plan.kind}`: resume it with"
            f" {program()} {plan.kind} --resume {name}"
        )
    if plan.cells:
        preflight.check_levels([cell.concurrency for cell in plan.cells])
    if all(server.null for server in plan.servers):
        return directory, plan
    return directory, available_here(plan)[0]


def create_run(directory: Path, run_setup: Setup) -> None:
    """Create the directory of a new run. Raises the errors of `run_store.create`."""
    tools = {
        name: preflight.tool_version(argv)
        for name in run_setup.plan.tools
        if (argv := tool_named(name).VERSION_ARGV) is not None
    }
    classes = {server.worker_class for server in run_setup.plan.servers}
    if interpreters := run_setup.interpreters.values():
        machine = preflight.fingerprint(interpreters, tools, classes)
    else:
        machine = preflight.machine(tools)
    run_store.create(directory, run_setup.plan, {**machine, **run_setup.environment})
