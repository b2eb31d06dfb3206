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

from workerlab.load.generators.document import Tally
from workerlab.load.generators.engine import Engine, LoadShare
from workerlab.load.generators.format import COLUMNS, MIX_COLUMNS
from workerlab.load.generators.options import LoadOptions
from workerlab.load.generators.request import destination

if TYPE_CHECKING:
    from workerlab.load.generators.share import SharedState

ROWS_BUFFER_BYTES = 1 << 18
# A process claims enough requests at a time to make claiming cheap, but only a fraction of those
# left, in case it is served slowly
MAX_CLAIMED_REQUESTS, CLAIM_DIVISOR = 64, 16


def _whole_load(options: LoadOptions) -> LoadShare:
    """The whole load as one share."""
    return LoadShare(
        options=options,
        destinations=tuple(destination(options, url) for url in options.urls),
        concurrency=options.concurrency,
        requests=options.requests,
        rows=options.rows,
        due_offsets_ns=options.due_times_ns(),
        mix=tuple(
            tuple(destination(entry.options, url) for url in entry.options.urls)
            for entry in options.mix
        ),
        origin_ns=time.monotonic_ns(),
    )


def run(options: LoadOptions) -> Tally:
    """Run the whole load. Raises ValueError for requests that cannot be sent, and OSError for an
    unknown host or a file that cannot be written."""
    whole = _whole_load(options)
    lone = options.requests is not None and not (options.ramp_s or options.together)
    if options.processes == 1:
        return _send(whole, lone=lone, now=True).tally
    from workerlab.load.generators.share import fork

    tally = Tally()

    def send_first(shared: SharedState) -> bool:
        """Start the load, and send the first request alone. All processes are already forked, so
        the load does not include the time to fork them."""
        nonlocal tally
        shared.origin.value = time.monotonic_ns()
        share = replace(whole, concurrency=1, requests=int(lone), due_offsets_ns=())
        engine = _send(replace(share, origin_ns=shared.origin.value), lone=lone)
        shared.set_reference(engine.reference)
        tally = engine.tally
        return left != 0 and not tally.deadline_struck

    def send_rest(shared: SharedState, units: Sequence[int]) -> Tally:
        share = replace(parts[units[0]], reference=shared.reference, origin_ns=shared.origin.value)
        if left is not None and not whole.due_offsets_ns:
            claim = partial(claim_numbers, shared, rest, len(parts))
            share = replace(share, requests=0, step=1, first=rest.first, claim=claim)
        return _send(share).tally

    left = None if options.requests is None else options.requests - lone
    rest = whole if left is None else replace(whole, requests=left, first=1 + lone)
    parts = divide(rest)
    others = fork(replace(options, processes=len(parts)), send_rest, before_start=send_first)
    if left == 0 or tally.deadline_struck:
        return tally
    tally.add(others)
    if options.rows is not None:
        _append_files(options.rows, [part.rows for part in parts if part.rows is not None])
    return tally


def claim_numbers(shared: SharedState, whole: LoadShare, processes: int) -> range:
    """Claim the next requests of `whole` for one process: fewer when fewer are left, so that all
    processes end together (guided self-scheduling, Polychronopoulos & Kuck 1987). Returns
    an empty range once none are left."""
    with shared.lock:
        claimed = shared.claimed.value
        left = (whole.requests or 0) - claimed
        size = min(left, max(1, left // (CLAIM_DIVISOR * processes)), MAX_CLAIMED_REQUESTS)
        shared.claimed.value = claimed + size
    return range(whole.first + claimed, whole.first + claimed + size)


def divide(whole: LoadShare) -> list[LoadShare]:
    """Divide `whole` among as many of its processes as it has requests for."""
    count = min(whole.options.processes, whole.requests or whole.options.processes)

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
            due_offsets_ns=whole.due_offsets_ns[i::count],
        )
        for i in range(count)
    ]


def _send(share: LoadShare, *, lone: bool = False, now: bool = False) -> Engine:
    """Send a share of the load. `now`: set its origin to now, after opening the rows file."""
    with contextlib.ExitStack() as stack:
        rows = None
        if share.rows is not None:
            rows = stack.enter_context(open(share.rows, "w", ROWS_BUFFER_BYTES, "ascii"))
            columns = MIX_COLUMNS if share.options.mix else COLUMNS
            rows.write(columns + "\n" if share.rows == share.options.rows else "")
        if now:
            share = replace(share, origin_ns=time.monotonic_ns())
        engine = Engine(share, rows)
        engine.run(lone=lone)
    return engine


def _append_files(path: str, parts: Sequence[str]) -> None:
    with open(path, "ab") as whole:
        for name in parts:
            with open(name, "rb") as part:
                shutil.copyfileobj(part, whole)
            os.unlink(name)
