"""The command line of `workerlab reproduce`."""

import argparse

from workerlab.options import RunOptions, add_record, flag, positional, repeatable

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


class ReproduceOptions(RunOptions):
    writeup = positional(str, "NAME", "ab, generators, locust, million, ladder or all", "")
    quick = flag("fewer repetitions, the same rows")
    earlier_runs = repeatable(
        str,
        "RUN",
        "take an earlier run of the same command instead of running a part (repeatable)",
        flag="--from",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reproduce the write-ups behind this lab: the original's table with today's figures, and"
        " whether each of its claims held, was corrected, or is not shown, with the evidence."
    )
    parser.epilog = EXAMPLES
    add_record(parser, ReproduceOptions)
