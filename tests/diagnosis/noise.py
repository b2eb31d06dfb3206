"""`python noise.py SEED`: burns one core in random bursts of 0.05 to 3 s, with pauses of the same
lengths, until it is killed or its parent ends."""

from __future__ import annotations

import os
import random
import sys
import time

BURST_S = (0.05, 3.0)
POLL_S = 0.05


def main(seed: int) -> None:
    parent, rng = os.getppid(), random.Random(seed)

    def until(end: float, burning: bool) -> None:
        while (left := end - time.monotonic()) > 0 and os.getppid() == parent:
            if burning:
                sum(range(10_000))
            else:
                time.sleep(min(left, POLL_S))

    burning = False
    while os.getppid() == parent:
        burning = not burning
        until(time.monotonic() + rng.uniform(*BURST_S), burning)


if __name__ == "__main__":
    main(int(sys.argv[1]))
