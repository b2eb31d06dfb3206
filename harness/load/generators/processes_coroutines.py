"""Load by many coroutines in each of several processes, one per core where nobody says otherwise:
`aiohttp`. The connections are dealt among the processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from harness.load.generators import coroutines, forked
from harness.load.generators.document import document, show
from harness.load.generators.share import of_processes
from harness.load.generators.words import parse

NAME = "processes-coroutines"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load, print the document; the exit code."""
    words = parse(argv, NAME, (*coroutines.SUPPORTS, "processes"))
    processes = words.processes if words.processes > 1 else min(_cores(), words.concurrency)
    tally = forked.run(of_processes(words), coroutines.load, processes)
    show(document(NAME, replace(words, processes=processes), tally))
    return 0


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
