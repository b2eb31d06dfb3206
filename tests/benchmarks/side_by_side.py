"""What it changes that cells run side by side: the same sweep both ways, in turn.

    python -m tests.benchmarks.side_by_side [sync,eventlet] [4,8,16] [--pairs 3] [OPTION...]

Of each cell and figure the ratio side by side / one after the other is taken within each pair, the
first of which alternates. Printed are the seconds that each way takes, and by figure the median of
the ratios over all pairs and cells, with their extremes, and the cell whose own median is furthest
from 1. OPTIONs go to both sweeps (`--sleep 0.5`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
JOBS = ("1", "auto")
FIGURES = ("throughput_rps", "bound_rps", "p50", "p95", "mean", "service")
Cells = Mapping[str, Mapping[str, float]]


def sweep(place: str, jobs: str, words: Sequence[str]) -> tuple[float, Cells]:
    """Seconds, and the figures of each valid cell."""
    began_s = time.monotonic()
    argv = [sys.executable, "-m", "workerlab", "sweep", *words, "--jobs", jobs]
    done = subprocess.run(
        [*argv, "--out", place, "--format", "json"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    took_s = time.monotonic() - began_s
    return took_s, {
        f"{cell['worker_class']} {cell['concurrency']}": figures(cell)
        for cell in json.loads(done.stdout)["cells"]
        if cell["verdict"] != "invalid"
    }


def figures(cell: Mapping[str, object]) -> Mapping[str, float]:
    response, service = cell["response_ms"], cell["service_ms"]
    assert isinstance(response, Mapping)
    assert isinstance(service, Mapping)
    values = {**response, "service": service["p50"]}
    values |= {name: cell[name] for name in ("throughput_rps", "bound_rps")}
    return {name: values[name] for name in FIGURES if values.get(name)}


def show(ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    print(f"{'':16}{'median':>8}{'least':>8}{'most':>8}  furthest cell")
    for figure, by_cell in ratios.items():
        all_ratios = list(chain.from_iterable(by_cell.values()))
        far = max(by_cell, key=lambda cell: abs(median(by_cell[cell]) - 1))
        worst = f"{far}: {median(by_cell[far]):.4f}"
        extremes = f"{min(all_ratios):8.4f}{max(all_ratios):8.4f}"
        print(f"{figure:16}{median(all_ratios):8.4f}{extremes}  {worst}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("classes", nargs="?", default="sync,eventlet")
    arguments.add_argument("levels", nargs="?", default="4,8,16")
    arguments.add_argument("--pairs", type=int, default=3)
    options, more = arguments.parse_known_args()
    ratios: dict[str, dict[str, list[float]]] = {figure: defaultdict(list) for figure in FIGURES}
    seconds = defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.pairs):
            cells: dict[str, Cells] = {}
            for jobs in JOBS[:: -1 if number % 2 else 1]:
                words = [options.classes, options.levels, *more]
                took_s, cells[jobs] = sweep(place, jobs, words)
                seconds[jobs].append(took_s)
            for cell in cells["1"].keys() & cells["auto"].keys():
                for figure, before in cells["1"][cell].items():
                    ratios[figure][cell].append(cells["auto"][cell][figure] / before)
    for jobs, took in seconds.items():
        print(f"--jobs {jobs:5} {median(took):6.1f} s  ({', '.join(f'{s:.1f}' for s in took)})")
    show(ratios)


if __name__ == "__main__":
    main()
