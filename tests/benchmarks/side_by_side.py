"""The effect of running cells in parallel: the same sweep, parallel and sequential in turn.

    python -m tests.benchmarks.side_by_side [sync,eventlet] [4,8,16] [--pairs 3] [OPTION...]

Each pair, in alternating order, gives the ratio parallel / sequential of each figure of each cell.
Printed are the duration of both kinds of sweep and, per figure, the median and the extremes of the
ratios over all pairs and cells, and the cell whose own median is furthest from 1. OPTIONs go to
both sweeps (`--sleep 0.5`).
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


def sweep(out: str, jobs: str, arguments: Sequence[str]) -> tuple[float, Cells]:
    """The duration, and the figures of each valid cell."""
    start_s = time.monotonic()
    argv = [sys.executable, "-m", "workerlab", "sweep", *arguments, "--jobs", jobs]
    done = subprocess.run(
        [*argv, "--out", out, "--format", "json"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    duration_s = time.monotonic() - start_s
    return duration_s, {
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
        furthest = max(by_cell, key=lambda cell: abs(median(by_cell[cell]) - 1))
        extremes = f"{min(all_ratios):8.4f}{max(all_ratios):8.4f}"
        print(f"{figure:16}{median(all_ratios):8.4f}{extremes}"
              f"  {furthest}: {median(by_cell[furthest]):.4f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", nargs="?", default="sync,eventlet")
    parser.add_argument("levels", nargs="?", default="4,8,16")
    parser.add_argument("--pairs", type=int, default=3)
    options, sweep_options = parser.parse_known_args()
    ratios: dict[str, dict[str, list[float]]] = {figure: defaultdict(list) for figure in FIGURES}
    durations_s = defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as directory:
        for number in range(options.pairs):
            cells: dict[str, Cells] = {}
            for jobs in JOBS[:: -1 if number % 2 else 1]:
                argv = [options.classes, options.levels, *sweep_options]
                duration_s, cells[jobs] = sweep(directory, jobs, argv)
                durations_s[jobs].append(duration_s)
            for cell in cells["1"].keys() & cells["auto"].keys():
                for figure, sequential in cells["1"][cell].items():
                    ratios[figure][cell].append(cells["auto"][cell][figure] / sequential)
    for jobs, values in durations_s.items():
        print(f"--jobs {jobs:5} {median(values):6.1f} s  ({', '.join(f'{s:.1f}' for s in values)})")
    show(ratios)


if __name__ == "__main__":
    main()
