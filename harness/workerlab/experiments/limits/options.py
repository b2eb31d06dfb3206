"""The command line of `workerlab limits`."""

import argparse

from workerlab.options import add_common

EXAMPLES = """\
examples:
  workerlab limits
      from a hundred requests to a million, in about six minutes
  workerlab limits --quick
      without the synchronous client and the million, in about one minute
  workerlab report results --html limits.html
      the newest run again, as a page with its chart
"""


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Send a hundred, ten thousand, a million requests to a server that answers after a random"
        " delay; run out of open files (errno 24) and of local ports (errno 99) on purpose, and"
        " avoid both; make two classic mistakes and show their symptoms."
    )
    to.epilog = EXAMPLES
    add_common(to)
    to.add_argument("--quick", action="store_true", help="leave out the steps that take minutes")
