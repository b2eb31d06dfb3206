"""The command line of `workerlab reproduce`."""

import argparse

from workerlab.options import RunOptions, add_record, flag, positional, repeatable

EXAMPLES = """\
examples:
  workerlab reproduce
      list the write-ups and how long each takes
  workerlab reproduce ab
      reproduce worker classes under ApacheBench; about three minutes
  workerlab reproduce all --quick
      reproduce all five write-ups with fewer repetitions; about 25 minutes
  workerlab reproduce locust --from results/20261120-101500-bottleneck
      use an earlier run instead of that part
  workerlab report results --html reproduction.html
      write the newest run as a page with both curves
"""


class ReproduceOptions(RunOptions):
    writeup = positional(str, "NAME", "ab, generators, locust, million, ladder or all", "")
    quick = flag("fewer repetitions, the same rows")
    earlier_runs = repeatable(
        str,
        "RUN",
        "use an earlier run of the same command instead of running a part (repeatable)",
        flag="--from",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reproduce the write-ups behind this lab. Reports the original table with today's figures,"
        " and whether each claim held, was corrected, or is not shown, with the evidence."
    )
    parser.epilog = EXAMPLES
    add_record(parser, ReproduceOptions)
