"""A neighbour that burns one core at random times, until it is ended: bursts of 0.05 to 3 s and
pauses as long. `python noise.py SEED`. It ends with the process that started it."""

from __future__ import annotations

import os
import random
import sys
import time

BURST_S = (0.05, 3.0)
LOOK_S = 0.05


def main(seed: int) -> None:
    parent, chance = os.getppid(), random.Random(seed)

    def until(end: float, burning: bool) -> None:
        while (left := end - time.monotonic()) > 0 and os.getppid() == parent:
            if burning:
                sum(range(10_000))
            else:
                time.sleep(min(left, LOOK_S))

    burning = False
    while os.getppid() == parent:
        burning = not burning
        until(time.monotonic() + chance.uniform(*BURST_S), burning)


if __name__ == "__main__":
    main(int(sys.argv[1]))
