"""The result of the search: the recommended candidate, or why there is none, and the status of each
candidate."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from statistics import fmean
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.target import requests_of, value_of
from workerlab.experiments.advise.candidates import Expected, Limits, mean_need, time_in_app_s
from workerlab.experiments.advise.search import (
    LIMIT_QUESTION,
    Reach,
    Search,
    slow_alone,
    times_alone_s,
)
from workerlab.experiments.advise.standing import TOO_UNEVEN, Standing
from workerlab.experiments.advise.study import TOOL, CandidateLaunch, Study, meets_target
from workerlab.finding import Answer, Finding
from workerlab.model.evidence import Summary
from workerlab.model.plan import Server
from workerlab.model.result import Needs
from workerlab.numbers.units import counted, fill
from workerlab.server.backends import GRACE_S
from workerlab.server.worker_classes import class_named, configured_slots
from workerlab.slo import Metric

AdviseOutcome = Literal[
    "recommended", "nothing", "noisy", "undecidable", "unfinished", "no_class", "unsendable"
]

LOWER_FORECAST_SHARE = 0.9  # of the recommended candidate's forecast: a smaller one is "lower"
LOWER_RATE_RATIO = 1.05  # the recommended candidate's rate over one that counts as lower
GRACE_PER_RESPONSE = 3.0  # graceful_timeout over the longest response
MIN_GRACE_S = 2
DEFAULT_GRACE_S = 30  # Gunicorn's
MAX_UTILISATION = 0.7  # of cores or a pool: above it queues become long


class Row(Struct, frozen=True):
    """A candidate: its forecast, its standing and valid launches at the target's rate, its passing
    and failing rates, the lowest rate at which it missed the target, and its status."""

    server: Server
    expected: Expected
    standing: Standing
    launches: int
    reach: Reach
    broken_rps: float | None
    status: str


class AdviseResult(Struct, frozen=True):
    """`server`: the recommended candidate, else the nearest one; `launches`: its valid launches at
    the target's rate; `cores`: mean cores used in them; `failing_rps`: the lowest rate shown to
    miss the target, else the lowest at which a launch missed it, else at which the margin was too
    small; `failing_launch`: a launch at that rate, one that missed it if there is any; `untried`:
    the best candidates of other classes, for which the rest of the budget was too short."""

    outcome: AdviseOutcome
    search: Search
    rows: tuple[Row, ...]
    server: Server | None = None
    standing: Standing = Standing("not shown yet")
    reach: Reach = Reach()
    launches: tuple[CandidateLaunch, ...] = ()
    failing_launch: CandidateLaunch | None = None
    failing_rps: float | None = None
    untried: tuple[Server, ...] = ()

    @property
    def study(self) -> Study:
        return self.search.study

    @property
    def limits(self) -> Limits:
        return self.study.request.limits

    @property
    def trials(self) -> tuple[str, ...]:
        return tuple(launch.key for launch in self.launches)

    @property
    def needs(self) -> Needs | None:
        return self.study.needs.get(self.server.variant) if self.server else None

    @property
    def memory_bytes(self) -> int | None:
        return self.search.expected[self.server.key].memory_bytes if self.server else None

    @property
    def cores(self) -> float | None:
        by_launch = (launch.result.usage.server_cores for launch in self.launches)
        measured_cores = [cores for cores in by_launch if cores is not None]
        return fmean(measured_cores) if measured_cores else None

    @property
    def is_another_server(self) -> bool:
        """Whether the server is not Gunicorn."""
        return self.server is not None and class_named(self.server.worker_class).alone

    @property
    def stop_s(self) -> float | None:
        """The duration of the shortest stop after a load, with no requests in flight; None if
        unknown."""
        stops_s = [launch.facts.record.stop_s for launch in self.launches if launch.facts]
        return min((stop_s for stop_s in stops_s if stop_s is not None), default=None)

    @property
    def waits_at_stop(self) -> bool:
        """Whether each stop took the whole graceful_timeout."""
        return self.stop_s is not None and self.stop_s >= GRACE_S

    @property
    def grace_s(self) -> int | None:
        """The graceful_timeout for the file if each stop takes all of it: GRACE_PER_RESPONSE times
        the longest response. None to keep Gunicorn's default or the value of the app's own file."""
        longest_s = [launch.times_s[-1] for launch in self.launches if launch.times_s]
        is_set = "graceful_timeout" in self.study.request.config_sets
        if is_set or not longest_s or not self.waits_at_stop or self.is_another_server:
            return None
        grace_s = max(MIN_GRACE_S, math.ceil(GRACE_PER_RESPONSE * max(longest_s)))
        return grace_s if grace_s < DEFAULT_GRACE_S else None


def result_of(search: Search) -> AdviseResult:
    winner = search.winner()
    outcome: AdviseOutcome = "recommended" if winner else _why_none(search)
    server = winner or search.nearest()
    untried = tuple(search.untried(winner)) if winner else ()
    rows = tuple(_row(search, candidate, winner, untried) for candidate in search.servers)
    if server is None:
        return AdviseResult(outcome, search, rows)
    reach = search.reach(server)
    if (reach.passing_rps or 0.0) <= search.target_rps:  # also show rates with few launches
        reach = search.reach(server, unpromising=True)
    failing_rps = search.broken_rps(server) or reach.failing_rps
    launches = search.study.launches_at(server, failing_rps) if failing_rps is not None else ()
    failures = (launch for launch in launches if not meets_target(launch, search.terms))
    return AdviseResult(
        outcome,
        search,
        rows,
        server=server,
        standing=search.standing(server),
        reach=reach,
        launches=search.study.launches_at(server, search.target_rps),
        failing_launch=next(failures, next(iter(launches), None)),
        failing_rps=failing_rps,
        untried=untried,
    )


def _why_none(search: Search) -> AdviseOutcome:
    """Why nothing is recommended."""
    study = search.study
    if unmeasured(study):
        return "unfinished"
    if not study.needs:
        return "no_class"
    if search.slow_in_all_classes() or (search.has_forecast and not search.order):
        return "nothing"
    if search.unsendable():
        return "unsendable"
    if search.too_noisy():
        return "noisy"
    next_launch = search.next()
    words = {search.standing(server).word for server in search.servers}
    if "broken" in words and not search.any_forecast_meets and not words & {"met", "undecidable"}:
        return "nothing"  # as forecast for all candidates
    if next_launch is not None and next_launch.rps == search.target_rps:
        return "unfinished"
    if "undecidable" in words and next_launch is None:
        return "undecidable"
    at_target = (
        search.standing(server).word
        for server in search.servers
        if search.study.launches_at(server, search.target_rps)
    )
    is_settled = next_launch is None or "not shown yet" not in at_target
    return "nothing" if "broken" in words and is_settled else "unfinished"


def unmeasured(study: Study) -> set[str]:
    """Variants whose needs had not been measured when the run was stopped."""
    planned = {cell.server.variant for cell in study.plan.cells if cell.inside == "needs"}
    return planned - {*study.needs, *study.left_out}


def without_candidates(search: Search) -> list[str]:
    """Variants without candidates, because no settings are within the limits."""
    variants = {server.variant for server in search.servers}
    return [name for name in search.study.needs if name not in variants and search.has_forecast]


# --- the status of each candidate -----------------------------------------------------------------


def _row(search: Search, server: Server, winner: Server | None, untried: Collection[Server]) -> Row:
    expected = search.expected[server.key]
    if expected.bound_rps < search.target_rps:  # times would grow for as long as the load lasts
        expected = replace(expected, central=Summary(), low=Summary(), high=Summary())
    return Row(
        server=server,
        expected=expected,
        standing=search.standing(server),
        launches=len(search.study.launches_at(server, search.target_rps)),
        reach=_confirmed_reach(search, server),
        broken_rps=search.broken_rps(server),
        status=_status(search, server, winner, untried),
    )


def _confirmed_reach(search: Search, server: Server) -> Reach:
    """The server's reach. A passing rate equal to the target's, where the bound is stricter, counts
    only if the server meets the target."""
    reach = search.reach(server)
    if reach.passing_rps == search.target_rps and not search.meets(server):
        return replace(reach, passing_rps=None)
    return reach


STATUS_OF_BOUND = {
    "broken": "misses {}",
    TOO_UNEVEN: "too uneven to confirm {}",
    "undecidable": "{} undecidable",
}


def _status(
    search: Search, server: Server, winner: Server | None, untried: Collection[Server]
) -> str:
    standing, broken_rps = search.standing(server), search.broken_rps(server)
    passing_rps = search.reach(server).passing_rps or 0.0
    best_rps = (search.reach(winner).passing_rps if winner else None) or -math.inf
    if server == winner:
        return "recommended"
    if not search.fits_memory(server):
        used_bytes = search.expected[server.key].memory_bytes
        return fill("exceeds the memory limit: {used_bytes:bytes}", {"used_bytes": used_bytes})
    if standing.word == "met":
        if 0 < LOWER_RATE_RATIO * passing_rps < best_rps:
            return "meets it, up to a lower rate"
        return f"meets it{_cost_remark(search, server, winner)}"
    if standing.word in STATUS_OF_BOUND and standing.bounds:
        bound = next(bound for bound in standing.bounds if bound.word == standing.word)
        key = TOO_UNEVEN if bound.why == TOO_UNEVEN else bound.word
        return STATUS_OF_BOUND[key].format(bound.term)
    if broken_rps is not None and passing_rps <= best_rps:
        return fill("misses it at {rps:number} req/s", {"rps": broken_rps})
    if search.study.launches_of(server):
        return "too few launches"
    if count := sum(launch.server == server for launch in search.study.launches):
        return f"{counted(count, 'launch/launches')}, {'all ' if count > 1 else ''}discarded"
    if server in untried:
        return "not launched: budget too short"
    return f"not launched{_low_forecast(search, server, winner)}"


def _low_forecast(search: Search, server: Server, winner: Server | None) -> str:
    """Why the forecast did not justify a launch; "" if it did."""
    expected = search.expected[server.key]
    if expected.most_rps < search.target_rps:
        return ": forecast to miss it"
    if expected.most_rps >= LOWER_FORECAST_SHARE * (search.forecast_rps(winner) if winner else 0.0):
        remark = _cost_remark(search, server, winner)
        return remark and f": similar forecast{remark}"
    if expected.highest_rps is None:
        return fill(": forecast at most {rps:number} req/s", {"rps": expected.bound_rps})
    return ": forecast lower"


def _cost_remark(search: Search, server: Server, winner: Server | None) -> str:
    costs_more = winner is not None and search.cost(server) > search.cost(winner)
    return ", costs more" if costs_more else ""


# --- the limit ------------------------------------------------------------------------------------


class MemoryShortage(Answer):
    """Not enough memory: the smallest candidate takes about {least_bytes:bytes}; the limit is
    {limit_bytes:bytes}."""

    question = LIMIT_QUESTION

    least_bytes: int
    limit_bytes: int


class CpuShortage(Answer):
    """Not enough CPU: at {cpu_s:duration} per request this rate needs about {needed:number} cores
    at {busy:percent} utilisation; there are {cores:number}."""

    question = LIMIT_QUESTION

    cpu_s: float
    needed: float
    busy: float
    cores: float


class BlockingCall(Answer):
    """{place} blocks the event loop: for {per_request_s:duration} per request on average, up to
    {longest_s:duration} at a stretch[[, so {workers:# worker} can serve at most {most_rps:number}
    requests/s]]. Replace the call with one that does not block, or run it in a thread."""

    question = LIMIT_QUESTION

    place: str
    per_request_s: float
    longest_s: float
    workers: int
    most_rps: float | None  # None if this is well above the target's rate


class SlotShortage(Answer):
    """Not enough {resource}: at {hold_s:duration} per request about {in_flight:number} requests are
    in flight at this rate, which is close to or above the limit of {available:count}."""

    question = LIMIT_QUESTION

    resource: str
    hold_s: float
    in_flight: float
    available: int


APP_CONCURRENCY = "concurrency in the app (--max-in-flight)"
SERVER_SLOTS = "slots, even with the largest candidate"


class ToolShortage(Answer):
    """The load tool {tool} is the limit[[: against a server that does nothing it reaches
    {rps:number} requests/s here]].[[ {remark}]][[ {cpu}]]"""

    question = LIMIT_QUESTION

    tool: str
    rps: float | None
    remark: str
    cpu: CpuShortage | None  # see `_cpu_shortage_of_all`


class SlowUnderLoad(Answer):
    """The waiting time under load: without any waiting, {metric} would be {alone_s:duration};
    at {rps:number} requests/s it was {loaded_s:duration}.[[ The mean of {response_s:duration}
    includes {parts:list}.]] None of the limits that advise checks (CPU, slots, a blocked event
    loop, the load tool) explains this."""

    question = LIMIT_QUESTION

    metric: Metric
    alone_s: float
    rps: float
    loaded_s: float
    response_s: float | None  # mean
    parts: tuple[str, ...]  # of the mean, the longest first


PARTS = {
    "connect_s": "{time_s:duration} to connect",
    "accept_queue_s": "{time_s:duration} in the accept queue",
    "in_worker_s": "{time_s:duration} in the worker before the app",
    "service_s": "{time_s:duration} in the app",
}
MIN_PART_SHARE = 0.02  # of the response time: a shorter part is not named


SERVER_UNKNOWN = "This says nothing about the server."
SERVER_ALSO_LIMIT = "The server would also be a limit."


def limit_of(result: AdviseResult) -> Answer | None:
    """The limit that would have to change for the target to be met; None if unknown."""
    search, study = result.search, result.study
    if search.slow_in_all_classes():
        slow = (slow_alone(needs, search.terms) for needs in study.needs.values())
        return min(filter(None, slow), key=lambda limit: limit.value_s, default=None)
    limit_bytes, forecasts = result.limits.memory_bytes, search.expected.values()
    if limit_bytes is not None and forecasts and not search.order:
        # Candidates whose memory is unknown always fit, so here all are known and too large
        sizes = (size for forecast in forecasts if (size := forecast.memory_bytes) is not None)
        return MemoryShortage(min(sizes), limit_bytes)
    if study.ceiling and search.unsendable():
        cpu = _cpu_shortage_of_all(result)
        return ToolShortage(TOOL, study.ceiling.rps, SERVER_ALSO_LIMIT if cpu else "", cpu)
    if result.needs is None:
        return _cpu_shortage_of_all(result)
    launch = result.failing_launch
    if launch is not None and launch.result.verdict == "generator-bound":
        return ToolShortage(TOOL, None, SERVER_UNKNOWN, None)
    is_missed = result.standing.word == "broken"  # by launches, so a small ratio is enough
    return (
        (slow_alone(result.needs, search.terms, min_ratio=1.0) if is_missed else None)
        or _cpu_shortage(result, result.needs)
        or _blocking_call(result, result.needs)
        or next(_slot_shortages(result, result.needs), None)
        or _slow_under_load(result, result.needs)
    )


def _cpu_shortage_of_all(result: AdviseResult) -> CpuShortage | None:
    """The smallest shortage of all classes; None unless every class has one."""
    all_needs = result.study.needs.values()
    shortages = list(filter(None, (_cpu_shortage(result, needs) for needs in all_needs)))
    smallest = min(shortages, key=lambda shortage: shortage.cpu_s, default=None)
    return smallest if len(shortages) == len(all_needs) else None


def _cpu_shortage(result: AdviseResult, needs: Needs) -> CpuShortage | None:
    """The shortage if the target's rate needs more cores than there are, else None."""
    mean = mean_need(needs)
    cpu_s = mean.cpu_s + mean.nogil_s
    cores = cpu_s * result.search.target_rps / MAX_UTILISATION
    if cores <= result.limits.cores:
        return None
    return CpuShortage(cpu_s=cpu_s, needed=cores, busy=MAX_UTILISATION, cores=result.limits.cores)


def _blocking_call(result: AdviseResult, needs: Needs) -> BlockingCall | None:
    """The call that blocks the server's event loop the most; None if none was seen."""
    if result.server is None:
        return None
    for line in result.study.blocking.get(result.server.variant, ()):
        if line.how == "blocks the event loop" and line.per_request_s is not None:
            mean, workers = mean_need(needs), result.server.workers
            loop_s = mean.cpu_s + max(mean.blocked_s, line.per_request_s)
            most_rps = workers / loop_s
            too_few = most_rps * MAX_UTILISATION < result.search.target_rps
            return BlockingCall(
                place=fill("{file} line {line} in {function}()", line.values),
                per_request_s=line.per_request_s,
                longest_s=line.longest_s,
                workers=workers,
                most_rps=most_rps if too_few else None,
            )
    return None


def _slot_shortages(result: AdviseResult, needs: Needs) -> Iterator[SlotShortage]:
    hold_s = time_in_app_s(mean_need(needs))
    in_flight, pool = hold_s * result.search.target_rps, result.limits.max_in_flight
    if pool is not None and in_flight > MAX_UTILISATION * pool:
        yield SlotShortage(APP_CONCURRENCY, hold_s=hold_s, in_flight=in_flight, available=pool)
    slots = [configured_slots(server) for server in result.search.servers]
    max_slots = max((count or 0 for count in slots), default=0)
    if None not in slots and in_flight > MAX_UTILISATION * max_slots:
        yield SlotShortage(SERVER_SLOTS, hold_s=hold_s, in_flight=in_flight, available=max_slots)


def _slow_under_load(result: AdviseResult, needs: Needs) -> SlowUnderLoad | None:
    """The answer for the first term on a time that the failing launch missed; None if it missed
    none."""
    launch, lone_requests = result.failing_launch, requests_of(times_alone_s(needs))
    for term in result.search.terms if launch else ():
        assert launch is not None
        alone_s = value_of(term.metric, lone_requests)
        loaded_s = value_of(term.metric, launch.requests)
        if term.kind != "time" or loaded_s is None or alone_s is None or term.holds(loaded_s):
            continue
        if math.isinf(loaded_s):  # failed requests: their errors say why
            continue
        mean = launch.result.breakdown
        parts_s = {name: getattr(mean, name) or 0.0 for name in PARTS}
        return SlowUnderLoad(
            metric=term.metric,
            alone_s=alone_s,
            rps=launch.rps,
            loaded_s=loaded_s,
            response_s=mean.response_s,
            parts=tuple(
                fill(PARTS[name], {"time_s": parts_s[name]})
                for name in sorted(parts_s, key=parts_s.__getitem__, reverse=True)
                if parts_s[name] > MIN_PART_SHARE * (mean.response_s or 0.0)
            ),
        )
    return None


class Candidate(Finding):
    """{worker_class}, {workers:# worker}[[ of {threads:# thread}]]
    [[ of {worker_connections:# connection}]]"""

    worker_class: str
    workers: int
    threads: int | None
    worker_connections: int | None


def candidate_of(server: Server) -> Candidate:
    slots = class_named(server.worker_class).slots
    return Candidate(
        worker_class=server.variant,
        workers=server.workers,
        threads=server.threads if slots == "threads" else None,
        worker_connections=server.worker_connections if slots == "worker_connections" else None,
    )
