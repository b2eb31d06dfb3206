"""Load by many threads of one process, each with `requests` and a connection of its own.

While one of them runs Python, no other does (the GIL): they wait in parallel and compute in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.load.generators import blocking
from harness.load.generators.document import document, show
from harness.load.generators.share import of_threads
from harness.load.generators.words import parse

NAME = "threads"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load, print the document; the exit code."""
    words = parse(argv, NAME, blocking.SUPPORTS)
    tally = blocking.load(of_threads(words), range(words.concurrency))
    show(document(NAME, words, tally))
    return 0
