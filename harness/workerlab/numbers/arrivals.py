"""When the requests of an open load are due: fixed before the load starts, by a seed, and the same
for whoever computes it. Standard library only, for generators and analysis alike.

    even      k / rate, k = 0, 1, ...
    poisson   sums of gaps -ln(1 - U) / rate: those of a Poisson process are independent and
              exponential (Kingman, Poisson Processes, 1993, 4.1)

U is random.Random(seed).random(), which Python promises to give the same numbers in every version
(expovariate() is promised nothing). At another rate the same seed gives the same gaps, scaled. How
many requests are due is random as well, with a standard deviation of its square root: a schedule
with a given number would not be what users send. What else a seed decides takes a stream of its
own, or what is asked for would depend on when.

Of several processes, number i of n sends `moments[i::n]`.
"""

import math
import random
from array import array
from collections.abc import Iterator
from itertools import count, takewhile

NS = 1_000_000_000
KINDS = ("even", "poisson")


def schedule(kind: str, rate_rps: float, duration_s: float, seed: int = 0) -> "array[int]":
    """Nanoseconds since the origin, ascending, before the end of the load. `kind`: "even" or
    "poisson"; ValueError for others."""
    if kind not in KINDS:
        raise ValueError(f"unknown arrivals {kind!r}")
    ends_ns = int(duration_s * NS)
    due = _even(rate_rps) if kind == "even" else _poisson(rate_rps, seed)
    return array("q", takewhile(lambda ns: ns < ends_ns, due))


def _even(rate_rps: float) -> Iterator[int]:
    return (int(k / rate_rps * NS) for k in count())


def _poisson(rate_rps: float, seed: int) -> Iterator[int]:
    uniform, due_ns = random.Random(seed).random, 0.0
    while True:
        due_ns -= math.log(1 - uniform()) / rate_rps * NS
        yield int(due_ns)
