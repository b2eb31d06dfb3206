"""The command line of `workerlab settings`."""

import argparse

from workerlab import options as read
from workerlab.options import RunOptions, Serves, add_record, flag, option, positional

EXAMPLES = """\
examples:
  workerlab settings gthread
      show what gthread does with each setting; about a minute
  workerlab settings sync,asgi --gunicorn 25.3.0,27.0.1
      compare two classes in two versions
  workerlab settings --config gunicorn.conf.py
      show the effect of each line of this file for the worker class that it selects
  workerlab settings gevent --config gunicorn.conf.py
      show the same for another class
  workerlab settings sync --only timeout,keepalive --explain
      examine two settings, with the observations behind each result
  workerlab settings gthread --quick
      run only two launches; about 15 seconds
"""


class SettingsOptions(Serves, RunOptions):
    classes = positional(
        read.classes, "CLASSES", "sync,gthread,..., or all; by default that of --config", ()
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
        "Show which of Gunicorn's settings each worker class honours, ignores, clamps or handles"
        " differently. Each result comes from an experiment on this machine: a server is started"
        " from a Gunicorn file and observed from outside."
    )
    to.epilog = EXAMPLES
    add_record(to, SettingsOptions)
