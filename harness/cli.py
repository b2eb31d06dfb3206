"""The commands. Each reads like a table of contents."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import interrupt, publish
from harness.arguments import parser, program
from harness.experiments.demo import demo
from harness.experiments.sweep import sweep, tell
from harness.model import EnvironmentProblem, LabError, Report
from harness.reading import find, report_of
from harness.report import FORMATS, table


def show(report: Report, chosen: str | None) -> None:
    """Print a report on standard output: the table coloured and fitted only on a terminal."""
    if (chosen or "table") == "table":
        on_terminal = sys.stdout.isatty()
        colour = on_terminal and "NO_COLOR" not in os.environ
        width = shutil.get_terminal_size().columns if on_terminal else None
        text = table.render(report, colour=colour, width=width)
    else:
        text = FORMATS[str(chosen)].render(report)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def run_sweep(options: argparse.Namespace) -> int:
    directory, code = sweep(options)
    show(report_of(directory), options.format)
    kept = _short(directory)
    tell(f"kept in {kept}; print it again: {program()} report {kept}")
    return code


def run_report(options: argparse.Namespace) -> int:
    """Files are told by their names; then the table is printed only where --format asks for it."""
    report = report_of(find(options.run))
    if options.html:
        publish.page(report, Path(options.html).expanduser())
        tell(f"wrote {options.html}")
    if options.png:
        written = publish.pictures(report, Path(options.png).expanduser())
        tell(f"wrote {len(written)} pictures into {options.png}")
    if options.format or not (options.html or options.png):
        show(report, options.format)
    return 0


def run_demo(options: argparse.Namespace) -> int:
    directory = demo(options)
    path = directory / "report.html"
    try:
        publish.page(report_of(directory), path)
        tell(f"the report page of this lesson: {_short(path)}")
    except EnvironmentProblem as problem:
        tell(f"no report page: {problem}")
    kept = _short(directory)
    tell(f"kept in {kept}; print it again: {program()} report {kept}")
    return 0


def _short(directory: Path) -> Path:
    here = Path.cwd()
    return directory.relative_to(here) if directory.is_relative_to(here) else directory


COMMANDS = {"sweep": run_sweep, "demo": run_demo, "report": run_report}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    interrupt.install()
    try:
        options = parser().parse_args(argv)
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
