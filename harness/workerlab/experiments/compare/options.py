"""The command line of `workerlab compare`: two sides, each given by the settings it changes."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable

from workerlab import options as read
from workerlab.experiments.advise.options import time_limit
from workerlab.experiments.sweep.options import AppOptions, LoadOptions
from workerlab.load.registry import TOOLS
from workerlab.model import UsageError
from workerlab.options import Row, add_rows
from workerlab.slo import TargetSyntaxError, parse_limits

METRIC_NAMES = {  # in a limit: in `comparison`
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
      what does this version of Gunicorn change?
  workerlab compare gthread 16 --app shop.wsgi:app --a chdir=main --b chdir=branch
      two checkouts of your app
  workerlab compare gevent 32 --a python=python3.11 --b python=python3.13
      two interpreters
  workerlab compare gthread 16 --a 'threads=2 env=POOL=4' --b 'threads=8 env=POOL=16'
      any settings; several need quotes
  workerlab compare gthread 16 --threads 4 --b class=granian
      another worker class, or another server
  workerlab compare sync 8 --app shop.wsgi:app --a chdir=main --b chdir=. --fail-if 'p95>+10%'
      fail a build: exit code 4 if p95 certainly rises by more than 10 %
  workerlab compare sync 8 --client lingers --a gunicorn=25.3.0 --b gunicorn=27.0.1
      ... for clients that close their connections late
  workerlab compare --baseline results/main --fail-if 'p95>+10%'
      the sweep in results/main once more, as things are now, and what has changed
  workerlab compare results/20261120-101500-sync results/20261121-101500-sync
      two saved runs
"""
CODES = """\
Exit codes: 0 compared, whatever the result; 1 a launch is invalid (with --fail-if: a comparison has
no valid pair); 2 usage; 3 this machine or app cannot do it; 4 a limit of --fail-if is exceeded;
5 with --strict: a limit is inconclusive; 130 Ctrl-C, 143 SIGTERM, with everything measured so far
kept and printed.
"""
AT_LEAST = 0.05  # default of --at-least
TOOL = "fast"  # the default load tool: it times each request
LOAD_S = 8.0  # the default duration
# What a side may change: options of `sweep`
SIDE_SETTINGS = (
    "class", "workers", "threads", "backlog", "worker-connections", "app", "chdir", "python",
    "gunicorn", "config", "env", "path", "header", "sleep",
)  # fmt: skip


def difference_share(text: str) -> float:
    """The share in '5%', above 0 and below 1. Raises BadWord."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", text)
    if match is None or not 0 < (value := float(match[1]) / 100) < 1:
        raise read.BadWord(f"{text!r} is not a difference, such as 5%")
    return value


def single_class(text: str) -> str:
    """The text, if it names one worker class or other server. Raises BadWord."""
    if len(read.servers(text)) > 1:
        raise read.BadWord(f"{text!r} is not a single class")
    return text


def limits_text(text: str) -> str:
    """The text, if it is valid. Raises BadWord."""
    try:
        parse_limits(text, METRIC_NAMES)
    except TargetSyntaxError as error:
        raise read.BadWord(f"{text!r}, {error}") from None
    return text


SIDE_ROWS: tuple[Row, ...] = (
    ("--a", str, "WHAT",
     f"settings of A, such as 'gunicorn=25.3.0 workers=4'; of {', '.join(SIDE_SETTINGS)}"),
    ("--b", str, "WHAT", "settings of B; the options below apply to both"),
    ("--baseline", str, "RUN", "run the plan of this saved sweep again, and compare with it"),
    ("--at-least", difference_share, "SHARE", "the smallest difference that matters (5%%)"),
    ("--budget", time_limit, "TIME", "how long it may take, 30s at least (5m)"),
    ("--fail-if", limits_text, "LIMITS",
     f"exit with 4 if a change certainly exceeds one of these limits: 'p95>+10%%,rps<-5%%'; of"
     f" {', '.join(METRIC_NAMES)}"),
    ("--junit", str, "FILE", "with --fail-if: write the limits as JUnit XML"),
    ("--html", str, "FILE", "with saved runs or --baseline: also write one HTML page"),
    ("--strict", None, "", "with --fail-if: exit with 5 if a limit is inconclusive"),
)  # fmt: skip
# Help for options whose default differs from that of a sweep
COMPARE_HELP = {
    "--tool": f"of {', '.join(TOOLS)} ({TOOL})",
    "--duration": f"load for S seconds ({LOAD_S:g})",
}
OPTION_GROUPS = {
    "the two sides": SIDE_ROWS,
    "servers and load, of both": tuple(
        (*row[:3], COMPARE_HELP.get(row[0], row[3])) for row in read.rows_of(LoadOptions)
    ),
    "your app": read.rows_of(AppOptions),
    "what serves it": read.SERVES_ONE,
}
OPTION_TYPES: dict[str, Callable[[str], object] | None] = {
    name.removeprefix("--"): kind for rows in OPTION_GROUPS.values() for name, kind, _, _ in rows
} | {"class": single_class}


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Launch two servers in turn until it is known whether they differ, and in what; or compare"
        " two saved runs."
    )
    to.epilog = f"{EXAMPLES}\n{read.PROJECT}\n{CODES}"
    to.add_argument("classes", metavar="CLASSES", nargs="?", help="as for a sweep, or a run: A")
    to.add_argument("levels", metavar="LEVELS", nargs="?", help="concurrency, or a run: B")
    for title, rows in OPTION_GROUPS.items():
        add_rows(to.add_argument_group(title), rows)
    read.add_common(to)


def side(options: argparse.Namespace, side_name: str) -> argparse.Namespace:
    """The options of A or B. Raises UsageError for an invalid setting."""
    chosen = argparse.Namespace(**vars(options))
    try:
        words = shlex.split(getattr(options, side_name) or "")
    except ValueError as error:  # an open quote
        raise UsageError(f"--{side_name}: {error}") from None
    for word in words:
        name, equals, text = word.partition("=")
        kind = OPTION_TYPES.get(name)
        if not equals or name not in SIDE_SETTINGS or kind is None:
            raise UsageError(
                f"--{side_name}: {word!r} is not NAME=VALUE, as in gunicorn=25.3.0; NAME is one"
                f" of {', '.join(SIDE_SETTINGS)}"
            )
        try:
            value = kind(text)
        except read.BadWord as error:
            raise UsageError(f"--{side_name}: {name}: {error}") from None
        attribute = "classes" if name == "class" else name.replace("-", "_")
        if f"--{name}" in read.REPEATABLE:
            value = [*(getattr(chosen, attribute) or ()), value]
        elif isinstance(value, tuple) and len(value) > 1:
            raise UsageError(f"--{side_name}: {word!r}: a side takes a single value")
        setattr(chosen, attribute, value)
    return chosen


def check_limits(options: argparse.Namespace) -> None:
    """Raises UsageError for an option that needs --fail-if, if that is missing."""
    for name in ("strict", "junit"):
        if getattr(options, name) and not options.fail_if:
            raise UsageError(f"--{name} needs --fail-if, such as --fail-if 'p95>+10%'")
