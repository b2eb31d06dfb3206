"""The command line of `workerlab bottleneck`."""

import argparse

from workerlab.options import RunOptions, ServesInTurn, add_record, flag, option, whole

EXAMPLES = """\
examples:
  workerlab bottleneck
      200, 500, 1000 and 1500 users on a server that does almost nothing, in about ten minutes
  workerlab bottleneck --quick
      50 and 200 users, in about four minutes
  workerlab report results --html bottleneck.html
      the newest run, as a page with its chart
"""


class BottleneckOptions(RunOptions, ServesInTurn):
    trials = option(
        whole, "N", "trials of each cell, from which intervals are computed (3)", before="python"
    )
    quick = flag("fewer users, shorter loads")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Change one factor at a time (users, threads of the server, servers, processes of the"
        " generator, the generator) and see which of them change the throughput. Examines Locust"
        " if it is installed, else the built-in generator `fast`."
    )
    parser.epilog = EXAMPLES
    add_record(parser, BottleneckOptions)
