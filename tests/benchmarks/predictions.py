"""Predicted and measured response times of real apps on real servers, for `docs/queueing.md`.

    python -m tests.benchmarks.predictions [--seconds 25] [--cases 0,1,2] [--json FILE]

The needs of each server are measured as in `advise`: by a closed load of 5 s on two workers with
one thread each, and by one with many connections if a worker serves many. If 3 % of the requests
take long, which would be three of them, the load takes 30 s on all slots. The server's capacity,
and the response times of a Poisson schedule at 60 and 85 % of it, are predicted from the needs
alone; then the same schedule is sent to the real server. Requires the packages of all worker
classes and a quiet machine; takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from msgspec.structs import replace

from tests.builders.open_load import APP
from workerlab import run_store
from workerlab.analysis.facts import Facts
from workerlab.analysis.needs import cpu_under_load, needs_of, with_cpu
from workerlab.analysis.simulation import Prediction, layout_of, predict, simulate
from workerlab.experiments import trial
from workerlab.experiments.advise.growth import CPU_UNDER_LOAD_S, filling_connections
from workerlab.experiments.load_trials import task_for
from workerlab.experiments.reading import read_trial
from workerlab.load.programs import MAX_ROW_ARRIVALS
from workerlab.model.plan import App, Cell, Plan, Rate, Server, Trial
from workerlab.model.result import Needs, RequestNeed
from workerlab.numbers.samples import quantile
from workerlab.server.preflight import cores
from workerlab.server.worker_classes import ASGI_CLASSES, class_named

IO = {"MEAN_S": "0.05"}
COMPUTES = {"MEAN_S": "0", "CPU_S": "0.02"}
MIXED = {"MEAN_S": "0.03", "CPU_S": "0.005"}
TAIL = {"MEAN_S": "0.05", "KIND": "tail"}
POOL = {"MEAN_S": "0.05", "POOL": "4"}
CASES = (
    ("waits 50 ms", IO, "sync", 4, 1),
    ("waits 50 ms", IO, "gthread", 1, 4),
    ("waits 50 ms", IO, "gthread", 2, 8),
    ("waits 50 ms", IO, "gevent", 2, 1),
    ("computes 20 ms", COMPUTES, "sync", 2, 1),
    ("computes 20 ms", COMPUTES, "gthread", 2, 4),
    ("waits 30 ms, computes 5 ms", MIXED, "gthread", 2, 4),
    ("waits 30 ms, computes 5 ms", MIXED, "uvicorn", 2, 1),
    ("waits 50 ms, 3 % 1 s", TAIL, "sync", 8, 1),
    ("waits 50 ms, 3 % 1 s", TAIL, "gthread", 2, 8),
    ("waits 50 ms, pool of 4", POOL, "gthread", 1, 8),
)
PARTS = ("wait_s", "cpu_s", "blocked_s", "nogil_s")
SHARES = (0.6, 0.85)
NEEDS_S, NS, DRAWS = 5.0, 1e9, 400
ENDS = (("low", 0.025), ("high", 0.975))
HEAD = (
    "| app | server | busy | requests/s | p95 predicted | range | measured | predicted / measured "
    "| inside | mean predicted | measured |"
)


class Run:
    """Measures one trial at a time, in a run directory of its own."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self._directory, self.seconds, self._count = directory, seconds, 0
        self._plan = Plan("sweep", (), 1, 5, 12, sys.executable, None, {}, (), duration_s=seconds)
        run_store.create(directory, self._plan, {})

    def facts(self, cell: Cell, rps: float | None = None) -> Facts:
        self._count += 1
        planned = Trial(cell, self._count)
        plan = replace(self._plan, cells=(cell,), arrivals="poisson")
        record = trial.run(task_for(plan, planned, self._directory, rps))
        facts = read_trial(planned, record, plan, self._directory).facts
        if not isinstance(facts, Facts):
            raise SystemExit(f"{planned.key}: {facts}, {record.fault}")
        return facts


def needs_for(run: Run, server: Server) -> tuple[Needs, float]:
    """The needs, and the load tool's CPU per request on the same cores."""
    if ("KIND", "tail") in server.app.env:
        slots = server.workers * server.threads
        cell = Cell(server, "fast", slots + 4, inside="needs", duration_s=30.0)
    else:
        small_server = Server(server.worker_class, 2, 1, 2048, 1000, app=server.app)
        cell = Cell(small_server, "fast", 4, inside="needs", duration_s=NEEDS_S)
    facts = run.facts(cell)
    needs = needs_of(facts)
    if not isinstance(needs, Needs):
        raise SystemExit(f"{server.key}: {needs}")
    concurrency = filling_connections(needs, cores() or 1)
    if concurrency is not None and class_named(server.worker_class).slots not in ("one", "threads"):
        full_load = replace(cell, inside="", concurrency=concurrency, duration_s=CPU_UNDER_LOAD_S)
        facts = run.facts(full_load)
        needs = with_cpu(needs, cpu_under_load(facts))
    if needs.load_s is not None:
        return needs, needs.load_s
    return needs, (facts.record.tool_cpu_s or 0.0) / facts.measurement.requests


def mean_s(requests: tuple[RequestNeed, ...], *names: str) -> float:
    sums = (getattr(need, name) for need in requests for name in names)
    return math.fsum(sums) / len(requests)


def pool_of(server: Server) -> int | None:
    pool = dict(server.app.env).get("POOL")
    return None if pool is None else int(pool)


def capacity_rps(server: Server, needs: Needs, tool_s: float) -> float:
    """The lowest of the rates that slots, workers and cores allow."""
    requests, slots = needs.requests, class_named(server.worker_class).slots_of(server)
    held_s = mean_s(requests, "wait_s", "cpu_s", "blocked_s", "nogil_s") + needs.gap_s
    cpu_s = mean_s(requests, "cpu_s", "nogil_s")
    alone_s = mean_s(requests, "cpu_s", "blocked_s")
    by_slots = math.inf if slots is None else slots / held_s
    if (pool := pool_of(server)) is not None:
        by_slots = min(by_slots, pool / mean_s(requests, "wait_s"))
    return min(by_slots, server.workers / alone_s, (cores() or 1) / (cpu_s + tool_s))


def compared(run: Run, server: Server, needs: Needs, rps: float, seed: int) -> dict[str, float]:
    duration_s = min(run.seconds, float(MAX_ROW_ARRIVALS // rps))  # so that each request is timed
    cell = Cell(server, "fast", 500, rate=Rate(rps=rps), schedule=seed, duration_s=duration_s)
    facts = run.facts(cell, rps)
    timings = facts.measurement.timings
    arrivals_s = [timing.start_s for timing in timings]
    responses_s = sorted(
        timing.end_s for timing in timings if timing.end_s is not None and not timing.cause
    )
    tool_cores = (facts.record.tool_cpu_s or 0.0) / (arrivals_s[-1] or 1.0)
    available = (cores() or 1) - tool_cores
    predicted: Prediction = predict(
        server, class_named(server.worker_class), needs, arrivals_s, cores=available,
        max_in_flight=pool_of(server), draws=7, seed=seed,
    )  # fmt: skip
    ends = {"low": predicted.low, "central": predicted.central, "high": predicted.high}
    return {
        **{f"p95_{name}_s": end.p95 or 0.0 for name, end in ends.items()},
        **{f"mean_{name}_s": end.mean or 0.0 for name, end in ends.items()},
        "p95_s": quantile(responses_s, 0.95),
        "mean_s": math.fsum(responses_s) / len(responses_s),
        "requests": len(responses_s),
        "failed": len(timings) - len(responses_s),
        **by_chance(facts, server, needs, arrivals_s, available),
    }


def by_chance(
    facts: Facts, server: Server, needs: Needs, arrivals_s: list[float], available: float
) -> dict[str, float]:
    """For an app with random service times, on a class that accepts no more connections than it
    serves: the p95 by the recursion with the measured time of each request in the app; and the 95 %
    range of p95s with times drawn from the app's distribution."""
    row = class_named(server.worker_class)
    if ("KIND", "tail") not in server.app.env or row.accepts_first:
        return {}
    cpu_s, layout = mean_s(needs.requests, "cpu_s"), layout_of(server, row, needs, available, None)
    spans_s = {
        span.request_id: ((span.end_ns or 0) - span.start_ns) / NS for span in facts.finished
    }
    ids = [timing.request_id for timing in facts.measurement.timings]

    def p95(waits_s: Iterable[float]) -> float:
        requests = [RequestNeed(wait_s, cpu_s) for wait_s in waits_s]
        return quantile(sorted(simulate(arrivals_s, requests, layout, Random(1))), 0.95)

    rng, short_s = Random(1), float(dict(server.app.env)["MEAN_S"])
    drawn = sorted(p95(1.0 if rng.random() < 0.03 else short_s for _ in ids) for _ in range(DRAWS))
    ends = {f"p95_draws_{name}_s": quantile(drawn, q) for name, q in ENDS}
    return {"p95_from_spans_s": p95(spans_s[request_id] for request_id in ids), **ends}


def row(app: str, server: Server, share: float, rps: float, figures: dict[str, float]) -> str:
    def ms(name: str) -> str:
        return f"{figures[f'{name}_s'] * 1e3:.0f} ms"

    label = f"{server.worker_class} {server.workers}"
    if server.worker_class == "gthread":
        label += f" x {server.threads}"
    inside = figures["p95_low_s"] <= figures["p95_s"] <= figures["p95_high_s"]
    cells = (
        *(app, label, f"{share:.0%}", f"{rps:.0f}", ms("p95_central")),
        f"{ms('p95_low')} to {ms('p95_high')}",
        ms("p95"),
        f"{figures['p95_central_s'] / figures['p95_s']:.2f}",
        *("yes" if inside else "no", ms("mean_central"), ms("mean")),
    )
    remark = ""
    if "p95_from_spans_s" in figures:
        remark = (
            f"\n  with the measured time in the app: {ms('p95_from_spans')}; 95 % of {DRAWS}"
            f" draws from the app's distribution: {ms('p95_draws_low')} to {ms('p95_draws_high')}"
        )
    return f"| {' | '.join(cells)} |{remark}"


def cases(run: Run, numbers: list[int], code: Path) -> Iterator[tuple[str, dict[str, object]]]:
    for number in numbers:
        title, env, name, workers, threads = CASES[number]
        target = "known:asgi" if name in ASGI_CLASSES else "known:wsgi"
        app = App(target=target, chdir=str(code), env=tuple(env.items()))
        server = Server(name, workers, threads, 2048, 1000, app=app)
        needs, tool_s = needs_for(run, server)
        for share in SHARES:
            rps = share * capacity_rps(server, needs, tool_s)
            figures = compared(run, server, needs, rps, 10 * number + round(share * 10))
            result = {
                "case": CASES[number], "share": share, "rps": rps, "load": os.getloadavg()[0],
                "needs": {name: mean_s(needs.requests, name) for name in PARTS},
                "gap_s": needs.gap_s, "beside_s": needs.beside_s, **figures,
            }  # fmt: skip
            yield row(title, server, share, rps, figures), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--json", type=Path, help="keep the figures")
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))))
    options = parser.parse_args()
    results = []
    print(HEAD, "\n|", "---|" * HEAD.count(" |"), sep="", flush=True)
    with tempfile.TemporaryDirectory(prefix="predictions-") as directory:
        code = Path(directory) / "app"
        code.mkdir()
        (code / "known.py").write_text(APP)
        run = Run(Path(directory) / "run", options.seconds)
        for line, result in cases(run, list(map(int, options.cases.split(","))), code):
            print(line, flush=True)
            results.append(result)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
