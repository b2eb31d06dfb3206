"""The command line of `workerlab compare`: two sides, each given by the settings it changes."""

from __future__ import annotations

import argparse
import re
import shlex

from workerlab import options as read
from workerlab.errors import UsageError
from workerlab.experiments.advise.options import time_limit
from workerlab.experiments.sweep_options import AppOptions, CellOptions
from workerlab.load.registry import TOOLS
from workerlab.options import (
    Options,
    RunOptions,
    ServesOne,
    add_record,
    flag,
    option,
    options_of,
    positional,
)
from workerlab.slo import TargetSyntaxError, parse_limits

METRIC_NAMES = {  # metric in `comparison` for each name used in a limit
    "rps": "throughput_rps",
    "p50": "response_p50_s",
    "p95": "response_p95_s",
    "cpu": "cpu_s",
    "memory": "memory_bytes",
    "start": "start_s",
    "stop": "stop_s",
    "errors": "failed",
}
EXAMPLES = """\
examples:
  workerlab compare sync,gthread 8 --a gunicorn=25.3.0 --b gunicorn=27.0.1
      does this version of Gunicorn change anything?
  workerlab compare gthread 16 --app shop.wsgi:app --a chdir=main --b chdir=branch
      two checkouts of your app
  workerlab compare gevent 32 --a python=python3.11 --b python=python3.13
      two interpreters
  workerlab compare gthread 16 --a 'threads=2 env=POOL=4' --b 'threads=8 env=POOL=16'
      any settings, in quotes if more than one
  workerlab compare gthread 16 --threads 4 --b class=granian
      another worker class, or another server
  workerlab compare sync 8 --app shop.wsgi:app --a chdir=main --b chdir=. --fail-if 'p95>+10%'
      fail a build: exit code 4 if p95 certainly rises by more than 10 %
  workerlab compare sync 8 --client lingers --a gunicorn=25.3.0 --b gunicorn=27.0.1
      ... for clients that close their connections late
  workerlab compare --baseline results/main --fail-if 'p95>+10%'
      run the sweep in results/main again, and show what has changed
  workerlab compare results/20261120-101500-sync results/20261121-101500-sync
      two saved runs
"""
CODES = """\
Exit codes: 0 compared, whatever the result; 1 a launch is invalid (with --fail-if: a comparison has
no valid pair); 2 usage; 3 this machine or app cannot do it; 4 a limit of --fail-if is exceeded;
5 with --strict: a limit is inconclusive; 130 Ctrl-C, 143 SIGTERM, after storing and printing the
results so far.
"""
AT_LEAST = 0.05  # default of --at-least
TOOL = "fast"  # the default load tool: it times each request
LOAD_S = 8.0  # the default duration
# The options of `sweep` that a side may change
SIDE_SETTINGS = (
    "class", "workers", "threads", "backlog", "worker-connections", "app", "chdir", "python",
    "gunicorn", "config", "env", "path", "header", "sleep",
)  # fmt: skip


def difference_share(text: str) -> float:
    """The share in '5%', above 0 and below 1. Raises BadArgument."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", text)
    if match is None or not 0 < (value := float(match[1]) / 100) < 1:
        raise read.BadArgument(f"{text!r} is not a difference, such as 5%")
    return value


def single_class(text: str) -> str:
    """The text if it names one worker class or other server. Raises BadArgument."""
    if len(read.servers(text)) > 1:
        raise read.BadArgument(f"{text!r} is not a single class")
    return text


def limits_text(text: str) -> str:
    """The text if it is valid. Raises BadArgument."""
    try:
        parse_limits(text, METRIC_NAMES)
    except TargetSyntaxError as error:
        raise read.BadArgument(f"{text!r}, {error}") from None
    return text


class SideOptions(Options):
    a = option(
        str,
        "WHAT",
        f"settings of A, such as 'gunicorn=25.3.0 workers=4'; any of {', '.join(SIDE_SETTINGS)}",
        default="",
    )
    b = option(str, "WHAT", "settings of B; the options below apply to both", default="")
    baseline = option(str, "RUN", "run the plan of this saved sweep again, and compare with it")
    at_least = option(
        difference_share, "SHARE", "the smallest difference that matters (5%%)", default=AT_LEAST
    )
    budget = option(time_limit, "TIME", "how long it may take, at least 30s (5m)", resumes=True)
    fail_if = option(
        limits_text,
        "LIMITS",
        "exit with 4 if a change certainly exceeds one of these limits: 'p95>+10%%,rps<-5%%'; any"
        f" of {', '.join(METRIC_NAMES)}",
        default="",
    )
    junit = option(str, "FILE", "with --fail-if: write the limits as JUnit XML")
    html = option(str, "FILE", "with saved runs or --baseline: also write one HTML page")
    strict = flag("with --fail-if: exit with 5 if a limit is inconclusive")


class CompareOptions(SideOptions, CellOptions, AppOptions, ServesOne, RunOptions):
    classes = positional(str, "CLASSES", "worker classes, as for a sweep; or saved run A", "")
    levels = positional(str, "LEVELS", "numbers of connections; or saved run B", "")
    # Their defaults are not those of a sweep
    tool = option(read.tools, "LIST", f"load tools: any of {', '.join(TOOLS)} ({TOOL})")
    duration = option(read.duration, "S", f"load for S seconds ({LOAD_S:g})")

    def serves_project(self) -> bool:
        launches = (self.a or self.b) and not self.baseline
        return bool(launches) and super().serves_project()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Launch two servers alternately to find out whether and how they differ; or compare two"
        " saved runs."
    )
    parser.epilog = f"{EXAMPLES}\n{read.PROJECT}\n{CODES}"
    groups = {
        "the two sides": SideOptions,
        "servers and load of both sides": CellOptions,
        "your app": AppOptions,
        "what serves it": ServesOne,
    }
    add_record(parser, CompareOptions, groups)


def side(options: CompareOptions, side_name: str) -> CompareOptions:
    """The options of A or B. Raises UsageError for an invalid setting."""
    values = dict(vars(options))
    try:
        assignments = shlex.split(values.get(side_name, ""))
    except ValueError as error:  # an open quote
        raise UsageError(f"--{side_name}: {error}") from None
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name not in SIDE_SETTINGS:
            raise UsageError(
                f"--{side_name}: {assignment!r} is not NAME=VALUE, as in gunicorn=25.3.0; NAME is"
                f" one of {', '.join(SIDE_SETTINGS)}"
            )
        field = "classes" if name == "class" else name.replace("-", "_")
        setting = options_of(CompareOptions)[field]
        try:
            value = single_class(text) if name == "class" else setting.keywords["type"](text)
        except read.BadArgument as error:
            raise UsageError(f"--{side_name}: {name}: {error}") from None
        if setting.repeatable:
            value = [*values.get(field, ()), value]
        elif isinstance(value, tuple) and len(value) > 1:
            raise UsageError(f"--{side_name}: {assignment!r}: a side takes a single value")
        values[field] = value
    return CompareOptions(**values)


def check_limits(options: CompareOptions) -> None:
    """Raises UsageError for an option that needs --fail-if, if that is missing."""
    for dependent in options.given_options(CompareOptions.strict, CompareOptions.junit):
        if not options.fail_if:
            raise UsageError(f"{dependent.flag} needs --fail-if, such as --fail-if 'p95>+10%'")
