"""`fast`: the lab's own generator, in one or several processes. Standard library only.

    python -I -S harness/workerlab/load/generators fast --url http://127.0.0.1:8000/ \
        --concurrency 8 --requests 41

With `--requests` the first request is sent alone, the others once it has ended, unless `--ramp` or
`--together` is given. With `--rate` the parent computes the schedule in advance for all processes.
Processes begin once the last one is forked. With `--rows` each request carries its number in the
header X-Workerlab-Request and gets a row of its own; otherwise timings are kept in histograms.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from workerlab.load.generators.document import COLUMNS, MIXED, Tally
from workerlab.load.generators.engine import Engine, LoadShare
from workerlab.load.generators.request import destination
from workerlab.load.generators.words import Words

if TYPE_CHECKING:
    from workerlab.load.generators.share import Share as Common

BUFFER_BYTES = 1 << 18  # of rows
# Requests that a process claims at a time: enough to make claiming cheap, but only a fraction of
# those left, in case the process is served slowly
MAX_TAKEN, TAKEN_DIVISOR = 64, 16


def _whole(words: Words) -> LoadShare:
    """The whole load as one share."""
    return LoadShare(
        words=words,
        destinations=tuple(destination(words, url) for url in words.urls),
        concurrency=words.concurrency,
        requests=words.requests,
        rows=words.rows,
        moments=words.moments(),
        mix=tuple(
            tuple(destination(kind.words, url) for url in kind.words.urls) for kind in words.mix
        ),
        origin_ns=time.monotonic_ns(),
    )


def run(words: Words) -> Tally:
    """Run the whole load. ValueError for requests that cannot be sent; OSError for an unknown host
    or a file that cannot be written."""
    whole = _whole(words)
    lone = words.requests is not None and not (words.ramp_s or words.together)
    if words.processes == 1:
        return _send(whole, lone=lone, now=True).tally
    from workerlab.load.generators.share import fork

    alone = Tally()

    def first(common: Common) -> bool:
        """Start the load, and send the first request alone. All processes are already forked, so
        the load does not include the time to fork them."""
        nonlocal alone
        common.origin.value = time.monotonic_ns()
        share = replace(whole, concurrency=1, requests=int(lone), moments=())
        engine = _send(replace(share, origin_ns=common.origin.value), lone=lone)
        common.refer(engine.reference)
        alone = engine.tally
        return left != 0 and not alone.deadline_struck

    def send(common: Common, units: Sequence[int]) -> Tally:
        share = replace(parts[units[0]], reference=common.reference, origin_ns=common.origin.value)
        if left is not None and not whole.moments:
            take = partial(numbers, common, rest, len(parts))
            share = replace(share, requests=0, step=1, first=rest.first, take=take)
        return _send(share).tally

    left = None if words.requests is None else words.requests - lone
    rest = whole if left is None else replace(whole, requests=left, first=1 + lone)
    parts = shares(rest)
    others = fork(replace(words, processes=len(parts)), send, first)
    if left == 0 or alone.deadline_struck:
        return alone
    alone.add(others)
    if words.rows is not None:
        _join(words.rows, [part.rows for part in parts if part.rows is not None])
    return alone


def numbers(common: Common, whole: LoadShare, processes: int) -> range:
    """Claim the next requests of `whole` for one process: the fewer are left, the fewer it gets, so
    that all processes end together (guided self-scheduling, Polychronopoulos & Kuck 1987). Empty
    once none are left."""
    with common.lock:
        taken = common.taken.value
        left = (whole.requests or 0) - taken
        size = min(left, max(1, left // (TAKEN_DIVISOR * processes)), MAX_TAKEN)
        common.taken.value = taken + size
    return range(whole.first + taken, whole.first + taken + size)


def shares(whole: LoadShare) -> list[LoadShare]:
    """Divide `whole` among as many of its processes as have requests to send."""
    count = min(whole.words.processes, whole.requests or whole.words.processes)

    def part(total: int, i: int) -> int:
        return total // count + (i < total % count)

    return [
        replace(
            whole,
            concurrency=part(whole.concurrency, i),
            requests=None if whole.requests is None else part(whole.requests, i),
            rows=None if whole.rows is None else f"{whole.rows}.{i}",
            first=whole.first + i,
            step=count,
            offset=i,
            moments=whole.moments[i::count],
        )
        for i in range(count)
    ]


def _send(share: LoadShare, *, lone: bool = False, now: bool = False) -> Engine:
    """Send a whole share. `now`: set its origin to now, after opening the file of rows."""
    with contextlib.ExitStack() as stack:
        rows = None
        if share.rows is not None:
            rows = stack.enter_context(open(share.rows, "w", BUFFER_BYTES, "ascii"))
            columns = MIXED if share.words.mix else COLUMNS
            rows.write(columns + "\n" if share.rows == share.words.rows else "")
        if now:
            share = replace(share, origin_ns=time.monotonic_ns())
        engine = Engine(share, rows)
        engine.run(lone=lone)
    return engine


def _join(path: str, parts: Sequence[str]) -> None:
    with open(path, "ab") as whole:
        for name in parts:
            with open(name, "rb") as part:
                shutil.copyfileobj(part, whole)
            os.unlink(name)
