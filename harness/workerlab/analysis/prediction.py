"""Predicts how long the requests of a schedule would take on a server that was not measured.

`draws` schedules of requests are simulated, each from a bootstrap sample: the measured requests,
drawn with replacement. The result is the median and the range of each figure over the draws. The
range is wide if the sample has too few long requests to show how frequent they are.

For a class that hoards, the range also covers how unevenly its workers accept. A connection wakes
all of them, and the first one on a core gets it. Of 4 gthread workers one got 1.0 to 1.9 times its
equal share and another 0.03 to 0.65 times; of 3, once 2.1 and 0.3. The favoured worker changes
within a load, so equal totals may hide unequal shares. Loops, which accept only when they have
nothing else to do, stayed between 0.6 and 1.4. So the odds of the draws go from equal to
`UNFAIR_ODDS` in equal steps; the middle odds predicted the p95 of gthread with 2 and 4 workers
best. Rejected, as the results stay within that range: odds that change every second, and giving the
next connection to the worker that has just accepted one.

Before a request waits, a loop does Gunicorn's work of accepting and parsing it (`FIRST_S`); apps
compute after the wait. That work cannot move to another loop that idles. For loops that hoard, the
draws vary the first part from twice `FIRST_S` to nothing.

`max_closed_rps` needs no measured requests: it is the bound that settings and the times of a
request put on a closed loop.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict, replace

from workerlab.analysis.simulation import Layout, simulate
from workerlab.model import Needs, RequestNeed, Server, Summary, WorkerClass
from workerlab.numbers.samples import quantile, summarise

FIRST_S = 0.0006  # CPU of gevent and uvicorn before the app is called
UNFAIR_ODDS = 0.25  # odds of a worker relative to the one before it, at worst
UNFAIR_LOOP_ODDS = 0.6  # likewise, of a loop


def max_closed_rps(
    workers: int, slots: int | None, cores: float, wait_s: float, cpu_s: float
) -> float | None:
    """Upper bound on throughput in requests per second (Denning & Buzen 1978), from the slots and
    from the cores that workers can use, one each. Multiplied by wait_s + cpu_s it is the knee of a
    closed loop. None: no bound."""
    bounds_rps = []
    if slots is not None and wait_s + cpu_s > 0:
        bounds_rps.append(slots / (wait_s + cpu_s))
    if cpu_s > 0:
        bounds_rps.append(min(cores, workers) / cpu_s)
    return min(bounds_rps, default=None)


class Predicted(Struct, frozen=True):
    """Response times of a load: the median, minimum and maximum of each figure over the draws."""

    central: Summary
    low: Summary
    high: Summary


def predict(
    server: Server,
    worker_class: WorkerClass,
    needs: Needs,
    arrivals_s: Sequence[float],
    *,
    cores: float = math.inf,
    max_in_flight: int | None = None,
    draws: int = 5,
    seed: int = 1,
) -> Predicted:
    """`arrivals_s`: in ascending order. `cores`: those available to the workers, without the load
    tool's share. The same seed gives the same prediction. Raises ValueError without measured
    requests, arrivals or draws."""
    if not (needs.requests and arrivals_s and draws > 0):
        raise ValueError("a prediction needs requests that were measured, arrivals and a draw")
    layout = layout_of(server, worker_class, needs, cores, max_in_flight)
    summaries = []
    sample = _as_served(needs, worker_class)
    for number in range(draws):
        rng = Random(f"{seed}-{number}")
        resampled = rng.choices(sample, k=len(sample))
        requests = rng.choices(resampled, k=len(arrivals_s))
        unevenness = number / (draws - 1) if draws > 1 else 0.5
        uneven = with_unevenness(layout, worker_class, unevenness)
        summaries.append(_summary(sorted(simulate(arrivals_s, requests, uneven, rng))))
    return Predicted(*(_over_draws(summaries, statistic) for statistic in (median, min, max)))


def layout_of(
    server: Server, worker_class: WorkerClass, needs: Needs, cores: float, max_in_flight: int | None
) -> Layout:
    in_loop = _blocks_loop(worker_class)
    return Layout(
        workers=server.workers * server.instances,
        slots=None if in_loop else worker_class.slots_per_worker(server),
        hoards=worker_class.accepts_first,
        max_accepted=server.worker_connections if worker_class.slots == "threads" else None,
        loop=worker_class.loop or in_loop,
        cores=cores,
        gap_s=0.0 if in_loop else needs.gap_s,
        outside_s=needs.beside_s,
        max_in_flight=max_in_flight,
    )


def with_unevenness(layout: Layout, worker_class: WorkerClass, unevenness: float) -> Layout:
    """The layout if workers accept evenly (0), as unevenly as at worst (1), or in between."""
    unfair = UNFAIR_LOOP_ODDS if layout.loop else UNFAIR_ODDS
    if not worker_class.accepts_first:
        return replace(layout, cpu_before_wait_s=FIRST_S)
    fairness = 1 - (1 - unfair) * unevenness
    return replace(layout, fairness=fairness, cpu_before_wait_s=2 * FIRST_S * (1 - unevenness))


def _blocks_loop(worker_class: WorkerClass) -> bool:
    """Whether the loop itself runs the app, so that its waits block the loop: a class with one slot
    per worker that accepts more than that (tornado)."""
    return worker_class.accepts_first and worker_class.slots == "one"


def _as_served(needs: Needs, worker_class: WorkerClass) -> Sequence[RequestNeed]:
    if not _blocks_loop(worker_class):
        return needs.requests
    return [
        replace(need, wait_s=0.0, blocked_s=need.blocked_s + need.wait_s + needs.gap_s)
        for need in needs.requests
    ]


def _summary(ordered_s: Sequence[float]) -> Summary:
    return replace(Summary(*summarise(ordered_s)), p90=quantile(ordered_s, 0.90))


def _over_draws(draws: Sequence[Summary], statistic: Callable[[list[float]], float]) -> Summary:
    figures = {name: [asdict(draw)[name] for draw in draws] for name in Summary.__struct_fields__}
    return Summary(
        **{name: None if None in values else statistic(values) for name, values in figures.items()}
    )
