"""The words of `workerlab limits`, checked."""

from __future__ import annotations

import argparse

from harness.arguments import Parser
from harness.report.study import STUDY_FORMATS

EXAMPLES = """\
examples:
  workerlab limits
      from a hundred requests to a million, in about six minutes
  workerlab limits --quick
      without the synchronous client and the million, in about one minute
  workerlab report results --html limits.html
      the newest run again, as a page with its chart
"""


def add_limits(commands: argparse._SubParsersAction[Parser]) -> None:
    one = commands.add_parser(
        "limits",
        help="how far one client goes, and what stops it",
        description="Send a hundred, ten thousand, a million requests to a server that answers "
        "after a random delay; run out of open files (errno 24) and of ports (errno 99) on "
        "purpose, and avoid both; make two classic mistakes and see their symptoms.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = one.add_argument
    add("--quick", action="store_true", help="leave out what takes minutes")
    add("--resume", metavar="RUN", help="finish an interrupted run, as planned")
    add("--out", metavar="DIR", help="where runs are kept (results)")
    add("--format", choices=sorted(STUDY_FORMATS), help="table")
