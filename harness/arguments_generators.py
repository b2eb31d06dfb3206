"""The words of `workerlab generators`, checked."""

from __future__ import annotations

import argparse

from harness.arguments import Parser, duration, keepalive, levels, parsed, tools
from harness.report.study import STUDY_FORMATS
from harness.tools import TOOLS

EXAMPLES = """\
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


def _once(text: str) -> bool:
    said = keepalive(text)
    if len(said) > 1:
        raise ValueError("one of them: off or on")
    return said[0]


def add_generators(commands: argparse._SubParsersAction[Parser]) -> None:
    one = commands.add_parser(
        "generators",
        help="compare the load generators themselves",
        description="Load the same server, which does nothing, with every generator: requests per "
        "second, CPU and memory of each, what it believes of response times against what the "
        "server says, and where each of them ends.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = one.add_argument
    add("--tools", type=parsed(tools), metavar="LIST", help=f"of {','.join(TOOLS)} (all)")
    add("--levels", type=parsed(levels), metavar="LIST", help="connections (1,10,100)")
    add("--duration", type=parsed(duration), metavar="S", help="of each load (3)")
    add("--keepalive", type=parsed(_once), metavar="WORD", help="off or on (on)")
    add("--resume", metavar="RUN", help="finish an interrupted run, as planned")
    add("--out", metavar="DIR", help="where runs are kept (results)")
    add("--format", choices=sorted(STUDY_FORMATS), help="table")
