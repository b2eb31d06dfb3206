"""The command line of `workerlab live`."""

import argparse

from workerlab import options as read

EXAMPLES = """\
examples:
  workerlab live
      a page that shows requests on their way: the accept queue, the workers, their slots
  workerlab live --no-browser --port 8800
      ... at an address of your choice, to be opened by hand
  workerlab live --share
      ... for a class: pupils on the local network watch, and guess on their own screens

  workerlab live --record lesson.html
      the lesson as one page, which needs neither a server nor a network

Ctrl-C ends the lab and whatever it started.
"""


ROWS: tuple[read.Row, ...] = (
    ("--port", read.port, "N", "the port of the page on 127.0.0.1 (a free one)"),
    ("--lesson", str, "FILE", "give the lesson in this file, instead of the bundled one"),
    ("--record", str, "FILE", "run the lesson once, and write it as a page to be played anywhere"),
    ("--no-browser", None, "", "do not open a browser"),
)


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Watch real requests wait in front of a real Gunicorn, in a browser: change the worker"
        " class, the workers and the load, and see the effect at once."
    )
    to.epilog = EXAMPLES
    read.add_rows(to, ROWS)
    read.add_share(to)
    read.add_rows(to.add_argument_group("what serves it"), read.SERVES_ONE)
    to.set_defaults(begin=False)  # True in `demo --web`: begin with the lesson
