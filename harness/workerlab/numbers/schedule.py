"""Schedules of a load, determined by a seed alone, so generators and analysis compute the same
ones. Uses only the standard library.

The due times of an open load:

    even      k / rate, k = 0, 1, ...
    poisson   sums of gaps -ln(1 - U) / rate: the gaps of a Poisson process are independent and
              exponential (Kingman, Poisson Processes, 1993, 4.1)

At another rate the same seed gives the same gaps, scaled. The number of requests is random, too:
its standard deviation is the square root of its mean, as with real users. Of n processes, process i
sends `due_times[i::n]`.

The requests of a mix are drawn independently, like those of many users. Rejected: a shuffled deck,
which spreads slow requests too evenly. The n-th request of a load is the n-th one drawn, whichever
process sends it, so every configuration serves the same requests in the same order.

U is random.Random(seed).random(), which Python guarantees to be the same in every version, unlike
expovariate(). The mix and other uses of the seed draw from separate streams, so they do not depend
on the arrivals.
"""

import math
import random
from array import array
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, takewhile

NS = 1_000_000_000
KINDS = ("even", "poisson")


def schedule(kind: str, rate_rps: float, duration_s: float, seed: int = 0) -> "array[int]":
    """Due times in nanoseconds since the origin, ascending, all before the end of the load. Raises
    ValueError unless `kind` is "even" or "poisson"."""
    if kind not in KINDS:
        raise ValueError(f"unknown arrivals {kind!r}")
    end_ns = int(duration_s * NS)
    due = _even(rate_rps) if kind == "even" else _poisson(rate_rps, seed)
    return array("q", takewhile(lambda ns: ns < end_ns, due))


def _even(rate_rps: float) -> Iterator[int]:
    return (int(k / rate_rps * NS) for k in count())


def _poisson(rate_rps: float, seed: int) -> Iterator[int]:
    uniform, due_ns = random.Random(seed).random, 0.0
    while True:
        due_ns -= math.log(1 - uniform()) / rate_rps * NS
        yield int(due_ns)


def sequence(weights: Sequence[float], seed: int) -> Iterator[int]:
    """An endless sequence: the index into `weights` of each request."""
    bounds = list(accumulate(weights))
    last, total = len(bounds) - 1, bounds[-1]
    draw = random.Random(f"mix {seed}").random
    while True:
        yield bisect(bounds, draw() * total, hi=last)
