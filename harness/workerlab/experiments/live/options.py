"""The command line of `workerlab live`."""

import argparse

from workerlab import options as read

EXAMPLES = """\
examples:
  workerlab live
      a page that shows requests in the accept queue, the workers and their slots
  workerlab live --no-browser --port 8800
      ... at a fixed port, without opening a browser
  workerlab live --share
      ... for a class: pupils on the local network watch, and guess on their own screens

  workerlab live --record lesson.html
      the lesson as a single page that needs neither a server nor a network

Ctrl-C ends the lab and whatever it started.
"""


ROWS: tuple[read.Row, ...] = (
    ("--port", read.port, "N", "the port of the page on 127.0.0.1 (a free one)"),
    ("--lesson", str, "FILE", "give the lesson in this file instead of the bundled one"),
    ("--record", str, "FILE", "run the lesson once and write a page that replays it anywhere"),
    ("--no-browser", None, "", "do not open a browser"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Watch real requests wait in front of a real Gunicorn, in a browser: change the worker"
        " class, the workers and the load, and see the effect at once."
    )
    parser.epilog = EXAMPLES
    read.add_rows(parser, ROWS)
    read.add_share(parser)
    read.add_rows(parser.add_argument_group("what serves it"), read.SERVES_ONE)
    parser.set_defaults(begin=False)  # True in `demo --web`: begin with the lesson
