"""The command line of `workerlab limits`."""

import argparse

from workerlab.options import RunOptions, add_record, flag

EXAMPLES = """\
examples:
  workerlab limits
      from a hundred requests to a million, in about eight minutes
  workerlab limits --quick
      without the synchronous client and the million, in about three minutes
  workerlab limits --long
      also a million with aiohttp, which takes ten minutes or more
  workerlab report results --html limits.html
      the newest run again, as a page with its chart
"""


class LimitsOptions(RunOptions):
    quick = flag("leave out the steps that take minutes")
    synchronous = flag("with --quick: keep the synchronous client, which takes 2.5 minutes")
    long = flag("also send a million requests by aiohttp")


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Send a hundred, ten thousand, a million requests to a server that answers after a random"
        " delay; run out of open files (errno 24) and of local ports (errno 99) on purpose, and"
        " avoid both; keep all tasks and bodies in memory; make two classic mistakes."
    )
    to.epilog = EXAMPLES
    add_record(to, LimitsOptions)
