"""The experiments. Each has a directory, and a line below.

    NAME/options.py     add_options(parser): its command line, made from a record of options
    NAME/command.py     setup(options, plan): the setup of a run; see `runner.Setup`
    NAME/document.py    document(run): the results of a run

Modules are imported only when they are needed, so `--help` is fast.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

# Their summaries, in the order of `workerlab --help`
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
