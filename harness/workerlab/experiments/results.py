"""The document of a saved run, whichever command made it, and how it is printed."""

import argparse
import os
import sys
from pathlib import Path

from msgspec.structs import replace

from workerlab import run_store
from workerlab.experiments import EXPERIMENTS, experiment_module
from workerlab.model import SWEEP, Document, UsageError
from workerlab.report import FORMATS, text
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
