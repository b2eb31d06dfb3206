"""The words of the experiments beyond the sweep, checked."""

from __future__ import annotations

import argparse

from harness.experiments.ladder.configurations import STORAGES
from harness.load.registry import TOOLS
from harness.options import (
    Parser,
    duration,
    explain,
    keepalive,
    levels,
    names_of,
    parsed,
    tools,
    whole,
)
from harness.report import FORMATS
from harness.server.service_check import KINDS

GENERATORS_EXAMPLES = """\
examples:
  workerlab generators
      every load generator that is installed, at 1, 10 and 100 connections, in about three minutes
  workerlab generators --tools fast,wrk --levels 10,100,1000 --duration 5
      just these two, further up
  workerlab generators --keepalive off
      a new connection per request: what ab asks for unless told otherwise
  workerlab report results --html generators.html
      the newest run again, as a page with its charts
"""

BOTTLENECK_EXAMPLES = """\
examples:
  workerlab bottleneck
      200, 500 and 1000 users on a server that does next to nothing, in about three minutes
  workerlab bottleneck --quick
      50 and 200 users, in about one minute
  workerlab report results --html bottleneck.html
      the newest run again, as a page with its chart
"""

LIMITS_EXAMPLES = """\
examples:
  workerlab limits
      from a hundred requests to a million, in about six minutes
  workerlab limits --quick
      without the synchronous client and the million, in about one minute
  workerlab report results --html limits.html
      the newest run again, as a page with its chart
"""

LADDER_TOOLS = ("locust-fast", "locust", "fast")
LADDER_EXAMPLES = """\
examples:
  workerlab ladder
      on what is installed here, 1000 users, three launches a rung, in about ten minutes
  workerlab ladder --quick
      100 users, one launch a rung: the shape in two minutes, no intervals
  workerlab ladder --mongo-url mongodb://127.0.0.1:27017/lab
      the rungs on MongoDB, too; the database that is named must be empty, and is left so
  workerlab ladder --storages sqlite --users 200
      with nothing installed
  workerlab report results --html ladder.html
      the newest run again, as a page with its charts
"""


def add_experiments(commands: argparse._SubParsersAction[Parser]) -> None:
    """Each command with its own words, and those all of them have."""
    _add_generators(commands)
    _experiment(
        commands,
        "bottleneck",
        "is it the server or the load generator?",
        "Change one thing at a time (users, threads of the server, servers, processes of the"
        " generator, the generator) and see which of them changes what comes out. Hunts Locust"
        " where it is installed, else the lab's own generator.",
        BOTTLENECK_EXAMPLES,
    ).add_argument("--quick", action="store_true", help="fewer users, for a shorter time")
    _experiment(
        commands,
        "limits",
        "how far one client goes, and what stops it",
        "Send a hundred, ten thousand, a million requests to a server that answers after a random"
        " delay; run out of open files (errno 24) and of ports (errno 99) on purpose, and avoid"
        " both; make two classic mistakes and see their symptoms.",
        LIMITS_EXAMPLES,
    ).add_argument("--quick", action="store_true", help="leave out what takes minutes")
    _add_ladder(commands)


def _add_ladder(commands: argparse._SubParsersAction[Parser]) -> None:
    one = _experiment(
        commands,
        "ladder",
        "what makes a real web app fast: take one cache after the other away",
        "Load a small blog under Gunicorn, with one thing less each time: the cache inside the"
        " workers, Redis, MongoDB (PostgreSQL instead), the second worker, async. Says what each"
        " was worth, where the time goes, and whether app, storage or load tool set the limit.",
        LADDER_EXAMPLES,
    )
    add = one.add_argument
    add("--quick", action="store_true", help="fewer users, shorter, one launch a rung")
    add("--users", type=parsed(whole), metavar="N", help="at once (1000)")
    add("--trials", type=parsed(whole), metavar="N", help="fresh launches a rung (3)")
    add("--duration", type=parsed(duration), metavar="S", help="of each load (6)")
    add("--workers", type=parsed(whole), metavar="N", help="of the upper rungs (2)")
    add(
        "--tools",
        type=parsed(names_of("load tool that looks at every page", LADDER_TOOLS)),
        metavar="LIST",
        help=f"of {','.join(LADDER_TOOLS)}, which look at every page (locust-fast,fast)",
    )
    add(
        "--storages",
        type=parsed(names_of("storage", STORAGES)),
        metavar="LIST",
        help=f"of {','.join(STORAGES)}, in this order (all that can be had; sqlite if none)",
    )
    for kind, service in KINDS.items():
        if service.option:
            text = f"use this {service.name}" + " instead of starting one" * (kind != "mongodb")
            add(service.option, dest=f"{kind}_url", metavar="URL", help=text)


def _add_generators(commands: argparse._SubParsersAction[Parser]) -> None:
    add = _experiment(
        commands,
        "generators",
        "compare the load generators themselves",
        "Load the same server, which does nothing, with every generator: requests per second, CPU"
        " and memory of each, what it believes of response times against what the server says, and"
        " where each of them ends.",
        GENERATORS_EXAMPLES,
    ).add_argument
    add("--tools", type=parsed(tools), metavar="LIST", help=f"of {','.join(TOOLS)} (all)")
    add("--levels", type=parsed(levels), metavar="LIST", help="connections (1,10,100)")
    add("--duration", type=parsed(duration), metavar="S", help="of each load (3)")
    add("--keepalive", type=parsed(_once), metavar="WORD", help="off or on (on)")


def _once(text: str) -> tuple[bool, ...]:
    words = keepalive(text)
    if len(words) > 1:
        raise ValueError("one of them: off or on")
    return words


def _experiment(
    commands: argparse._SubParsersAction[Parser], name: str, short: str, text: str, examples: str
) -> Parser:
    one = commands.add_parser(
        name,
        help=short,
        description=text,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("--resume", metavar="RUN", help="finish an interrupted run, as planned")
    one.add_argument("--out", metavar="DIR", help="where runs are kept (results)")
    one.add_argument("--format", choices=sorted(FORMATS), help="table")
    explain(one)
    return one
