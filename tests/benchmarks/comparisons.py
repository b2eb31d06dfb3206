"""How often is `workerlab compare` right, on real servers?

    python -m tests.benchmarks.comparisons same --times 30 --burner
    python -m tests.benchmarks.comparisons resampled --times 1000
    python -m tests.benchmarks.comparisons losses --times 10

same       two identical servers: how often is any metric called different? `--burner`: while
           another program uses a core at random, for up to three seconds at a time
resampled  the same for comparisons drawn with replacement from the launches of `same`, each from
           those of one run
losses     105 instead of 100 ms of CPU, and 1.05 instead of 1 s of waiting: how often is the median
           response time called different within five minutes? With a limit on it, as in a gate, so
           that the comparison ends as soon as it is decided.

`same` and `losses` print a line per comparison, all three a sum; the runs are kept in DIR (--out).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.diagnosis.run import burning
from workerlab import run_store
from workerlab.experiments.compare.comparison import (
    DECIDING_METRICS,
    LOOKS,
    Change,
    Launch,
    Pair,
    all_decided,
    changes,
    compare_groups,
)
from workerlab.experiments.compare.comparison import launch_metrics as metrics_of
from workerlab.experiments.compare.options import AT_LEAST

SAME = ("sync", "4", "--workers", "2", "--sleep", "0.05", "--duration", "2", "--budget", "60s",
        "--a", "env=SIDE=a", "--b", "env=SIDE=b")  # fmt: skip
LOSSES = {
    "cpu": ("sync", "1", "--workers", "1", "--sleep", "0", "--duration", "4", "--budget", "5m",
            "--a", "env=WORKERLAB_CPU=100", "--b", "env=WORKERLAB_CPU=105",
            "--fail-if", "p50>+1%"),
    "wait": ("sync", "4", "--workers", "4", "--duration", "4", "--budget", "5m",
             "--a", "sleep=1", "--b", "sleep=1.05", "--fail-if", "p50>+1%"),
}  # fmt: skip


def compare(arguments: Sequence[str], out: Path) -> list[Change]:
    """The changes of all metrics in a new run."""
    argv = [sys.executable, "-m", "workerlab", "compare", *arguments, "--out", str(out)]
    with (out / "log.txt").open("a") as log:
        subprocess.run(argv, stdout=log, stderr=log, check=False)
    run = max(out.glob("*/run.json"), key=lambda path: path.stat().st_mtime).parent
    (group,) = compare_groups(run_store.load(run))
    return list(group.changes)


def different(results: Sequence[Change]) -> list[str]:
    """The metrics that a comparison calls different."""
    return [change.metric.name for change in results if change.word == "different"]


def same(times: int, out: Path, *, burner: bool) -> None:
    wrong = 0
    with burning(1) if burner else nullcontext():
        for number in range(1, times + 1):
            results = compare(SAME, out)
            wrong += bool(different(results))
            pairs = max((change.n for change in results), default=0)
            words = {change.metric.name: change.word for change in results}
            decided = {name: word for name, word in words.items() if word != "inconclusive"}
            print(number, f"{pairs} pairs", different(results) or "-", decided, flush=True)
    print(f"{wrong} of {times} call something different")


def losses(times: int, out: Path) -> None:
    for name, arguments in LOSSES.items():
        right = 0
        for number in range(1, times + 1):
            start_s = time.monotonic()
            by_metric = {change.metric.name: change for change in compare(arguments, out)}
            median = by_metric["response_p50_s"]
            right += median.word == "different" and median.value > 1
            print(name, number, f"{median.n} pairs", f"{median.value:.3f}", median.low, median.high,
                  median.word, f"{time.monotonic() - start_s:.0f} s", flush=True)  # fmt: skip
        print(f"{name}: found in {right} of {times}")


def launches_of(directory: Path) -> list[Launch]:
    run = run_store.load(directory)
    return [
        metrics_of(run, cell)
        for group in compare_groups(run)
        for pair in group.pairs
        for cell in pair
    ]


def drawn(launches: Sequence[Launch], seed: int) -> list[Change]:
    """A comparison of pairs drawn from these launches, until it is decided or the last look."""
    rng, pairs, results = random.Random(seed), list[Pair](), list[Change]()
    while len(pairs) < LOOKS[-1]:
        pairs.append((rng.choice(launches), rng.choice(launches)))
        if len(pairs) in LOOKS:
            results = changes(pairs, AT_LEAST)
            if all_decided(results, DECIDING_METRICS):
                break
    return results


def resampled(times: int, out: Path) -> None:
    """Each comparison draws from one run: launches of different runs differ more."""
    runs = sorted(path.parent for path in out.glob("*/run.json"))
    pools = [pool for run in runs if len(pool := launches_of(run)) >= 2 * LOOKS[0]]
    if not pools:
        raise SystemExit(f"no launches in {out}: make some by `same`")
    wrong, metrics = 0, Counter[str]()
    for number in range(times):
        names = different(drawn(pools[number % len(pools)], number))
        wrong += bool(names)
        metrics.update(names)
    source = f"{sum(map(len, pools))} launches of {len(pools)} runs"
    print(f"{wrong} of {times} call something different, from {source}")
    print(json.dumps(metrics))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["same", "resampled", "losses"])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--burner", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("comparisons"))
    options = parser.parse_args()
    out = (options.out / ("losses" if options.what == "losses" else "same")).absolute()
    out.mkdir(parents=True, exist_ok=True)
    if options.what == "same":
        same(options.times, out, burner=options.burner)
    elif options.what == "losses":
        losses(options.times, out)
    else:
        resampled(options.times, out)


if __name__ == "__main__":
    main()
