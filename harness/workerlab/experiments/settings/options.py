"""The command line of `workerlab settings`."""

import argparse

from workerlab import options as read
from workerlab.options import RunOptions, Serves, add_record, flag, option, positional

EXAMPLES = """\
examples:
  workerlab settings gthread
      what does gthread do with each setting? (about a minute)
  workerlab settings sync,asgi --gunicorn 25.3.0,27.0.1
      two classes and two versions, and where these differ
  workerlab settings --config gunicorn.conf.py
      line by line, what this file does for the worker class that it names
  workerlab settings gevent --config gunicorn.conf.py
      ... and for another one
  workerlab settings sync --only timeout,keepalive --explain
      two settings, with the observations behind each answer
  workerlab settings gthread --quick
      what two launches show, in about 15 seconds
"""


class SettingsOptions(Serves, RunOptions):
    classes = positional(
        read.classes, "CLASSES", "sync,gthread,..., or all; with --config that of the file", ()
    )
    config = option(
        read.existing_file,
        "FILE",
        "a Gunicorn file: only what it sets is examined",
        before="python",
    )
    only = option(str, "LIST", "examine these settings", before="python")
    quick = flag("leave out what takes longer than a few seconds", before="python")

    def serves_project(self) -> bool:
        return True


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "What each worker class does with each of Gunicorn's settings: honoured, ignored, clamped,"
        " or something else. Each answer is an experiment on this machine: a server is started from"
        " a Gunicorn file, and observed from outside."
    )
    to.epilog = EXAMPLES
    add_record(to, SettingsOptions)
