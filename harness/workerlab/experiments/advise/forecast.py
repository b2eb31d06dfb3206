"""The forecast for each candidate, simulated from the needs of requests: response times at the
target's rate, and the highest rate at which the target holds. Computed once the needs are known and
stored in the plan, so that a report does not repeat it.

The highest rate takes a bisection, so it is only computed for candidates that may be among the
best: in descending order of the bound that cores and slots set, down to MIN_BOUND_SHARE of the best
rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.simulation import Predicted, predict
from workerlab.model import Arrivals, Needs, RequestNeed, Server, Summary
from workerlab.numbers.schedule import schedule
from workerlab.server.worker_classes import class_named
from workerlab.slo import Term

NS = 1e9
REQUESTS = 1500  # simulated: gives a p95 within a few percent
MIN_REQUESTS = 100  # simulated, even if they take longer than MAX_LOAD_S to arrive
MAX_LOAD_S = 60.0
BISECTION_STEPS = 6  # the true rate is at most 4 to 10 % higher
DRAWS = 3
MIN_CORES = 0.1
MIN_BOUND_SHARE = 0.8  # of the best rate: candidates with a lower bound get no bisection
MAX_RATE_RPS = 20_000.0  # more than a load tool can send


class Expected(Struct, frozen=True):
    """The forecast for a candidate. `key`: of its server; `bound_rps`: the most that cores and
    slots allow; `central`, `low`, `high`: response times at the target's rate; `highest_rps`: the
    highest rate at which the target is expected to hold, 0 if none, None if not computed;
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


class Question(Struct, frozen=True):
    """The target, and what the machine allows: the same for all candidates."""

    terms: Sequence[Term]
    rate_rps: float
    arrivals: Arrivals
    seed: int
    cores: float
    max_in_flight: int | None = None
    tool_s: float = 0.0  # CPU of the load tool per request, on the same cores
    memory_bytes: int | None = None  # candidates that take more get no bisection

    def load_s(self, needs: Needs) -> float:
        """CPU per request that the load takes on the same cores."""
        return self.tool_s if needs.load_s is None else needs.load_s

    def cores_at(self, rps: float, needs: Needs) -> float:
        """The cores that the load leaves to the server at this rate; at least MIN_CORES."""
        return max(MIN_CORES, self.cores - rps * self.load_s(needs))


def times_hold(response: Summary, terms: Iterable[Term]) -> bool:
    """Whether every term on a response time holds. Other terms are skipped: a server that meets its
    times at a rate also serves that rate."""
    values = ((term, getattr(response, term.metric, None)) for term in terms)
    return all(term.holds(value) for term, value in values if value is not None)


def limit_ratio(response: Summary, terms: Iterable[Term]) -> float:
    """The largest ratio of a time to its limit; 0 if no time is known."""
    values = ((term, getattr(response, term.metric, None)) for term in terms if term.kind == "time")
    return max((value / term.limit for term, value in values if value is not None), default=0.0)


def _at_target(server: Server, needs: Needs, question: Question) -> Expected:
    """The forecast for one candidate at the target's rate, without its highest rate."""
    predicted = _at(server, needs, question, question.rate_rps, DRAWS)
    return Expected(
        key=server.key,
        bound_rps=bound_rps(server, needs, question),
        central=predicted.central,
        low=predicted.low,
        high=predicted.high,
        memory_bytes=needs.memory.of(server.workers) if needs.memory else None,
    )


def _at(server: Server, needs: Needs, question: Question, rps: float, draws: int = 1) -> Predicted:
    """The prediction at a rate, on a schedule with a seed that no launch uses."""
    duration_s = max(min(MAX_LOAD_S, REQUESTS / rps), MIN_REQUESTS / rps)
    due = schedule(question.arrivals, rps, duration_s, question.seed)
    return predict(
        server,
        class_named(server.worker_class),
        needs,
        [ns / NS for ns in due],
        cores=question.cores_at(rps, needs),
        max_in_flight=question.max_in_flight,
        draws=draws,
        seed=question.seed,
    )


def bound_rps(server: Server, needs: Needs, question: Question) -> float:
    """The upper bound of the rate: all slots held, every worker computing or blocked, all cores
    busy (asymptotic bounds, Denning & Buzen 1978); at most MAX_RATE_RPS."""
    mean = mean_need(needs)
    slots = class_named(server.worker_class).slots_of(server)
    hold_s = mean.wait_s + mean.cpu_s + mean.blocked_s + mean.nogil_s + needs.gap_s
    bounds = [MAX_RATE_RPS]
    if slots is not None and hold_s > 0:
        bounds.append(slots / hold_s)
    if (worker_s := mean.cpu_s + mean.blocked_s) > 0:
        bounds.append(server.workers / worker_s)
    if (cpu_s := mean.cpu_s + mean.nogil_s + question.load_s(needs)) > 0:
        bounds.append(question.cores / cpu_s)
    return min(bounds)


def mean_need(needs: Needs) -> RequestNeed:
    """The mean need of all requests, over all routes."""
    count = max(1, len(needs.requests))

    def mean_s(name: str) -> float:
        return math.fsum(getattr(need, name) for need in needs.requests) / count

    return RequestNeed(mean_s("wait_s"), mean_s("cpu_s"), mean_s("blocked_s"), mean_s("nogil_s"))


def _highest_rps(server: Server, needs: Needs, question: Question) -> float:
    """The highest rate at which the target is expected to hold, by bisection between 1/50 of the
    bound and the bound; 0 if it does not even hold at 1/50."""
    high_rps = bound_rps(server, needs, question)
    low_rps = high_rps / 50

    def passes(rps: float) -> bool:
        central = _at(server, needs, question, rps).central
        return times_hold(central, question.terms)

    if not passes(low_rps):
        return 0.0
    for _ in range(BISECTION_STEPS):
        is_wide = high_rps / low_rps > 4
        rps = math.sqrt(low_rps * high_rps) if is_wide else (low_rps + high_rps) / 2
        low_rps, high_rps = (rps, high_rps) if passes(rps) else (low_rps, rps)
    return low_rps


def forecast(
    servers: Iterable[Server], needs: Mapping[str, Needs], question: Question
) -> tuple[Expected, ...]:
    """The forecasts of all candidates of classes with known needs, in the order given."""
    measured = [server for server in servers if server.variant in needs]
    forecasts = {
        server.key: _at_target(server, needs[server.variant], question) for server in measured
    }
    best_rps = 0.0
    for server in sorted(measured, key=lambda server: -forecasts[server.key].bound_rps):
        used_bytes, limit_bytes = forecasts[server.key].memory_bytes, question.memory_bytes
        if used_bytes is not None and limit_bytes is not None and used_bytes > limit_bytes:
            continue
        if forecasts[server.key].bound_rps < MIN_BOUND_SHARE * best_rps:
            break
        highest_rps = _highest_rps(server, needs[server.variant], question)
        forecasts[server.key] = replace(forecasts[server.key], highest_rps=highest_rps)
        best_rps = max(best_rps, highest_rps)
    return tuple(forecasts[server.key] for server in measured)
