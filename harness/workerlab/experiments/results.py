"""The document of a saved run, whichever command made it: `workerlab report`."""

import argparse
import gc
import os
import sys
from pathlib import Path

from msgspec.structs import replace

from workerlab import run_store
from workerlab.experiments import EXPERIMENTS, experiment_module
from workerlab.experiments.reading import find_run
from workerlab.model import SWEEP, Document, ExitCode, UsageError
from workerlab.report import FORMATS, publish, text
from workerlab.report.values import text as message
from workerlab.terminal.console import output_columns, program, short, tell


def document_of(directory: Path, slo: str | None = None) -> Document:
    """The document of a run. `slo`: a target instead of the plan's. Raises UsageError if the
    directory is not a run, its command is unknown, or its command takes no target."""
    run = run_store.load(directory)
    if slo is not None:
        if run.plan.kind != SWEEP:
            raise UsageError(
                f"{run.name} is a run of `{run.plan.kind}`: --slo works only with sweeps"
            )
        run = replace(run, plan=replace(run.plan, slo=slo))
    if run.plan.kind not in EXPERIMENTS:
        kinds = ", ".join(EXPERIMENTS)
        raise UsageError(f"{run.name} is a run of `{run.plan.kind}`; known commands: {kinds}")
    document: Document = experiment_module(run.plan.kind, "document").document(run)
    if not run.plan.project:
        return document
    names = ", ".join(run.plan.project)
    return replace(document, title=f"{message(document.title)} ({names} from pyproject.toml)")


def print_document(document: Document, options: argparse.Namespace) -> None:
    """Print on standard output in the requested format, else as text: colour only on a terminal,
    width from the terminal or COLUMNS."""
    if (options.format or "table") != "table":
        sys.stdout.write(FORMATS[options.format](document))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width, explain = output_columns(), bool(options.explain)
        sys.stdout.write(text.render(document, colour=colour, width=width, explain=explain))
    sys.stdout.flush()


def print_location(directory: Path) -> None:
    """Print where a run is stored."""
    tell(f"saved in {short(directory)}; show it again: {program()} report {short(directory)}")


def report(options: argparse.Namespace) -> int:
    """Print or export a saved run. If files are written, the table is printed only with --format.
    Returns the exit code."""
    gc.disable()  # all data lives until the end, and collection would take a tenth of the time
    try:
        directory = find_run(options.run, measured=True)
        if (newest := find_run(options.run)) != directory:
            tell(f"{newest.name} is newer, but no trial of it has a result")
        document = document_of(directory, options.slo)
    finally:
        gc.enable()  # the charts of a page contain many cycles
    if options.html:
        publish.write_page(document, Path(options.html).expanduser())
        tell(f"wrote {options.html}")
    if options.png:
        written = publish.write_pictures(document, Path(options.png).expanduser())
        tell(f"wrote {len(written)} pictures into {options.png}")
    if options.format or not (options.html or options.png):
        print_document(document, options)
    if options.fail_on_slo and document.target_kept is None:
        raise UsageError(f"--fail-on-slo needs a target: {options.run} has none; add --slo")
    missed = options.fail_on_slo and not document.target_kept
    return ExitCode.TARGET_MISSED if missed else ExitCode.DONE
