"""The command line of `workerlab limits`."""

import argparse

from workerlab.options import RunOptions, add_record, flag

EXAMPLES = """\
examples:
  workerlab limits
      send from a hundred requests to a million; about eight minutes
  workerlab limits --quick
      leave out the synchronous client and the million; about three minutes
  workerlab limits --long
      also send a million by aiohttp; ten minutes or more
  workerlab report results --html limits.html
      write the newest run as a page with its charts
"""


class LimitsOptions(RunOptions):
    quick = flag("leave out the steps that take minutes")
    synchronous = flag("with --quick: keep the synchronous client, which takes 2.5 minutes")
    long = flag("also send a million requests by aiohttp")


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Send a hundred, ten thousand, a million requests to a server that responds after a random"
        " delay; run out of open files (errno 24) and of local ports (errno 99) on purpose, and"
        " avoid both; keep all tasks and bodies in memory; make two classic mistakes."
    )
    to.epilog = EXAMPLES
    add_record(to, LimitsOptions)
