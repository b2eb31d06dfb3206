"""The order of the requests of a mix, which its seed alone determines. Standard library only.

Requests are drawn independently, as those of many users are: dealing them from a shuffled deck
would spread the slow ones too evenly. The n-th request of a load is the n-th drawn, whichever
process sends it, so every candidate serves the same requests in the same order.

Python guarantees the numbers of random.Random.random() for every version. Arrivals draw from a
stream of their own.
"""

import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate


def sequence(weights: Sequence[float], seed: int) -> Iterator[int]:
    """Endless: the index into `weights` of each request."""
    bounds = list(accumulate(weights))
    last, whole = len(bounds) - 1, bounds[-1]
    draw = random.Random(f"mix {seed}").random
    while True:
        yield bisect(bounds, draw() * whole, hi=last)
