"""The commands and their functions.

An experiment is a command that measures. It has a directory, and a line in each table and function
below:

    NAME/options.py     add_options(parser): its command line, made from a record of options
    NAME/command.py     setup(options, plan): the setup of a run; see `runner.Setup`
    NAME/document.py    document(run): the results of a run

Modules are imported only when they are needed, so `--help` is fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workerlab.experiments.runner import MakeSetup
    from workerlab.model.result import Document
    from workerlab.run_store import Run

# The summaries of the experiments, in the order of `workerlab --help`
EXPERIMENTS: Mapping[str, str] = {
    "sweep": "measure worker classes at increasing concurrency",
    "generators": "compare the load generators",
    "bottleneck": "is it the server or the load generator?",
    "limits": "how far one client goes, and what stops it",
    "reproduce": "five published experiments, claim by claim: what holds today?",
    "advise": "which class, how many workers and threads, for your app and target?",
    "compare": "what does another version, interpreter or setting change?",
    "settings": "what does each worker class do with each of Gunicorn's settings?",
    "ladder": "what makes a real web app fast: remove one cache after the other",
}

COMMANDS: Mapping[str, str] = {
    **EXPERIMENTS,
    "demo": "a lesson in ten steps: guess, watch, compare, explain",
    "live": "the lesson in a browser: watch real requests wait",
    "report": "print a saved run again, from its files",
    "schema": "print the JSON Schema of what --format json prints",
}


def add_options(command: str, parser: argparse.ArgumentParser) -> None:  # noqa: C901 - a table
    """Add the options of a command to its parser."""
    add: Callable[[argparse.ArgumentParser], None]
    match command:
        case "sweep":
            from workerlab.experiments.sweep.options import add_options as add
        case "generators":
            from workerlab.experiments.generators.options import add_options as add
        case "bottleneck":
            from workerlab.experiments.bottleneck.options import add_options as add
        case "limits":
            from workerlab.experiments.limits.options import add_options as add
        case "reproduce":
            from workerlab.experiments.reproduce.options import add_options as add
        case "advise":
            from workerlab.experiments.advise.options import add_options as add
        case "compare":
            from workerlab.experiments.compare.options import add_options as add
        case "settings":
            from workerlab.experiments.settings.options import add_options as add
        case "ladder":
            from workerlab.experiments.ladder.options import add_options as add
        case "demo":
            from workerlab.experiments.live.options import add_demo_options as add
        case "live":
            from workerlab.experiments.live.options import add_options as add
        case "report":
            from workerlab.experiments.report.options import add_options as add
        case "schema":
            from workerlab.experiments.schema import add_options as add
    add(parser)


def action_of(command: str) -> Callable[[Any], int]:
    """The function that runs a command and returns the exit code."""
    action: Callable[[Any], int]
    match command:
        case "compare":
            from workerlab.experiments.compare.saved import command as action
        case "reproduce":
            from workerlab.experiments.reproduce.command import command as action
        case "demo":
            from workerlab.experiments.live.demo import command as action
        case "live":
            from workerlab.experiments.live.command import command as action
        case "report":
            from workerlab.experiments.report.command import command as action
        case "schema":
            from workerlab.experiments.schema import command as action
        case _:
            from workerlab.experiments.runner import command as action
    return action


def setup_of(name: str) -> MakeSetup[Any]:
    """The setup of an experiment's runs."""
    setup: MakeSetup[Any]
    match name:
        case "sweep":
            from workerlab.experiments.sweep.command import setup
        case "generators":
            from workerlab.experiments.generators.command import setup
        case "bottleneck":
            from workerlab.experiments.bottleneck.command import setup
        case "limits":
            from workerlab.experiments.limits.command import setup
        case "reproduce":
            from workerlab.experiments.reproduce.command import setup
        case "advise":
            from workerlab.experiments.advise.command import setup
        case "compare":
            from workerlab.experiments.compare.command import setup
        case "settings":
            from workerlab.experiments.settings.command import setup
        case "ladder":
            from workerlab.experiments.ladder.command import setup
    return setup


def evaluate(run: Run) -> Document:
    """The results of a run of an experiment."""
    match run.plan.kind:
        case "sweep":
            from workerlab.experiments.sweep.document import document
        case "generators":
            from workerlab.experiments.generators.document import document
        case "bottleneck":
            from workerlab.experiments.bottleneck.document import document
        case "limits":
            from workerlab.experiments.limits.document import document
        case "reproduce":
            from workerlab.experiments.reproduce.document import document
        case "advise":
            from workerlab.experiments.advise.document import document
        case "compare":
            from workerlab.experiments.compare.document import document
        case "settings":
            from workerlab.experiments.settings.document import document
        case "ladder":
            from workerlab.experiments.ladder.document import document
    return document(run)
