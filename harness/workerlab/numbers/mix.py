"""Which request of a mix comes when: fixed before the load starts, by a seed, and the same for
whoever computes it. Standard library only.

Each request is drawn by itself, as those of many users are: a deck that is dealt out would spread
the slow ones more evenly than they come. The n-th of the load is the n-th drawn, whoever sends it
and when: so every candidate gets the same requests in the same order.

The numbers are those of random.Random.random(), which Python promises to be the same in every
version; what else a seed decides (when requests arrive) draws from a stream of its own.
"""

import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate


def sequence(weights: Sequence[float], seed: int) -> Iterator[int]:
    """Without end: the place in `weights` of the next request."""
    bounds = list(accumulate(weights))
    last, whole = len(bounds) - 1, bounds[-1]
    draw = random.Random(f"mix {seed}").random
    while True:
        yield bisect(bounds, draw() * whole, hi=last)
