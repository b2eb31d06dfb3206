"""`fast`: the lab's own generator, in one or several processes. Standard library only.

    python -I -S harness/load/generators fast --url http://127.0.0.1:8000/ --concurrency 8 \
        --requests 41

With `--requests` the first one is sent alone (but with `--ramp`), the others when it has ended.
With `--rows` each request bears its number in the header X-Workerlab-Request and has a line of its
own. Otherwise timings are kept in histograms, so that a million requests need no more memory than
a thousand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import shutil
import sys
import time
from collections.abc import Sequence

from harness.load.generators.document import Tally, document, show
from harness.load.generators.engine import Engine, Share
from harness.load.generators.request import destination
from harness.load.generators.rows import Rows
from harness.load.generators.words import OPTIONAL, Words, parse

NAME = "fast"
SPARE_FILES = 64  # beside the connections


Sent = tuple[Tally, tuple[int, int] | None]


def send(share: Share) -> Sent:
    """All of a share; what was seen, and the body that all of them had."""
    return _send(share, None if share.words.rows is None else _part(share))


def _send(share: Share, rows: str | None, *, lone: bool = False) -> Sent:
    with contextlib.ExitStack() as stack:
        heading = rows == share.words.rows
        writer = stack.enter_context(Rows(rows, share.origin_ns, heading=heading)) if rows else None
        engine = Engine(share, writer)
        engine.run(lone=lone)
    return engine.tally, engine.reference


def _part(share: Share) -> str:
    return f"{share.words.rows}.{share.offset}"


def shares(whole: Share) -> list[Share]:
    """`whole` split among its processes, none of which has nothing to do."""
    count = whole.words.processes
    if whole.requests is not None:
        count = max(1, min(count, whole.requests))

    def part(total: int, i: int) -> int:
        return total // count + (i < total % count)

    return [
        dataclasses.replace(
            whole,
            concurrency=part(whole.concurrency, i),
            requests=None if whole.requests is None else part(whole.requests, i),
            first=whole.first + i,
            step=count,
            offset=i,
        )
        for i in range(count)
    ]


def run(words: Words) -> Tally:
    """The whole load. ValueError for what cannot be sent; OSError for an unknown host or a file
    that cannot be written."""
    destinations = tuple(destination(words, url) for url in words.urls)
    _allow_files(words.concurrency)
    whole = Share(words, destinations, words.concurrency, words.requests, time.monotonic_ns())
    lone = words.requests is not None and not words.ramp_s
    if words.processes == 1:
        return _send(whole, words.rows, lone=lone)[0]
    first = 1 if lone else 0
    alone = dataclasses.replace(whole, concurrency=1, requests=first)
    tally, reference = _send(alone, words.rows, lone=lone)
    if words.requests is not None:
        left = words.requests - first
        whole = dataclasses.replace(whole, requests=left, first=1 + first, reference=reference)
    if whole.requests == 0 or tally.deadline_struck:
        return tally
    parts = shares(whole)
    for one, _ in _side_by_side(parts):
        tally.add(one)
    if words.rows is not None:
        _join(words.rows, parts)
    return tally


def _side_by_side(parts: Sequence[Share]) -> list[Sent]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(len(parts), mp_context=fork) as pool:
        return list(pool.map(send, parts))


def _join(path: str, parts: Sequence[Share]) -> None:
    with open(path, "ab") as whole:
        for share in parts:
            with open(_part(share), "rb") as part:
                shutil.copyfileobj(part, whole)
            os.unlink(_part(share))


def _allow_files(connections: int) -> None:
    """More open files, where the soft limit is too low and the hard one allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load, print the document; the exit code."""
    words = parse(argv, NAME, supports=OPTIONAL)
    try:
        tally = run(words)
    except ValueError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    show(document(NAME, words, tally))
    return 0
