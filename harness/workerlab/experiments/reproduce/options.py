"""The command line of `workerlab reproduce`."""

import argparse

from workerlab.options import add_common

EXAMPLES = """\
examples:
  workerlab reproduce
      what can be reproduced, and how long each takes
  workerlab reproduce ab
      worker classes under ApacheBench, in about three minutes
  workerlab reproduce all --quick
      all five write-ups with fewer repetitions, in about 25 minutes
  workerlab reproduce locust --from results/20261120-101500-bottleneck
      with an earlier run in place of that part
  workerlab report results --html reproduction.html
      the newest run again, as a page with both curves
"""


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Reproduce the write-ups behind this lab: the original's table with today's"
        " figures, and each of its claims held, corrected, or not shown, with the evidence."
    )
    to.epilog = EXAMPLES
    to.add_argument(
        "writeup", metavar="NAME", nargs="?", help="ab, generators, locust, million, ladder or all"
    )
    add_common(to)
    to.add_argument("--quick", action="store_true", help="fewer repetitions, the same rows")
    to.add_argument(
        "--from", dest="earlier_runs", metavar="RUN", action="append",
        help="take an earlier run of the same command instead of running a part (repeatable)",
    )  # fmt: skip
