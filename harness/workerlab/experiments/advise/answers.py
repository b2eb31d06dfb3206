"""The answers of `workerlab advise`: the recommendation, whether it meets the target, its highest
rate, its cost, and the evidence.

Cautions are about changes that the target does not cover: service times that drift during a load,
and memory that grows with the requests. Memory is the resident size of all processes of the server,
from a third of the load to its end: what the first requests load and cache is not a leak. Growth
is reported only if it occurs in every launch; in one, it may be a single allocation.

Lines that block the event loop are shown for the recommended class if they are known for it. If
multiple classes with the same app have an alarm, only one was examined, since the lines are the
same under the others. The times are those of the examined trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from workerlab.analysis.diagnosis.drift import drift, slow_first
from workerlab.analysis.target import value_of
from workerlab.analysis.trials import grouped
from workerlab.experiments.advise.candidates import mean_need, time_in_app_s
from workerlab.experiments.advise.result import (
    DEFAULT_GRACE_S,
    MAX_UTILISATION,
    AdviseOutcome,
    AdviseResult,
    Candidate,
    candidate_of,
    limit_of,
    unmeasured,
    without_candidates,
)
from workerlab.experiments.advise.search import BETTER_RATIO, MAX_GAP_RATIO
from workerlab.experiments.advise.standing import MIN_LAUNCHES, TOO_UNEVEN, TermBound, passes
from workerlab.experiments.advise.study import (
    NOISE,
    CandidateLaunch,
    Exclusion,
    Study,
    meets_target,
)
from workerlab.finding import Answer, Finding
from workerlab.model.plan import Cell, Server
from workerlab.model.result import Memory, Result
from workerlab.notes import LeftOut
from workerlab.numbers.units import amount, counted, fill, format_duration, listed
from workerlab.server.backends import GRACE_S


class LoopBlocked(Answer):
    """With {connections:# connection} to {workers:# worker} of {worker_class}[[: {lines: }]]
    [[ {unnamed}]][[ The same app may also block the event loop of {others:list}.]]"""

    question = "What blocks the event loop?"

    worker_class: str
    connections: int
    workers: int
    lines: tuple[Finding, ...]
    unnamed: str  # text if there are no lines
    others: tuple[str, ...]


NO_LINE = "the event loop is blocked, but no line accounts for 1 % of the time."


def loop_blocked(result: AdviseResult) -> Iterator[LoopBlocked]:
    study = result.study
    examined_variants = {
        name for name, lines in study.blocking.items() if lines or name in study.blocked_variants
    }
    cells = [
        cell
        for cell in study.plan.cells
        if cell.inside == "stacks" and cell.server.variant in examined_variants
    ]
    if not cells:
        return
    cell = min(cells, key=lambda cell: _relevance_rank(result, cell))
    server, lines = cell.server, study.blocking[cell.server.variant]
    yield LoopBlocked(
        worker_class=server.variant,
        connections=cell.concurrency,
        workers=server.workers,
        lines=lines,
        unnamed="" if lines else NO_LINE,
        others=_other_alarmed_variants(study, cell),
        trials=tuple(trial for line in lines for trial in line.trials),
    )


def _relevance_rank(result: AdviseResult, cell: Cell) -> int:
    """0: the recommended class; 1: another class with the same app, if the recommended class also
    has an alarm; 2: any other."""
    variant = result.server.variant if result.server else ""
    if cell.server.variant == variant:
        return 0
    return 1 if variant in _other_alarmed_variants(result.study, cell) else 2


def _other_alarmed_variants(study: Study, cell: Cell) -> tuple[str, ...]:
    """Other variants with an event loop alarm, or a blocked event loop, and the same app."""
    others = {*study.blocked_variants, *study.alarmed_variants} - {cell.server.variant}
    apps = {cell.server.variant: cell.server.app for cell in study.plan.cells}
    return tuple(sorted(name for name in others if apps.get(name) == cell.server.app))


WARM_UP_SHARE = 1 / 3  # of the load
MIN_GROWTH_BYTES = 1 << 20  # in each launch; less is normal heap growth
MIN_GROWTH_PER_REQUEST_BYTES = 512
HOUR_S = 3600.0


class RepeatedChange(Finding):
    """{change}; seen in {launches} of {of:# launch/launches}."""

    launches: int
    of: int
    change: Finding


class MemoryGrowth(Finding):
    """Memory grew in each launch, by at least {per_request_bytes:bytes} per request: at this rate
    about {per_hour_bytes:bytes} an hour. Set max_requests to restart workers in time."""

    per_request_bytes: float
    per_hour_bytes: float


class Cautions(Answer):
    """{cautions: }"""

    question = "What else was observed?"

    cautions: tuple[Finding, ...]


def cautions(launches: Sequence[CandidateLaunch], rate_rps: float) -> Iterator[Cautions]:
    findings = (*_changes(launches), *_memory_growth(launches, rate_rps))
    if findings:
        yield Cautions(findings)


def _changes(launches: Sequence[CandidateLaunch]) -> Iterator[RepeatedChange]:
    """Changes seen in most launches, each with the figures of the first: a single launch may be an
    exception."""
    facts = [launch.facts for launch in launches if launch.facts is not None]
    results = (rule(trial) for trial in facts for rule in (drift, slow_first))
    for changes in grouped(filter(None, results), type).values():
        if 2 * len(changes) > len(launches):
            yield RepeatedChange(len(changes), len(launches), changes[0])


def _memory_growth(launches: Sequence[CandidateLaunch], rate_rps: float) -> Iterator[MemoryGrowth]:
    growth_bytes = [_growth_bytes(launch) for launch in launches]
    if min(growth_bytes, default=0) >= MIN_GROWTH_BYTES:
        per_request_bytes = min(
            growth / max(1.0, (1 - WARM_UP_SHARE) * launch.due)
            for growth, launch in zip(growth_bytes, launches, strict=True)
        )
        if per_request_bytes >= MIN_GROWTH_PER_REQUEST_BYTES:
            yield MemoryGrowth(per_request_bytes, per_request_bytes * rate_rps * HOUR_S)


def _growth_bytes(launch: CandidateLaunch) -> int:
    """Growth of the server's memory after the warm-up; 0 if it was not sampled."""
    if launch.facts is None:
        return 0
    started_ns, ended_ns = launch.facts.started_ns, launch.facts.ended_ns
    warm_ns = started_ns + WARM_UP_SHARE * (ended_ns - started_ns)
    sizes = [
        sample.server_rss_bytes
        for sample in launch.facts.observations.processes
        if warm_ns <= sample.at_ns <= ended_ns and sample.server_rss_bytes is not None
    ]
    return sizes[-1] - sizes[0] if sizes else 0


MIN_OTHERS_CORES = 0.05  # used by other programs; below it, they are not mentioned
SATURATED = ("saturated", "at capacity", "generator-bound")
FAILED = "{failed:count} of {due:count} requests failed[[ ({causes:counts})]]"
APP_CONCURRENCY = (
    "at this rate about {in_flight:number} requests are in the app at once; it can handle"
    " {pool:count}"
)
USAGE = (
    "the server used {server_cores:cores}[[, the load tool {tool_cores:cores}]][[, other programs"
    " {others_cores:cores}]], and this machine was {host_busy:percent} busy[[; {occupancy:percent}"
    " of the slots were taken]]"
)
VALUE = "{term.metric} was {value:{term.kind}}"


def reasons(result: AdviseResult, launch: CandidateLaunch) -> Iterator[str | Finding]:
    """Why a launch missed the target: the number of errors; for a time or the throughput, its value
    and the bottleneck. For a launch that missed no term, but was close to a limit, only the
    bottleneck."""
    missed = [term for term in result.search.terms if not meets_target(launch, [term])]
    for term in missed:
        if term.kind == "errors":
            causes = launch.facts.outcome.errors if launch.facts else None
            yield fill(FAILED, {"failed": launch.failed, "due": launch.due, "causes": causes})
        elif math.isfinite(value := value_of(term.metric, launch.requests) or math.inf):
            yield fill(VALUE, {"term": term, "value": value})
    only_errors = missed and all(term.kind == "errors" for term in missed)
    if not only_errors and (bottleneck := _bottleneck(result, launch)):
        yield bottleneck


def _bottleneck(result: AdviseResult, launch: CandidateLaunch) -> str | Finding:
    """The saturated resource. If none is saturated, the utilisation, since queues grow before
    saturation; "" if that is unknown."""
    cell = launch.result
    if cell.verdict in SATURATED:
        return cell.diagnosis or cell.reason
    return _app_concurrency(result, launch) or _usage(cell)


def _app_concurrency(result: AdviseResult, launch: CandidateLaunch) -> str:
    """The sentence if the rate needs over MAX_UTILISATION of the pool (Little's law); else ""."""
    pool, needs = result.limits.max_in_flight, result.needs
    in_flight = launch.rps * time_in_app_s(mean_need(needs)) if needs else 0.0
    if pool is None or in_flight <= MAX_UTILISATION * pool:
        return ""
    return fill(APP_CONCURRENCY, {"pool": pool, "in_flight": in_flight})


def _usage(cell: Result) -> str:
    usage = cell.usage
    if usage.server_cores is None or usage.host_busy is None:
        return ""
    others_cores = (cell.core_wait.others_cores if cell.core_wait else None) or 0.0
    values = {
        "server_cores": usage.server_cores,
        "tool_cores": usage.generator_cores,
        "others_cores": others_cores if others_cores >= MIN_OTHERS_CORES else None,
        "host_busy": usage.host_busy,
        "occupancy": cell.occupancy,
    }
    return fill(USAGE, values)


MAX_PRELOAD_SHARE = 0.9  # of the memory; preload_app is mentioned only if it takes less
MANY_DISTURBED_SHARE = 0.25  # of the launches; fewer discarded ones appear only in a note
CLASS_QUESTION = "Which worker class, how many workers?"


def answers(result: AdviseResult) -> Iterator[Finding]:
    """All answers for which there is data."""
    main_answer = recommendation if result.outcome == "recommended" else no_recommendation
    yield replace(main_answer(result), trials=result.trials, evidence=tuple(_evidence(result)))
    yield from target_answer(result)
    yield from highest_rate(result)
    if result.outcome == "recommended":
        yield running_cost(result)
    elif _needs_change(result) and (limit := limit_of(result)):
        yield limit
    met = [launch for launch in result.launches if meets_target(launch, result.search.terms)]
    if len(met) > 1:  # a single launch may be an exception; in an overload everything grows
        yield from cautions(met, result.search.target_rps)
    yield from loop_blocked(result)


def _needs_change(result: AdviseResult) -> bool:
    """Whether the target is missed, or forecast to be missed by all candidates."""
    outcome, search = result.outcome, result.search
    if outcome == "unfinished":
        return search.has_forecast and not search.any_forecast_meets
    return outcome in ("nothing", "undecidable", "unsendable")


def exclusions(result: AdviseResult) -> Iterator[LeftOut]:
    """The excluded classes by reason, those that were tried and failed first. If every class that
    was tried failed, only those are listed: installing other classes would not help."""
    limit_exclusion = Exclusion(f"no settings satisfy {listed(result.limits.flags)}")
    unfit = (*result.study.request.unfit, *without_candidates(result.search))
    reasons = {**result.study.left_out, **dict.fromkeys(unfit, limit_exclusion)}
    by_text = grouped(reasons, lambda name: str(replace(reasons[name], detail=None)))
    left_out = [
        LeftOut(tuple(names), reasons[names[0]], trials=reasons[names[0]].trials)
        for names in by_text.values()
    ]
    failed = [exclusion for exclusion in left_out if exclusion.trials]
    others = [exclusion for exclusion in left_out if not exclusion.trials]
    yield from failed if failed and not result.study.needs else (*failed, *others)


# --- the recommendation ---------------------------------------------------------------------------


class Recommended(Answer):
    """{candidate}.[[ {further} reached {further_rps:number} requests/s, but had too few launches at
    the target's rate to be recommended.]][[ The rest of the budget was too short for
    {untried:list}, so only the forecast is known.]][[ Other programs, other machines or pauses of
    this machine disturbed {spoilt} of {launches:# launch/launches}, which were {consequence}.]]
    [[ To continue, use --resume {run} with {condition}.]]"""

    question = CLASS_QUESTION

    candidate: Candidate
    further: Candidate | None
    further_rps: float | None
    untried: tuple[str, ...]  # worker classes worth a launch
    spoilt: int | None  # disturbed launches; None if few
    launches: int
    consequence: Literal["discarded", "discarded, and the search stopped early"]
    run: str | None  # if further launches may find a better candidate
    condition: Literal["a longer --budget", "nothing else running"]


def recommendation(result: AdviseResult) -> Recommended:
    search, server = result.search, result.server
    assert server is not None
    best = max(result.rows, key=lambda row: row.reach.passing_rps or 0.0)
    passing_rps = result.reach.passing_rps or search.target_rps
    best_rps = best.reach.passing_rps or 0.0
    further = best_rps > BETTER_RATIO * passing_rps and best.standing.word == "not shown yet"
    untried = tuple(sorted(candidate.variant for candidate in result.untried))
    open_ended = result.reach.failing_rps is None and search.next() is not None
    noisy, launches = search.too_noisy(), len(result.study.launches)
    many_disturbed = result.study.disturbed >= max(2, MANY_DISTURBED_SHARE * launches)
    incomplete = further or untried or open_ended or _has_gap(result, server)
    return Recommended(
        candidate=candidate_of(server),
        further=candidate_of(best.server) if further else None,
        further_rps=best_rps if further else None,
        untried=untried,
        spoilt=result.study.disturbed if noisy or many_disturbed else None,
        launches=launches,
        consequence="discarded, and the search stopped early" if noisy else "discarded",
        run=result.study.run if incomplete or noisy else None,
        condition="nothing else running" if noisy else "a longer --budget",
    )


class NoRecommendation(Answer):
    """{reason}[[ {nearness}: {nearest}.]][[ To continue, use --resume {run} with
    {condition}.]]"""

    question = CLASS_QUESTION

    outcome: AdviseOutcome
    reason: str
    nearness: Literal["Closest of those launched", "Only this candidate was launched"]
    nearest: Candidate | None
    run: str | None  # if it can be resumed
    condition: Literal["a longer --budget", "a longer --budget if it was used up"]


REASONS: dict[AdviseOutcome, str] = {
    "nothing": "No candidate meets the target.",
    "undecidable": "Undecidable: about as many requests are slow as the target's percentile allows,"
    " so it is met or missed by chance.",
    "noisy": "Inconclusive: other programs or machines, or pauses of this machine, disturbed"
    " {launches:# launch/launches}, more than are valid. Stop other programs, or try again later.",
    "unfinished": "Inconclusive so far: no candidate has been shown to meet the target."
    "[[ {capacity}.]]"
    "[[ Other programs or machines, or pauses of this machine, disturbed"
    " {launches:# launch/launches}.]]",
    "no_class": "No worker class could serve the app.",
    "unsendable": "No candidate was launched, because the load tool cannot reach this rate on this"
    " machine.",
}
LACKS_CAPACITY = "The rate exceeds the slots or cores of all candidates"


def no_recommendation(result: AdviseResult) -> NoRecommendation:
    nearest = result.server if result.outcome in ("nothing", "unfinished") else None
    is_closest = len({launch.server for launch in result.study.launches}) > 1
    lacks_capacity = result.search.lacks_capacity
    values = {
        "launches": result.study.disturbed or None,
        "capacity": LACKS_CAPACITY if lacks_capacity else None,
    }
    return NoRecommendation(
        outcome=result.outcome,
        reason=fill(REASONS[result.outcome], values),
        nearness="Closest of those launched" if is_closest else "Only this candidate was launched",
        nearest=candidate_of(nearest) if nearest else None,
        run=result.study.run if result.outcome == "unfinished" and not lacks_capacity else None,
        condition="a longer --budget if it was used up"
        if unmeasured(result.study)
        else "a longer --budget",
    )


class ClassNeeds(Finding):
    """{worker_class}: a request waits {wait_s:duration} and computes {cpu_s:duration}
    [[, blocks the event loop for {blocked_s:duration}]]
    [[, holds its slot for {gap_s:duration} beyond that]], on average over {requests:# request}
    [[; memory {memory.shared_bytes:bytes} shared, {memory.private_bytes:bytes} more per worker]]
    [[; starts in {start_s:duration}]]"""

    worker_class: str
    wait_s: float
    cpu_s: float
    blocked_s: float | None
    gap_s: float | None
    requests: int
    memory: Memory | None
    start_s: float | None


class RateTried(Finding):
    """{rps:number} requests/s: p95 {p95:list}"""

    rps: float
    p95: tuple[str, ...]  # of each launch


def _evidence(result: AdviseResult) -> Iterator[Finding]:
    """The mean needs of requests under each class, and the rates tried with the server named."""
    for name, needs in result.study.needs.items():
        mean = mean_need(needs)
        yield ClassNeeds(
            worker_class=name,
            wait_s=mean.wait_s,
            cpu_s=mean.cpu_s + mean.nogil_s,
            blocked_s=mean.blocked_s or None,
            gap_s=needs.gap_s or None,
            requests=len(needs.requests),
            memory=needs.memory,
            start_s=needs.start_s,
        )
    if result.server is not None:
        for rps in result.study.rates(result.server):
            launches = result.study.launches_at(result.server, rps)
            p95s = (launch.result.response.p95 for launch in launches)
            yield RateTried(rps, tuple(format_duration(p95) for p95 in p95s if p95 is not None))


# --- the target -----------------------------------------------------------------------------------


class TargetAnswer(Answer):
    """[[{terms: }]][[ {unshown:; }.]][[ {shown:; }, at {rates} requests/s.]]"""

    question = "Does it meet the target?"

    terms: tuple[TermBound, ...]  # at the target's rate
    unshown: tuple[Finding, ...]  # errors: too few requests for a verdict
    shown: tuple[Finding, ...]  # errors: met
    rates: str  # the rates at which errors were counted


def target_answer(result: AdviseResult) -> Iterator[TargetAnswer]:
    target_rps, standing = result.search.target_rps, result.standing
    if standing.bounds or standing.inconclusive or standing.met:
        rates = dict.fromkeys((target_rps, max(target_rps, result.reach.passing_rps or 0.0)))
        yield TargetAnswer(
            terms=standing.bounds,
            unshown=standing.inconclusive,
            shown=standing.met,
            rates=" to ".join(map(amount, rates)),
            trials=result.trials,
        )


# --- the highest rate -----------------------------------------------------------------------------


MetOutcome = Literal[
    "is met up to",
    "was met, but in too few launches to confirm it, at",
    "was met, but in launches that differ too much to confirm it, at",
]


class RateKept(Finding):
    """The target[[, except {unshown:list} (not shown yet),]] {outcome} {rps:number} requests/s
    ({launches:# launch/launches}[[, and {above} slightly above]]
    [[; {discarded} more discarded]])."""

    outcome: MetOutcome
    rps: float
    unshown: tuple[str, ...]
    launches: int
    above: int | None  # launches above, if they are needed to confirm it
    discarded: int | None

    @property
    def is_confirmed(self) -> bool:
        return self.outcome == "is met up to"


class RateBroken(Finding):
    """At {rps:number} requests/s {which} missed it[[, {caveat}]][[: {reasons:; }]]
    [[. There, {usage:; }]]"""

    rps: float
    launches: int
    broke: int
    which: str  # the launches that missed it, as the subject
    caveat: str
    reasons: tuple[str | Finding, ...]  # why the target was missed
    usage: tuple[str | Finding, ...] = ()  # instead of `reasons` if no launch missed it


class KeptBetween(Finding):
    """In between, {launches:# launch/launches} at {rates:list} requests/s also met it, but
    {caveat}."""

    launches: int
    rates: tuple[str, ...]
    caveat: str


class HighestRate(Answer):
    """[[{kept}]][[ {broken:sentence}]][[ {between}]][[ {remark}]]"""

    question = "What is its highest rate?"

    kept: RateKept | None
    broken: RateBroken | None
    between: KeptBetween | None
    remark: str


TOO_FEW_MET = "there were too few launches at each rate to confirm it"
UNEVENLY_MET = "their times vary too much to predict the same for the next launch"
TOO_FEW_MISSED = "though further launches may meet it"
NONE_MISSED = "but their margin is too small to predict the same for the next launch"
RATE_GAP = "No launch at a rate between the two was valid."
NO_FAILING_RATE = (
    "It may be met at higher rates[[: {launches:# launch/launches} there had to be discarded,"
    " because other programs or machines used the cores or this machine was paused]]."
)


def highest_rate(result: AdviseResult) -> Iterator[HighestRate]:
    server, passing_rps, failing_rps = result.server, result.reach.passing_rps, result.failing_rps
    if server is None or (passing_rps is None and failing_rps is None):
        return
    disturbed = sum(
        isinstance(launch.discard_reason, NOISE)
        for launch in result.study.launches
        if launch.server == server and launch.rps > (passing_rps or 0.0)
    )
    remark = fill(NO_FAILING_RATE, {"launches": disturbed or None}) if failing_rps is None else ""
    yield HighestRate(
        kept=None if passing_rps is None else _highest_met(result, server, passing_rps),
        broken=None if failing_rps is None else _lowest_missed(result, server, failing_rps),
        between=met_between(result, server),
        remark=RATE_GAP if _has_gap(result, server) else remark,
    )


def met_between(result: AdviseResult, server: Server) -> KeptBetween | None:
    """The launches at rates between the passing and the failing one at which every launch met the
    target."""
    low_rps, high_rps = result.reach.passing_rps or math.inf, result.failing_rps or 0.0
    by_rate = {
        rps: len(outcomes)
        for rps in result.study.rates(server)
        if low_rps < rps < high_rps and all(outcomes := result.search.launch_outcomes(server, rps))
    }
    if not by_rate:
        return None
    caveat = UNEVENLY_MET if max(by_rate.values()) >= MIN_LAUNCHES else TOO_FEW_MET
    return KeptBetween(sum(by_rate.values()), tuple(map(amount, by_rate)), caveat)


def _has_gap(result: AdviseResult, server: Server) -> bool:
    """Whether the passing and the failing rate differ by more than a factor of MAX_GAP_RATIO, with
    no valid launch in between."""
    low_rps, high_rps = result.reach.passing_rps or math.inf, result.failing_rps or 0.0
    between = any(low_rps < rps < high_rps for rps in result.study.rates(server))
    return high_rps > MAX_GAP_RATIO * low_rps and not between


def _highest_met(result: AdviseResult, server: Server, rps: float) -> RateKept:
    """The finding for the highest passing rate."""
    valid = len(result.study.launches_at(server, rps))
    is_open = rps == result.search.target_rps and result.standing.word != "met"
    outcome: MetOutcome = "is met up to"
    if is_open and any(bound.why == TOO_UNEVEN for bound in result.standing.bounds):
        outcome = "was met, but in launches that differ too much to confirm it, at"
    elif is_open or valid < MIN_LAUNCHES:
        outcome = "was met, but in too few launches to confirm it, at"
    above = result.search.count_met_nearby(server, rps) - valid
    is_bounded = passes(result.study.launches_at(server, rps), result.search.terms)
    return RateKept(
        outcome=outcome,
        rps=rps,
        unshown=tuple(errors.term for errors in result.standing.inconclusive),
        launches=valid,
        above=None if outcome != "is met up to" or is_bounded else above or None,
        discarded=len(result.study.all_launches_at(server, rps)) - valid or None,
    )


def _lowest_missed(result: AdviseResult, server: Server, rps: float) -> RateBroken:
    """The finding for the failing rate, with the reasons of its failing launch."""
    outcomes = result.search.launch_outcomes(server, rps)
    missed = outcomes.count(False)
    is_shown = result.search.shown_broken_rps(server) == rps
    why = tuple(reasons(result, launch)) if (launch := result.failing_launch) else ()
    return RateBroken(
        rps=rps,
        launches=len(outcomes),
        broke=missed,
        which=_which_launches(missed, len(outcomes)),
        caveat=NONE_MISSED if not missed else "" if is_shown else TOO_FEW_MISSED,
        reasons=why if missed else (),
        usage=() if missed else why,
    )


def _which_launches(missed: int, count: int) -> str:
    """The launches that missed the target, as the subject of a sentence."""
    if 0 < missed == count:
        return "the only launch" if count == 1 else f"all {count} launches"
    return f"{missed or 'none'} of {counted(count, 'launch/launches')}"


# --- the running cost -----------------------------------------------------------------------------


class SlowStop(Finding):
    """After the load, with no request in flight, stopping took the whole graceful_timeout
    ({measured_s:count} s while measuring) in each of {launches:# launch/launches}: [[the
    recommended gunicorn.conf.py sets it to {grace_s:count} s instead of {default_s:count} s, which
    cuts off requests that take longer]][[{unchanged}]]."""

    launches: int
    grace_s: int | None  # in the file; None: not set
    default_s: int
    measured_s: int
    unchanged: str


class RunningCost(Answer):
    """[[It uses {cores:.2f} cores at {rate_rps:number} requests/s.]]
    [[ Memory: about {memory_bytes:bytes}.]][[ Start: {start_s:duration}.]]
    [[ Stop: {stop_s:duration}.]][[ {slow_stop}]]
    [[ With preload_app memory would be about {preload_bytes:bytes}, estimated from a load on
    {preload_workers:# worker}; memory that requests write to is no longer shared.]]"""

    question = "What does it cost?"

    rate_rps: float
    cores: float | None
    memory_bytes: float | None
    start_s: float | None
    stop_s: float | None
    slow_stop: SlowStop | None
    preload_bytes: float | None
    preload_workers: int | None


def running_cost(result: AdviseResult) -> RunningCost:
    needs, (preload_bytes, preload_workers) = result.needs, _preload_memory(result)
    return RunningCost(
        rate_rps=result.search.target_rps,
        cores=result.cores,
        memory_bytes=result.memory_bytes,
        start_s=needs.start_s if needs else None,
        stop_s=None if result.waits_at_stop else result.stop_s,
        # Another server's graceful stop lasts as long as its own option says
        slow_stop=_slow_stop(result)
        if result.waits_at_stop and not result.is_another_server
        else None,
        preload_bytes=preload_bytes,
        preload_workers=preload_workers,
    )


def _slow_stop(result: AdviseResult) -> SlowStop:
    is_set = "graceful_timeout" in result.study.request.config_sets
    unchanged = "your Gunicorn file sets it" if is_set else f"its default is {DEFAULT_GRACE_S} s"
    return SlowStop(
        launches=len(result.launches),
        grace_s=result.grace_s,
        default_s=DEFAULT_GRACE_S,
        measured_s=GRACE_S,
        unchanged="" if result.grace_s else unchanged,
    )


def _preload_memory(result: AdviseResult) -> tuple[int | None, int | None]:
    """The bytes with preload_app, and the number of workers it was measured with; None, None if it
    was not measured or saves too little."""
    memory = result.study.preload_needs.memory if result.study.preload_needs else None
    if memory and result.memory_bytes and result.server:
        memory_bytes = memory.total(result.server.workers)
        if memory_bytes < MAX_PRELOAD_SHARE * result.memory_bytes:
            return memory_bytes, memory.workers
    return None, None
