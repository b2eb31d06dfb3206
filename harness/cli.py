"""The commands. Each reads like a table of contents."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness.experiments import runner, sweep
from harness.experiments.bottleneck import command as bottleneck
from harness.experiments.demo import demo
from harness.experiments.generators import command as generators
from harness.experiments.ladder import command as ladder
from harness.experiments.limits import command as limits
from harness.experiments.options import add_experiments
from harness.experiments.reading import find
from harness.experiments.runner import tell
from harness.experiments.studies import document_of
from harness.model import Document, EnvironmentProblem, LabError
from harness.options import parser, program
from harness.report import FORMATS, publish, text
from harness.terminal import interrupt


def show(document: Document, options: argparse.Namespace) -> None:
    """Print it on standard output: coloured and fitted only on a terminal."""
    if (options.format or "table") != "table":
        sys.stdout.write(FORMATS[options.format](document))
    else:
        on_terminal = sys.stdout.isatty()
        colour = on_terminal and "NO_COLOR" not in os.environ
        width = shutil.get_terminal_size().columns if on_terminal else None
        explain = bool(options.explain)
        sys.stdout.write(text.render(document, colour=colour, width=width, explain=explain))
    sys.stdout.flush()


def run(
    experiment: Callable[[argparse.Namespace], tuple[Path, int | None]], options: argparse.Namespace
) -> int:
    """Make a run, and show what came out."""
    directory, stopped = experiment(options)
    document = document_of(directory)
    show(document, options)
    return _kept(directory, runner.exit_code(directory, document) if stopped is None else stopped)


def _kept(directory: Path, code: int) -> int:
    kept = _short(directory)
    tell(f"kept in {kept}; print it again: {program()} report {kept}")
    return code


def run_report(options: argparse.Namespace) -> int:
    """Files are told by their names; then the table is printed only where --format asks for it."""
    document = document_of(find(options.run))
    if options.html:
        publish.page(document, Path(options.html).expanduser())
        tell(f"wrote {options.html}")
    if options.png:
        written = publish.pictures(document, Path(options.png).expanduser())
        tell(f"wrote {len(written)} pictures into {options.png}")
    if options.format or not (options.html or options.png):
        show(document, options)
    return 0


def run_demo(options: argparse.Namespace) -> int:
    directory = demo(options)
    path = directory / "report.html"
    try:
        publish.page(document_of(directory), path)
        tell(f"the report page of this lesson: {_short(path)}")
    except EnvironmentProblem as problem:
        tell(f"no report page: {problem}")
    return _kept(directory, 0)


def _short(directory: Path) -> Path:
    here = Path.cwd()
    return directory.relative_to(here) if directory.is_relative_to(here) else directory


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "sweep": partial(run, partial(runner.run, sweep)),
    "demo": run_demo,
    "generators": partial(run, partial(runner.run, generators)),
    "bottleneck": partial(run, partial(runner.run, bottleneck)),
    "limits": partial(run, partial(runner.run, limits)),
    "ladder": partial(run, partial(runner.run, ladder)),
    "report": run_report,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    interrupt.install()
    try:
        options = parser(add_experiments).parse_args(argv)
        return COMMANDS[options.command](options)
    except LabError as error:
        tell(f"workerlab: {error}")
        return error.exit_code
    except interrupt.Stopped as stopped:
        return stopped.exit_code
    except BrokenPipeError:  # the reader of our output has gone: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        interrupt.finish()
