"""`fast`: the lab's own generator, in one or more processes. Standard library only.

    python -I -S harness/workerlab/load/generators fast --url http://127.0.0.1:8000/ \
        --concurrency 8 --requests 41

With `--requests` the first request is sent alone, and the others once it has ended, unless `--ramp`
or `--together` is given. With `--rate` the parent computes the schedule in advance, for all
processes. They begin once the last one is forked. With `--rows` each request carries its number in
the header X-Workerlab-Request and gets a row of its own; otherwise timings go into histograms.
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
    """The whole load, as one share."""
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
    first_alone = options.requests is not None and not (options.ramp_s or options.together)
    if options.processes == 1:
        return _send(whole, first_alone=first_alone, reset_origin=True).tally
    from workerlab.load.generators.share import fork

    tally = Tally()

    def send_first(shared: SharedState) -> bool:
        """Start the load, and send the first request alone. All processes are already forked, so
        the load does not include the time to fork them."""
        nonlocal tally
        shared.origin.value = time.monotonic_ns()
        share = replace(whole, concurrency=1, requests=int(first_alone), due_offsets_ns=())
        engine = _send(replace(share, origin_ns=shared.origin.value), first_alone=first_alone)
        shared.set_reference(engine.reference)
        tally = engine.tally
        return remaining != 0 and not tally.deadline_struck

    def send_rest(shared: SharedState, units: Sequence[int]) -> Tally:
        share = replace(shares[units[0]], reference=shared.reference, origin_ns=shared.origin.value)
        if remaining is not None and not whole.due_offsets_ns:
            claim = partial(claim_numbers, shared, rest, len(shares))
            share = replace(share, requests=0, step=1, first=rest.first, claim=claim)
        return _send(share).tally

    remaining = None if options.requests is None else options.requests - first_alone
    rest = replace(whole, requests=remaining, first=1 + first_alone)
    shares = divide(rest)
    rest_tally = fork(replace(options, processes=len(shares)), send_rest, before_start=send_first)
    if remaining == 0 or tally.deadline_struck:
        return tally
    tally.add(rest_tally)
    if options.rows is not None:
        _append_files(options.rows, [share.rows for share in shares if share.rows is not None])
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
    """Divide `whole` among its processes, or among fewer if it has fewer requests."""
    count = min(whole.options.processes, whole.requests or whole.options.processes)

    def portion(total: int, i: int) -> int:
        return total // count + (i < total % count)

    return [
        replace(
            whole,
            concurrency=portion(whole.concurrency, i),
            requests=None if whole.requests is None else portion(whole.requests, i),
            rows=None if whole.rows is None else f"{whole.rows}.{i}",
            first=whole.first + i,
            step=count,
            offset=i,
            due_offsets_ns=whole.due_offsets_ns[i::count],
        )
        for i in range(count)
    ]


def _send(share: LoadShare, *, first_alone: bool = False, reset_origin: bool = False) -> Engine:
    """Send a share of the load. `reset_origin`: its times count from when the rows file is open."""
    with contextlib.ExitStack() as stack:
        rows = None
        if share.rows is not None:
            rows = stack.enter_context(open(share.rows, "w", ROWS_BUFFER_BYTES, "ascii"))
            columns = MIX_COLUMNS if share.options.mix else COLUMNS
            rows.write(columns + "\n" if share.rows == share.options.rows else "")
        if reset_origin:
            share = replace(share, origin_ns=time.monotonic_ns())
        engine = Engine(share, rows)
        engine.run(first_alone=first_alone)
    return engine


def _append_files(path: str, parts: Sequence[str]) -> None:
    with open(path, "ab") as output:
        for part_path in parts:
            with open(part_path, "rb") as part:
                shutil.copyfileobj(part, output)
            os.unlink(part_path)
