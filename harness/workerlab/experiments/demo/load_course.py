"""The course of a load: how many requests were where, moment by moment, by client, workers and
kernel."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from msgspec import Struct

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS
from workerlab.model import QueueSample

WIDTHS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)  # of a column

Stretch = tuple[float, float]  # from and until, in nanoseconds


class Course(Struct, frozen=True):
    """How many there were in the middle of each column of so many seconds. `no_room`: under way and
    nowhere else. Where the accept queue is full, the kernel has dropped what they sent: their SYN,
    or the last packet of their handshake, so that their client believes to be connected."""

    column_s: float
    in_app: tuple[int, ...]
    in_worker: tuple[int, ...]  # accepted, and not yet in the app
    queued: tuple[int, ...]
    no_room: tuple[int, ...]


def course(facts: Facts, most: int) -> Course | None:
    """In at most so many columns; None where the client did not time each request, or nobody looked
    at the queue."""
    origin_ns, queue = facts.measurement.origin_ns, facts.seen.queue
    if origin_ns is None or not facts.measurement.timings or not queue:
        return None
    under_way = list(_under_way(facts, origin_ns))
    until_s = (max(end for _, end in under_way) - origin_ns) / NS
    column_s = next((one for one in WIDTHS_S if until_s / one <= most), until_s / most)
    columns = range(ceil(until_s / column_s))
    moments = [origin_ns + (place + 0.5) * column_s * NS for place in columns]
    in_app = _counts(((one.start_ns, one.end_ns or facts.ended_ns) for one in facts.spans), moments)
    in_worker = _counts(
        ((one.accept_ns or one.start_ns, one.start_ns) for one in facts.spans), moments
    )
    queued = _lengths(queue, moments)
    each = zip(_counts(under_way, moments), in_app, in_worker, queued, strict=True)
    no_room = (max(0, asked - sum(known)) for asked, *known in each)
    return Course(column_s, in_app, in_worker, queued, tuple(no_room))


def _under_way(facts: Facts, origin_ns: int) -> Iterator[Stretch]:
    """By the client; to the end of the load where it was not answered."""
    for one in facts.measurement.timings:
        begun = origin_ns + one.start_s * NS
        yield begun, facts.ended_ns if one.end_s is None else begun + one.end_s * NS


def _counts(stretches: Iterable[Stretch], moments: Sequence[float]) -> tuple[int, ...]:
    every = tuple(stretches)
    return tuple(sum(begun <= at < ended for begun, ended in every) for at in moments)


def _lengths(queue: Sequence[QueueSample], moments: Sequence[float]) -> tuple[int, ...]:
    """As it was seen last."""
    seen_ns = [one.at_ns for one in queue]
    return tuple(queue[max(0, bisect_right(seen_ns, at) - 1)].length for at in moments)
