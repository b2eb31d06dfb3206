"""The recursion against exact theory, with ten million arrivals each.

    python -m tests.benchmarks.queueing [--arrivals 10000000] [--seed 12]

Theory: Pollaczek and Khinchine for one slot and any service times; Erlang C for four slots and
exponential ones. Service times have a mean of 1; of the hyperexponential ones, one in ten has a
mean ten times that of the others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import accumulate
from random import Random
from statistics import fmean

from tests.builders.recursion import allen_cunneen, waits

SHORT_S = 1 / 1.9  # the mean of nine of ten hyperexponential service times


def constant(_: Random) -> float:
    return 1.0


def exponential(rng: Random) -> float:
    return rng.expovariate(1.0)


def hyperexponential(rng: Random) -> float:
    return rng.expovariate(1 / (10 * SHORT_S if rng.random() < 0.1 else SHORT_S))


HYPER_SQUARE = 2 * (0.9 * SHORT_S**2 + 0.1 * (10 * SHORT_S) ** 2)
CASES: tuple[tuple[str, Callable[[Random], float], float, int, float], ...] = (
    ("M/D/1", constant, 1.0, 1, 0.5),
    ("M/D/1", constant, 1.0, 1, 0.8),
    ("M/M/1", exponential, 2.0, 1, 0.5),
    ("M/M/1", exponential, 2.0, 1, 0.8),
    ("M/H2/1", hyperexponential, HYPER_SQUARE, 1, 0.5),
    ("M/H2/1", hyperexponential, HYPER_SQUARE, 1, 0.8),
    ("M/M/4", exponential, 2.0, 4, 0.5),
    ("M/M/4", exponential, 2.0, 4, 0.8),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arrivals", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=12)
    options = parser.parse_args()
    print("| queue | busy | waiting by theory | by the recursion | ratio | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, service, square, slots, busy in CASES:
        start_s = time.perf_counter()
        rng, count = Random(options.seed), options.arrivals
        arrivals = accumulate(rng.expovariate(busy * slots) for _ in range(count))
        services = Random(f"services of {options.seed}")
        mean = fmean(waits(arrivals, (service(services) for _ in range(count)), slots))
        exact = allen_cunneen(busy * slots, 1.0, square, slots)  # exact for all these queues
        duration_s = time.perf_counter() - start_s
        print(f"| {name} | {busy:.0%} | {exact:.4f} | {mean:.4f} | {mean / exact:.4f} "
              f"| {duration_s:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
