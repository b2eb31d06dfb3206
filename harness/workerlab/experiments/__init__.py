"""The experiments: one directory and one line below for each.

    NAME/options.py     add_options(parser): the command line, made from a record of options
    NAME/command.py     setup(options, plan): what to run; see `runner.Setup`
    NAME/document.py    document(run): the results

A module is imported only when it is needed: `--help` stays fast.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

# In the order of `workerlab --help`, with its summaries
EXPERIMENTS: Mapping[str, str] = {
    "sweep": "measure worker classes at increasing concurrency",
    "generators": "compare the load generators",
    "bottleneck": "is it the server or the load generator?",
    "limits": "how far one client goes, and what stops it",
    "reproduce": "five published experiments, claim by claim: what holds today?",
    "advise": "which class, how many workers and threads, for your app and target?",
    "compare": "what does another version, interpreter or setting change?",
    "settings": "what does each worker class do with each of Gunicorn's settings?",
    "ladder": "what makes a real web app fast: remove one cache after the other",
}


def experiment_module(name: str, module: str) -> Any:
    """A module of the experiment `name`; `module`: "options", "command" or "document"."""
    return import_module(f"{__name__}.{name}.{module}")
