"""How long the requests of a schedule would take on a server that was not measured.

So many schedules of requests as `draws` are simulated, each drawn from another sample that could as
well have been measured: the one that was, drawn from with replacement (bootstrap). What comes out
is the median of each figure over the draws, and a range, which is wide where a few requests that
take long were too few to say how many there are.

Of a class that hoards, the range is also one of how unevenly its workers accept. A connection wakes
all of them, and who is on a core first gets it. Of 4 gthread workers one got 1.0 to 1.9 times its
equal share and another 0.03 to 0.65 of it, of 3 once 2.1 and 0.3; whom it favours changes within
a load, so that shares which are equal in the end may have been far from it all the time. Loops,
which accept only when they have nothing else to do, stayed between 0.6 and 1.4. So the draws go
from equal odds to `UNFAIR`, in equal steps: the odds in the middle gave the p95 of gthread with 2
and 4 workers best. What was tried and is not in here: odds that change hands every second, and that
a worker which has just accepted keeps the next connection, too; either is within that range.

Before a request waits, a loop computes what Gunicorn does to accept and parse it, `FIRST_S`; apps
compute with what they have waited for. That cannot choose: it has to be computed where the request
was accepted, even if that loop is busy and another is not. Of loops that hoard the range goes from
twice that to nothing.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict, replace

from workerlab.analysis.prediction.simulation import Layout, simulate
from workerlab.model import Needs, RequestNeed, Server, Summary, WorkerClass
from workerlab.numbers.samples import quantile, summarise

FIRST_S = 0.0006  # that gevent and uvicorn compute before the app is called
UNFAIR = 0.25  # the odds of a worker beside the one before it, at worst
UNFAIR_LOOP = 0.6


class Predicted(Struct, frozen=True):
    """Response times of a load: of each figure the median over the draws, the least, the most."""

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
    """`arrivals_s`: moments in ascending order. `cores`: that the workers have, the load tool's
    share taken off. The same seed gives the same. ValueError where nothing was measured."""
    if not (needs.requests and arrivals_s and draws > 0):
        raise ValueError("a prediction needs requests that were measured, arrivals and a draw")
    layout = layout_of(server, worker_class, needs, cores, max_in_flight)
    found = []
    sample = _as_served(needs, worker_class)
    for number in range(draws):
        rng = Random(f"{seed}-{number}")
        other = rng.choices(sample, k=len(sample))
        requests = rng.choices(other, k=len(arrivals_s))
        worse = number / (draws - 1) if draws > 1 else 0.5
        one = dealt(layout, worker_class, worse)
        found.append(_summary(sorted(simulate(arrivals_s, requests, one, rng))))
    return Predicted(*(_each(found, pick) for pick in (median, min, max)))


def layout_of(
    server: Server, row: WorkerClass, needs: Needs, cores: float, max_in_flight: int | None
) -> Layout:
    in_loop = _in_loop(row)
    return Layout(
        workers=server.workers * server.instances,
        slots=None if in_loop else row.slots_per_worker(server),
        hoards=row.accepts_first,
        accepts=server.worker_connections if row.slots == "threads" else None,
        loop=row.loop or in_loop,
        cores=cores,
        gap_s=0.0 if in_loop else needs.gap_s,
        beside_s=needs.beside_s,
        max_in_flight=max_in_flight,
    )


def dealt(layout: Layout, row: WorkerClass, worse: float) -> Layout:
    """As well as chance may have it (`worse` 0), or as badly (1)."""
    unfair = UNFAIR_LOOP if layout.loop else UNFAIR
    if not row.accepts_first:
        return replace(layout, first_s=FIRST_S)
    fairness = 1 - (1 - unfair) * worse
    return replace(layout, fairness=fairness, first_s=2 * FIRST_S * (1 - worse))


def _in_loop(row: WorkerClass) -> bool:
    """One slot per worker, and yet more accepted than that: the loop itself runs the app
    (tornado), and whatever that waits for blocks the loop."""
    return row.accepts_first and row.slots == "one"


def _as_served(needs: Needs, row: WorkerClass) -> Sequence[RequestNeed]:
    if not _in_loop(row):
        return needs.requests
    return [
        replace(one, wait_s=0.0, blocked_s=one.blocked_s + one.wait_s + needs.gap_s)
        for one in needs.requests
    ]


def _summary(ordered_s: Sequence[float]) -> Summary:
    return replace(Summary(*summarise(ordered_s)), p90=quantile(ordered_s, 0.90))


def _each(found: Sequence[Summary], pick: Callable[[list[float]], float]) -> Summary:
    columns = {name: [asdict(one)[name] for one in found] for name in Summary.__struct_fields__}
    return Summary(
        **{name: None if None in values else pick(values) for name, values in columns.items()}
    )
