"""Load by many processes, each with `requests` and one connection: `--concurrency` processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.load.generators import blocking, forked
from harness.load.generators.document import document, show
from harness.load.generators.share import of_processes
from harness.load.generators.words import parse

NAME = "processes"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load, print the document; the exit code."""
    words = parse(argv, NAME, blocking.SUPPORTS)
    tally = forked.run(of_processes(words), blocking.load, words.concurrency)
    show(document(NAME, replace(words, processes=words.concurrency), tally))
    return 0
