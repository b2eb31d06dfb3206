"""The recursion against real sync servers, to validate the method of `docs/queueing.md`.

    python -m tests.benchmarks.recursion_on_sync [--seconds 45] [--json FILE] [--cells 0,1,2]

An app sleeps 50 ms, constant or exponentially distributed, on sync with 1 and 4 workers, with
Poisson arrivals at 50, 80 and 90 % of their capacity. The input of the recursion is the due time of
each request, and how long it held its worker: its span, plus the mean gap to the next one over all
gaps in which a request waited. The rest of a response time is measured with lone requests before
the load. No parameter is fitted.

For comparison: the theory of the steady state, and the range of the mean and the p95 of 95 % of
such short loads, from 1000 other schedules by the recursion. 12 loads; the servers use hardly any
CPU, but the machine should be quiet.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import accumulate, product
from pathlib import Path
from random import Random
from statistics import fmean, median

from tests.builders.open_load import Request, Served, serve
from tests.builders.recursion import allen_cunneen, waits
from workerlab.model.plan import Server
from workerlab.numbers.samples import quantile

MEAN_S = 0.05
HOLD_S = MEAN_S + 0.0015  # an estimate, for the rates
CELLS = tuple(product(("constant", "exponential"), (1, 4), (0.5, 0.8, 0.9)))
SCHEDULES = 1000
HEAD = (
    "| sleep | workers | busy | requests | mean ms | recursion | ratio "
    "| p95 ms | recursion | ratio | waiting ms | recursion | difference "
    "| theory: mean ms | 95 % of loads | theory: p95 | 95 % |"
)


def gaps_s(requests: tuple[Request, ...]) -> list[float]:
    """The gaps between two requests of a worker if the second one waited for it."""
    last_requests: dict[int, Request] = {}
    gaps = []
    for request in sorted(requests, key=lambda request: request.start_s):
        previous = last_requests.get(request.pid)
        if previous and request.arrival_s + request.connect_s <= previous.end_s:
            gaps.append(request.start_s - previous.end_s)
        last_requests[request.pid] = request
    return gaps


def compared(served: Served, workers: int) -> dict[str, float]:
    """Measured and by the recursion, in seconds."""
    requests = served.requests
    gaps = gaps_s(requests)
    gap = fmean(gaps)
    overhead_s = median(
        response - span for response, span in zip(served.lone_s, served.lone_spans_s, strict=True)
    )
    spans_s = [request.end_s - request.start_s for request in requests]
    held_s = [span + gap for span in spans_s]
    waited_s = waits((request.arrival_s for request in requests), held_s, workers)
    # The gap, which is part of a lone request's overhead, is already in the hold
    rest_s = overhead_s - gap
    predicted_s = [wait + hold + rest_s for wait, hold in zip(waited_s, held_s, strict=True)]
    responses_s = [request.response_s for request in requests]
    return {
        "requests": len(requests),
        "failed": served.failed,
        "gap_s": gap,
        "gap_median_s": median(gaps),
        "overhead_s": overhead_s,
        "hold_s": fmean(held_s),
        "mean_s": fmean(responses_s),
        "mean_by_recursion_s": fmean(predicted_s),
        "p95_s": quantile(sorted(responses_s), 0.95),
        "p95_by_recursion_s": quantile(sorted(predicted_s), 0.95),
        "waiting_s": fmean(responses_s) - fmean(spans_s),
        "waiting_by_recursion_s": fmean(predicted_s) - fmean(spans_s),
    }


def theory(
    kind: str, workers: int, rate_rps: float, seconds: float, measured: dict[str, float]
) -> dict[str, float]:
    """The steady state, and the ranges for loads of this length; service times as configured."""
    rng, hold_s = Random(f"{kind} {workers} {rate_rps}"), measured["hold_s"]
    extra_s, rest_s = hold_s - MEAN_S, measured["overhead_s"] - measured["gap_s"]
    constant, means, p95s = kind == "constant", [], []
    square = hold_s**2 + (0 if constant else MEAN_S**2)
    for _ in range(SCHEDULES):
        count = round(rng.gauss(rate_rps * seconds, (rate_rps * seconds) ** 0.5))
        arrivals_s = accumulate(rng.expovariate(rate_rps) for _ in range(count))
        sleeps_s = (MEAN_S if constant else rng.expovariate(1 / MEAN_S) for _ in range(count))
        held_s = [extra_s + sleep_s for sleep_s in sleeps_s]
        waited_s = waits(arrivals_s, held_s, workers)
        responses_s = sorted(map(sum, zip(waited_s, held_s, strict=True)))
        means.append(fmean(responses_s) + rest_s)
        p95s.append(quantile(responses_s, 0.95) + rest_s)
    means.sort()
    p95s.sort()
    waiting_s = allen_cunneen(rate_rps, hold_s, square, workers)
    return {
        "mean_in_theory_s": waiting_s + hold_s + rest_s,
        "mean_low_s": quantile(means, 0.025),
        "mean_high_s": quantile(means, 0.975),
        "p95_middle_s": median(p95s),
        "p95_low_s": quantile(p95s, 0.025),
        "p95_high_s": quantile(p95s, 0.975),
    }


def row(kind: str, workers: int, share: float, figures: dict[str, float]) -> str:
    def ms(name: str) -> str:
        return f"{figures[name] * 1e3:.1f}"

    def both(name: str) -> tuple[str, str, str]:
        predicted = f"{name}_by_recursion_s"
        ratio = figures[predicted] / figures[f"{name}_s"]
        return ms(f"{name}_s"), ms(predicted), f"{ratio:.3f}"

    difference = figures["waiting_by_recursion_s"] - figures["waiting_s"]
    cells = (
        *(kind, str(workers), f"{share:.0%}", f"{figures['requests']:.0f}"),
        *both("mean"),
        *both("p95"),
        *both("waiting")[:2],
        f"{difference * 1e3:+.2f} ms, {difference / figures['waiting_s']:+.1%}",
        ms("mean_in_theory_s"),
        f"{ms('mean_low_s')} to {ms('mean_high_s')}",
        *(ms("p95_middle_s"), f"{ms('p95_low_s')} to {ms('p95_high_s')}"),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--json", type=Path, help="keep the figures")
    parser.add_argument("--cells", default=",".join(map(str, range(len(CELLS)))))
    options = parser.parse_args()
    results = []
    print(HEAD, "\n|", "---|" * HEAD.count(" |"), sep="", flush=True)
    for number in map(int, options.cells.split(",")):
        kind, workers, share = CELLS[number]
        rate_rps = share * workers / HOLD_S
        served = serve(
            Server("sync", workers, 1, 2048, 1000), rate_rps, options.seconds, 100 + number,
            KIND=kind, MEAN_S=MEAN_S,
        )  # fmt: skip
        figures = compared(served, workers)
        figures |= theory(kind, workers, rate_rps, options.seconds, figures)
        print(row(kind, workers, share, figures), flush=True)
        results.append({"cell": CELLS[number], "load": os.getloadavg()[0], **figures})
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
