"""The candidates of `advise`: worker classes, workers and threads within the limits; and a forecast
for each, simulated from the needs of requests.

Workers, for n cores: 1, n, n + 1, 2n, and the rule of thumb 2n + 1, unless a limit excludes it. A
class that serves one request per worker at a time also gets 4n, 8n, ...: its workers replace the
threads of other classes, but each takes the memory of a process. The worker counts end at 16
(Gunicorn's documentation recommends 4 to 12), or at 64 if the app is not thread-safe and has no
alternative. With --max-workers every class gets up to that many. Thread counts are powers of two,
from 2 to 64. A limit on simultaneous requests bounds the slots; for classes with unlimited slots,
only the app can enforce it.

A forecast has response times at the target's rate, and the highest rate at which the target is met.
It is computed once the needs are known, and stored in the plan, so reports need not repeat it. The
highest rate takes a bisection, so it is computed only for candidates that may be among the best: in
descending order of the bound that cores and slots set, down to MIN_BOUND_SHARE of the best rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.simulation import Prediction, predict
from workerlab.model.evidence import Summary
from workerlab.model.plan import App, Arrivals, Server
from workerlab.model.result import Needs, RequestNeed
from workerlab.numbers.schedule import schedule
from workerlab.server.worker_classes import class_named, configured_slots
from workerlab.slo import Term

THREAD_COUNTS = (2, 4, 8, 16, 32, 64)
MAX_WORKERS = 16
MAX_WORKERS_NOT_THREAD_SAFE = 64
DEFAULT_CONNECTIONS = 1000  # Gunicorn's default, per worker
DEFAULT_BACKLOG = 2048  # Gunicorn's default

# The forecast
NS_PER_S = 1e9
SIMULATED_REQUESTS = 1500  # enough for a p95 within a few percent
MIN_SIMULATED_REQUESTS = 100  # even if they take longer than MAX_SIMULATED_S to arrive
MAX_SIMULATED_S = 60.0
BISECTION_STEPS = 6  # the true rate is at most about 10 % higher
DRAWS = 3  # simulations per forecast, each with a new sample of requests
FORECAST_SEED = 0  # no launch has these arrivals: their seeds start at 1
MIN_CORES = 0.1
MIN_BOUND_SHARE = 0.8  # of the best rate: candidates with a lower bound get no bisection
MAX_RATE_RPS = 20_000.0  # more than a load tool can send


class Limits(Struct, frozen=True):
    """The limits of the target machine and of the app; None if there is none."""

    cores: float
    memory_bytes: int | None = None
    max_workers: int | None = None
    max_in_flight: int | None = None  # requests at once, all workers together
    thread_safe: bool = True
    confined: int | None = None  # cores that launches are confined to; None: not confined

    @property
    def flags(self) -> tuple[str, ...]:
        """The given options that exclude candidates."""
        flags = {
            "--max-in-flight": self.max_in_flight is not None,
            "--max-workers": self.max_workers is not None,
            "--not-thread-safe": not self.thread_safe,
        }
        return tuple(name for name, is_given in flags.items() if is_given)

    @property
    def rule_of_thumb(self) -> int:
        """The number of workers by the rule of thumb: twice the cores plus one."""
        return 2 * max(1, math.floor(self.cores)) + 1


def worker_counts(limits: Limits, *, one_request_per_worker: bool) -> list[int]:
    """The worker counts, ascending. `one_request_per_worker`: each serves one request at a time."""
    n = max(1, math.floor(limits.cores))
    counts = {1, n, n + 1, 2 * n, limits.rule_of_thumb}
    default = MAX_WORKERS if limits.thread_safe else MAX_WORKERS_NOT_THREAD_SAFE
    max_workers = limits.max_workers or max(default, limits.rule_of_thumb)
    if one_request_per_worker and limits.max_in_flight:
        max_workers = min(max_workers, limits.max_in_flight)
    workers = 4 * n
    while (one_request_per_worker or limits.max_workers) and workers <= max_workers:
        counts.add(workers)
        workers *= 2
    counts.add(limits.max_workers or 1)
    return sorted({min(count, max_workers) for count in counts})


def servers_of(kind: Server, limits: Limits) -> Iterator[Server]:
    """The candidates of one worker class within the limits, possibly none; app, interpreter and
    Gunicorn version are those of `kind`."""
    row, pool = class_named(kind.worker_class), limits.max_in_flight
    slots = row.slots
    if not limits.thread_safe and slots != "one":
        return
    base = replace(kind, workers=1, threads=1, preload=False, cores=limits.confined)
    counts = [1]
    if "workers" not in row.ignores:
        counts = worker_counts(limits, one_request_per_worker=slots == "one")
    for workers in counts:
        if slots == "threads":
            for threads in THREAD_COUNTS:
                if not pool or workers * threads <= pool:
                    yield replace(base, workers=workers, threads=threads)
        elif slots == "worker_connections":
            connections = min(kind.worker_connections, pool // workers if pool else math.inf)
            if connections:
                yield replace(base, workers=workers, worker_connections=int(connections))
        else:
            yield replace(base, workers=workers)


def kind_of(
    name: str, app: App, python: str = "", gunicorn: str = "", settings: Mapping[str, object] = {}
) -> Server:
    """A server of a worker class with an app, on which candidates are based. `python`, `gunicorn`:
    only if multiple are compared; `settings`: those of the app's own Gunicorn file."""
    backlog, connections = settings.get("backlog"), settings.get("worker_connections")
    return Server(
        worker_class=name,
        workers=1,
        threads=1,
        backlog=backlog if isinstance(backlog, int) else DEFAULT_BACKLOG,
        worker_connections=connections if isinstance(connections, int) else DEFAULT_CONNECTIONS,
        app=app,
        python=python,
        gunicorn=gunicorn,
    )


def candidates(kinds: Iterable[Server], limits: Limits) -> tuple[Server, ...]:
    return tuple(server for kind in kinds for server in servers_of(kind, limits))


# --- the forecast ---------------------------------------------------------------------------------


class Expected(Struct, frozen=True):
    """The forecast for a candidate. `key`: of its server; `bound_rps`: the highest rate that cores
    and slots allow; `central`, `low`, `high`: response times at the target's rate; `highest_rps`:
    the highest rate at which the target is expected to be met, 0 if none, None if not computed;
    `memory_bytes`: None if not measured."""

    key: str
    bound_rps: float
    central: Summary
    low: Summary
    high: Summary
    highest_rps: float | None = None
    memory_bytes: int | None = None

    @property
    def most_rps(self) -> float:
        """The highest rate, or its upper bound if it was not computed."""
        return self.bound_rps if self.highest_rps is None else self.highest_rps


class ForecastInputs(Struct, frozen=True):
    """The inputs common to all forecasts: the target, and the limits of the machine."""

    terms: Sequence[Term]
    rate_rps: float
    arrivals: Arrivals
    cores: float
    max_in_flight: int | None = None
    tool_s: float = 0.0  # CPU of the load tool per request, on the same cores
    memory_bytes: int | None = None  # candidates that take more get no bisection

    def load_s(self, needs: Needs) -> float:
        """CPU per request that the load takes on the same cores."""
        return self.tool_s if needs.load_s is None else needs.load_s


def limited_times(response: Summary, terms: Iterable[Term]) -> Iterator[tuple[Term, float]]:
    """Each term on a response time whose value is known, with the value."""
    for term in terms:
        if term.kind == "time" and (value_s := getattr(response, term.metric)) is not None:
            yield term, value_s


def _predicted_at(
    server: Server, needs: Needs, inputs: ForecastInputs, rps: float, draws: int = 1
) -> Prediction:
    """The prediction at a rate, with the cores that the load leaves to the server."""
    duration_s = max(min(MAX_SIMULATED_S, SIMULATED_REQUESTS / rps), MIN_SIMULATED_REQUESTS / rps)
    due = schedule(inputs.arrivals, rps, duration_s, FORECAST_SEED)
    return predict(
        server,
        class_named(server.worker_class),
        needs,
        [ns / NS_PER_S for ns in due],
        cores=max(MIN_CORES, inputs.cores - rps * inputs.load_s(needs)),
        max_in_flight=inputs.max_in_flight,
        draws=draws,
        seed=FORECAST_SEED,
    )


def bound_rps(server: Server, needs: Needs, inputs: ForecastInputs) -> float:
    """The upper bound of the rate: all slots held, every worker computing or blocked, all cores
    busy (asymptotic bounds, Denning & Buzen 1978); at most MAX_RATE_RPS."""
    mean = mean_need(needs)
    hold_s = time_in_app_s(mean) + mean.nogil_s + needs.gap_s
    cpu_s = mean.cpu_s + mean.nogil_s + inputs.load_s(needs)
    capacities = (
        (configured_slots(server), hold_s),
        (server.workers, mean.cpu_s + mean.blocked_s),
        (inputs.cores, cpu_s),
    )
    bounds = (count / used_s for count, used_s in capacities if count is not None and used_s > 0)
    return min(MAX_RATE_RPS, *bounds)


def mean_need(needs: Needs) -> RequestNeed:
    """The mean need of all requests, over all routes."""
    count = max(1, len(needs.requests))

    def mean_s(name: str) -> float:
        return math.fsum(getattr(need, name) for need in needs.requests) / count

    return RequestNeed(mean_s("wait_s"), mean_s("cpu_s"), mean_s("blocked_s"), mean_s("nogil_s"))


def time_in_app_s(mean: RequestNeed) -> float:
    """The time that a request is in the app if it does not wait for other requests."""
    return mean.wait_s + mean.cpu_s + mean.blocked_s


def _highest_rps(server: Server, needs: Needs, inputs: ForecastInputs) -> float:
    """The highest rate at which the target's response-time terms are expected to be met, by
    bisection between 1/50 of the bound and the bound; 0 if they are missed even at 1/50. A server
    that meets them at a rate also serves that rate, so other terms are skipped."""
    high_rps = bound_rps(server, needs, inputs)
    low_rps = high_rps / 50

    def passes(rps: float) -> bool:
        central = _predicted_at(server, needs, inputs, rps).central
        times = limited_times(central, inputs.terms)
        return all(term.holds(value_s) for term, value_s in times)

    if not passes(low_rps):
        return 0.0
    for _ in range(BISECTION_STEPS):
        is_wide = high_rps / low_rps > 4
        rps = math.sqrt(low_rps * high_rps) if is_wide else (low_rps + high_rps) / 2
        low_rps, high_rps = (rps, high_rps) if passes(rps) else (low_rps, rps)
    return low_rps


def forecast(
    servers: Sequence[Server], needs: Mapping[str, Needs], inputs: ForecastInputs
) -> tuple[Expected, ...]:
    """The forecasts of the candidates, in the same order. `needs`: by variant."""
    forecasts = {}
    for server in servers:
        class_needs = needs[server.variant]
        predicted = _predicted_at(server, class_needs, inputs, inputs.rate_rps, DRAWS)
        forecasts[server.key] = Expected(
            key=server.key,
            bound_rps=bound_rps(server, class_needs, inputs),
            central=predicted.central,
            low=predicted.low,
            high=predicted.high,
            memory_bytes=class_needs.memory.total(server.workers) if class_needs.memory else None,
        )
    best_rps, limit_bytes = 0.0, inputs.memory_bytes or math.inf
    for server in sorted(servers, key=lambda server: -forecasts[server.key].bound_rps):
        expected = forecasts[server.key]
        if (expected.memory_bytes or 0) > limit_bytes:
            continue
        if expected.bound_rps < MIN_BOUND_SHARE * best_rps:
            break
        highest_rps = _highest_rps(server, needs[server.variant], inputs)
        forecasts[server.key] = replace(expected, highest_rps=highest_rps)
        best_rps = max(best_rps, highest_rps)
    return tuple(forecasts.values())
