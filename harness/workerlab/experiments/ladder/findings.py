"""The conclusions of `workerlab ladder`.

    what made it fast    the factors of all steps, the largest first; one whose interval comes
                         within 3 % of 1 is not statistically significant
    round trips          whether each removed cache adds a round trip, and whether each round trip
                         costs throughput
    limits, users        what limited each step; the users served, if searched for (`limits`)
    Redis, sync          see `why`
    services             the servers used, as they identify themselves

An inconclusive answer names what is missing.
"""

from __future__ import annotations

from workerlab.experiments.ladder.limits import StepLimit, how_many_users, levels, limit
from workerlab.experiments.ladder.steps import ConfigurationStep, Ladder, Steps, differences
from workerlab.experiments.ladder.why import why_redis, why_sync
from workerlab.finding import Answer, Finding, Inconclusive
from workerlab.numbers.intervals import TRIALS, Ratio
from workerlab.numbers.units import fill, listed
from workerlab.server.service_check import name_of

MIN_TRIPS = 0.1  # round trips per request; with fewer, requests do not count as reaching a service
CACHES = {"local_cache", "cache"}
FEW_CORES = 2


NO_TWO_STEPS = "no two steps were measured under many users"
NO_INTERVAL = f"too few trials of each step for the interval of a factor (--trials {TRIALS})"
TRIPS_NOT_COUNTED = "round trips were counted in fewer than two steps"


def findings(ladder: Ladder) -> tuple[Answer, ...]:
    search = [how_many_users(ladder)] if levels(ladder) else []
    return (
        what_made_it_fast(ladder),
        cost_of_trips(ladder),
        limits_of_steps(ladder),
        *search,
        why_redis(ladder),
        why_sync(ladder),
        services_used(ladder),
    )


# --- what made it fast ----------------------------------------------------------------------------


class RateOfStep(Finding):
    """{removed} removed: {rps:number} req/s, {change:times} the previous step{change:interval}"""

    removed: str
    rps: float
    change: Ratio


class RemovalFactor(Finding):
    """{removed} {factor.value:.2f} ({factor.low:.2f} to {factor.high:.2f})"""

    removed: str
    factor: Ratio  # throughput with it over without it; the inverse if it is a gain


def removal_factor(removed: str, change: Ratio) -> RemovalFactor:
    """`change` must have an interval."""
    low, high = change.ends
    inverse = Ratio(1 / change.value, 1 / high, 1 / low)
    return RemovalFactor(removed, change if change.value > 1 else inverse)


class RemovalFactors(Answer):
    """With {load}, [[removal reduced throughput by these factors, the largest first:
    {factors:list}]][[{nothing}]].[[ Not statistically significant: {same:list}.]][[ Removal raised
    throughput by these factors: {gains:list}.]][[ Where the load tool was the limit (removed:
    {tool_bound:list}), throughput is a lower bound, and its factor does not describe the app.]]
    """

    question = "What made it fast?"

    load: str
    factors: tuple[RemovalFactor, ...]
    nothing: str
    same: tuple[str, ...]
    gains: tuple[RemovalFactor, ...]
    tool_bound: tuple[str, ...]


def what_made_it_fast(ladder: Ladder) -> RemovalFactors | Inconclusive:
    steps = ladder.conclusive
    changes = [(step, step.change) for step in steps if step.change]
    if not changes:
        return RemovalFactors.unanswered(NO_TWO_STEPS)
    evidence = tuple(RateOfStep(step.removed, step.rps, change) for step, change in changes)
    if all(change.differs is None for _, change in changes):
        return RemovalFactors.unanswered(NO_INTERVAL, evidence)
    significant = sorted(
        ((step.removed, change) for step, change in changes if change.differs),
        key=lambda pair: pair[1].value,
    )
    factors = tuple(removal_factor(*pair) for pair in significant if pair[1].value < 1)
    same = tuple(step.removed for step, change in changes if change.differs is False)
    return RemovalFactors(
        load=steps[0].load.text,
        factors=factors,
        nothing="" if factors else "no reduction of throughput is statistically significant",
        same=same if factors else (),
        gains=tuple(removal_factor(*pair) for pair in significant if pair[1].value > 1),
        tool_bound=tuple(step.removed for step in steps if step.generator_bound),
        evidence=evidence,
    )


# --- round trips ----------------------------------------------------------------------------------


class TripsOfStep(Finding):
    """{removed} removed: {redis:.3f} trips to Redis and {storage:.3f} to {storage_name} per request
    [[; response time of a single user {response_s:duration}]]"""

    removed: str
    redis: float  # per request
    storage: float
    storage_name: str
    rps: float
    response_s: float | None

    @property
    def farthest(self) -> int:
        """The farthest service that requests reach: 2 the storage, 1 Redis, 0 none."""
        return 2 if self.storage > MIN_TRIPS else int(self.redis > MIN_TRIPS)

    @property
    def brief(self) -> str:
        text = "{removed} removed, {redis:.2f} to Redis and {storage:.2f} to the storage"
        return fill(f"{text} ({{rps:number}} req/s)", self.values)


class CacheTrips(Answer):
    """[[{contradiction} ]]Round trips per request: {steps:; }.[[ {cost}]]"""

    question = (
        "Does each removed cache cost a round trip, and does each round trip cost throughput?"
    )

    contradiction: str
    steps: tuple[str, ...]
    cost: str  # of each trip, in throughput
    free: tuple[str, ...]  # removals without a significant loss


NOT_FARTHER = "No: not every step reaches a more distant service than the one before."
NO_LOSS = "No loss of throughput is statistically significant."
COST_UNKNOWN = f"What each costs is unknown: too few trials for an interval (--trials {TRIALS})."


def cost_of_trips(ladder: Ladder) -> CacheTrips | Inconclusive:
    """Compares the first steps, which differ only in their caches."""
    steps = ladder.conclusive or ladder.one_user
    caching = [
        (step, trips)
        for step in steps
        if CACHES.issuperset(differences(steps[0].configuration, step.configuration))
        and (trips := trips_of(step, ladder)) is not None
    ]
    if len(caching) < 2:
        return CacheTrips.unanswered(TRIPS_NOT_COUNTED)
    evidence = tuple(trips for _, trips in caching)
    farthest = [trips.farthest for trips in evidence]
    contradiction = "" if farthest == sorted(set(farthest)) else NOT_FARTHER
    cost, free = ("", ()) if contradiction else trip_cost([step for step, _ in caching])
    return CacheTrips(
        contradiction=contradiction,
        steps=tuple(trips.brief for trips in evidence),
        cost=cost,
        free=free,
        evidence=evidence,
    )


def trips_of(step: ConfigurationStep, ladder: Ladder) -> TripsOfStep | None:
    """The round trips of a step; None if they were not counted."""
    redis, storage = (
        step.mean(f"app_metrics.per_request.{to}_trips") for to in ("redis", "storage")
    )
    if redis is None or storage is None:
        return None
    single_user = ladder.single_user_step(step)
    return TripsOfStep(
        removed=step.removed,
        redis=redis,
        storage=storage,
        storage_name=step.configuration.service(step.configuration.storage),
        rps=step.rps,
        response_s=single_user.mean("breakdown.response_s") if single_user else None,
    )


def trip_cost(steps: Steps) -> tuple[str, tuple[str, ...]]:
    """A sentence on what each round trip costs, and the removals without a significant loss."""
    changes = [(step.removed, step.change) for step in steps[1:] if step.change]
    if any(change.differs is None for _, change in changes):
        return COST_UNKNOWN, ()
    free = tuple(
        removed for removed, change in changes if not (change.differs and change.value < 1)
    )
    if len(free) == len(changes):
        return NO_LOSS, free
    template = "Each costs throughput[[, except {free:list}, where no loss is statistically"
    return fill(f"{template} significant]].", {"free": free}), free


# --- limits ---------------------------------------------------------------------------------------


class LimitOfStep(Finding):
    """{load}, {removed} removed: {limit}"""

    load: str
    removed: str
    limit: StepLimit


class LimitsUnderLoad(Finding):
    """Limits with {load}: {limits:; }."""

    load: str
    limits: tuple[str, ...]  # each with the steps it limited


class LimitsOfSteps(Answer):
    """{loads: }[[ App, storage and load tool compete for {few_cores:# core}.]]"""

    question = "What limited each step: load tool, storage, app or machine?"

    loads: tuple[LimitsUnderLoad, ...]
    few_cores: int | None


def limits_of_steps(ladder: Ladder) -> LimitsOfSteps | Inconclusive:
    loads, evidence = [], []
    for load, steps in ladder.many_users.items():
        step_limits = [
            LimitOfStep(load.text, step.removed, limit(step, ladder.cores)) for step in steps
        ]
        evidence += step_limits
        removals: dict[str, list[str]] = {}
        for step in step_limits:
            removals.setdefault(step.limit.name, []).append(step.removed)
        texts = (f"{name} (removed: {listed(removed)})" for name, removed in removals.items())
        loads.append(LimitsUnderLoad(load.text, tuple(texts)))
    if not loads:
        return LimitsOfSteps.unanswered("no step was measured under many users")
    few_cores = ladder.cores is not None and ladder.cores <= FEW_CORES
    return LimitsOfSteps(
        loads=tuple(loads), few_cores=ladder.cores if few_cores else None, evidence=tuple(evidence)
    )


# --- services -------------------------------------------------------------------------------------


class ServicesUsed(Answer):
    """{services:; }."""

    question = "Which servers were used as storage and cache?"

    services: tuple[str, ...]


def services_used(ladder: Ladder) -> ServicesUsed | Inconclusive:
    """Lists MongoDB first: a compatible server may have been used instead."""
    versions = ladder.environment.get("services")
    if not isinstance(versions, dict) or not versions:
        return ServicesUsed.unanswered("they are not recorded in the run")
    kinds = sorted(versions, key=lambda kind: kind != "mongodb")
    services = [f"{name_of(kind)}: {versions[kind]}" for kind in kinds]
    if "mongodb" not in versions:
        reasons = (step.why_not for step in ladder.configurations if step.storage == "mongodb")
        values = {"name": name_of("mongodb"), "why": next(filter(None, reasons), "")}
        services.insert(0, fill("{name}: not used[[ ({why})]]", values))
    return ServicesUsed(tuple(services))
