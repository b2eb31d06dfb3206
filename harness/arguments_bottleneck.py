"""The words of `workerlab bottleneck`, checked."""

from __future__ import annotations

import argparse

from harness.arguments import Parser
from harness.report.study import STUDY_FORMATS

EXAMPLES = """\
examples:
  workerlab bottleneck
      200, 500 and 1000 users on a server that does next to nothing, in about three minutes
  workerlab bottleneck --quick
      50 and 200 users, in about one minute
  workerlab report results --html bottleneck.html
      the newest run again, as a page with its chart
"""


def add_bottleneck(commands: argparse._SubParsersAction[Parser]) -> None:
    one = commands.add_parser(
        "bottleneck",
        help="is it the server or the load generator?",
        description="Change one thing at a time (users, threads of the server, servers, processes "
        "of the generator, the generator) and see which of them changes what comes out. Hunts "
        "Locust where it is installed, else the lab's own generator.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = one.add_argument
    add("--quick", action="store_true", help="fewer users, for a shorter time")
    add("--resume", metavar="RUN", help="finish an interrupted run, as planned")
    add("--out", metavar="DIR", help="where runs are kept (results)")
    add("--format", choices=sorted(STUDY_FORMATS), help="table")
