"""The command line of `workerlab demo`."""

import argparse

from workerlab import options as read
from workerlab.experiments.live.options import add_share

EXAMPLES = """\
examples:
  workerlab demo            asks before each step; any key continues
  workerlab demo --yes      runs all steps, in about two minutes
  workerlab demo --web      in a browser, where you see real requests wait
  workerlab demo --web --share
                            ... and a class guesses on its own screens
  workerlab demo --lesson my.toml
                            another lesson; docs/extending.md says how to write one
"""


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "A lesson in the terminal: what happens when more requests arrive than a server can"
        " serve? Each step lets you guess, says what the law predicts, runs the"
        " load live, compares all three, and explains the result."
    )
    to.epilog = EXAMPLES
    to.add_argument("--web", action="store_true", help="give it in a browser: see workerlab live")
    add_share(to)
    to.add_argument("--yes", action="store_true", help="ask nothing and run all steps")
    to.add_argument(
        "--lesson", type=read.existing_file, metavar="FILE", help="another lesson (TOML)"
    )
    to.add_argument("--out", metavar="DIR", help="where runs are kept (results)")
    read.add_serves_in_turn(to)
    to.set_defaults(resume=None)  # its runs are sweeps: `sweep --resume` resumes them
