"""Two questions of the ladder with surprising answers.

Redis: the cost of a hit (round trip and deserialisation) is compared with the cost of the storage
access that it saves, both for a single user, whose requests never queue. The app's CPU per request
with and without Redis is compared too: it determines throughput where the app is the limit.

sync: in a closed loop of N users the mean response time is N / X for every class (Little 1961), so
the mean adds nothing to requests/s. The class determines the distribution: with one request at a
time, in order of arrival, all wait about equally long.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

from workerlab.experiments.ladder.steps import ConfigurationStep, Ladder, Steps, differences
from workerlab.finding import Answer, Finding, Inconclusive
from workerlab.numbers.intervals import TRIALS, Ratio, ratio
from workerlab.numbers.units import fill

SMALL_LOSS_RATIO = 0.8  # of requests/s after to before; at or above it, the loss is small
MIN_LARGER_RATIO = 1.1  # of the two factors; at or above it, one changed more
MAX_SIMILAR_RATIO = 1.25  # of the two factors; up to it, neither changed much more
MAX_LAUNCHES = 100  # more are not worth suggesting
HIT_PARTS = ("redis", "serialise")
MISS_PARTS = ("pool", "storage")


NO_REDIS_STEP = "no step differs from the one before in Redis alone"
NO_PERCENTILES = "the load tool reports no percentiles"
NO_INTERVALS = f"too few trials of each step for an interval (--trials {TRIALS})"


class StepPair(NamedTuple):
    """Two consecutive steps that differ in one setting."""

    before: ConfigurationStep
    after: ConfigurationStep


def pair_around(steps: Steps, setting: str) -> StepPair | None:
    """The two consecutive steps that differ in this setting alone; None if there are none."""
    for before, after in pairwise(steps):
        if differences(before.configuration, after.configuration) == (setting,):
            return StepPair(before, after)
    return None


# --- the CPU of a request -------------------------------------------------------------------------


class CpuOfRequest(Finding):
    """A request takes {before_s:duration} of the app's CPU time {before}, {after_s:duration}
    {after}."""

    before: str
    after: str
    before_s: float
    after_s: float


class CoresOfApp(Finding):
    """{load}, {configuration}: {rps:number} req/s, the app used {cores:.2f} cores"""

    load: str
    configuration: str
    rps: float
    cores: float


def cpu_of_request(pair: StepPair, before: str, after: str) -> CpuOfRequest | None:
    """`before`, `after`: the two steps, in words. None if the CPU time of either is unknown."""
    before_s, after_s = pair.before.app_cpu_s, pair.after.app_cpu_s
    if before_s is None or after_s is None:
        return None
    return CpuOfRequest(before, after, before_s, after_s)


def cores_of_app(step: ConfigurationStep) -> CoresOfApp:
    """The cores that the app used in a step whose CPU time is known."""
    return CoresOfApp(
        load=step.load.text,
        configuration=step.configuration.text,
        rps=step.rps,
        cores=step.mean("usage.server_cores") or 0.0,
    )


# --- Redis ----------------------------------------------------------------------------------------


class TimeOfParts(Finding):
    """{load}, {configuration}:[[ Redis {redis_s:duration},]][[ serialisation
    {serialise_s:duration},]][[ pool {pool_s:duration},]][[ storage {storage_s:duration}]]
    per request"""

    load: str
    configuration: str
    redis_s: float | None
    serialise_s: float | None
    pool_s: float | None
    storage_s: float | None


class RedisHit(Finding):
    """For a single user a hit costs {hit_s:duration} (round trip and serialisation), the storage
    {miss_s:duration}: Redis {effect} {difference_s:duration}
    [[; without it a response takes {response_s:duration}]]."""

    hit_s: float
    miss_s: float
    effect: Literal["saves", "adds"]
    difference_s: float
    response_s: float | None


SizeOfLoss = Literal["unknown", "few trials", "none", "gain", "little", "much"]


class RedisLoss(Answer):
    """[[{cost} ]]{hit}[[ {cpu}]]"""

    question = "Why does losing Redis cost so little?"

    size: SizeOfLoss
    change: Ratio | None  # requests/s without Redis over those with it
    cost: str
    hit: RedisHit | str
    cpu: CpuOfRequest | None


NO_SINGLE_USER = "What a hit saves is unknown: a single user was not measured in both steps."
NO_METRICS = "What a hit saves is unknown: the app published no metrics."
COSTS = {
    "few trials": f"Too few trials to say what it costs (--trials {TRIALS}).",
    "none": "The cost is not statistically significant here.",
    "gain": "It costs nothing here: throughput rose by {share:percent}.",
    "little": "Here it costs {share:percent} of the throughput.",
    "much": "Here it costs a lot: {share:percent} of the throughput.",
}  # by size


def why_redis(ladder: Ladder) -> RedisLoss | Inconclusive:
    pair = pair_around(ladder.conclusive, "cache")
    if pair is None:
        return RedisLoss.unanswered(NO_REDIS_STEP)
    change, size = pair.after.change, size_of_loss(pair.after.change)
    singles = [step for step in map(ladder.single_user_step, pair) if step]
    hit = redis_hit(*singles) if len(singles) == 2 else NO_SINGLE_USER
    parts = [time_of_parts(step) for step in singles if isinstance(hit, RedisHit)]
    cpu = cpu_of_request(pair, "with Redis", "without")
    cost = fill(COSTS[size], {"share": abs(1 - change.value)}) if change else ""
    return RedisLoss(
        size=size,
        change=change,
        cost=cost,
        hit=hit,
        cpu=cpu,
        evidence=(*parts, *(cores_of_app(step) for step in pair if cpu)),
    )


def size_of_loss(change: Ratio | None) -> SizeOfLoss:
    if change is None:
        return "unknown"
    if change.differs is None:
        return "few trials"
    if not change.differs:
        return "none"
    return "gain" if change.value >= 1 else "little" if change.value >= SMALL_LOSS_RATIO else "much"


def redis_hit(with_redis: ConfigurationStep, without_redis: ConfigurationStep) -> RedisHit | str:
    """What a hit costs a single user and what it saves, or why this is unknown."""
    hit_s, miss_s = with_redis.spent_s(HIT_PARTS), without_redis.spent_s(MISS_PARTS)
    if hit_s is None or miss_s is None:
        return NO_METRICS
    return RedisHit(
        hit_s=hit_s,
        miss_s=miss_s,
        effect="saves" if miss_s > hit_s else "adds",
        difference_s=abs(miss_s - hit_s),
        response_s=without_redis.mean("breakdown.response_s") or None,
    )


def time_of_parts(step: ConfigurationStep) -> TimeOfParts:
    return TimeOfParts(
        load=step.load.text,
        configuration=step.configuration.text,
        **{f"{part}_s": step.spent_s([part]) for part in (*HIT_PARTS, *MISS_PARTS)},
    )


# --- sync -----------------------------------------------------------------------------------------


class ResponseOfStep(Finding):
    """{configuration}:[[ mean {mean_s:duration},]] p50 {p50_s:duration}, p95 {p95_s:duration}"""

    configuration: str
    mean_s: float | None
    p50_s: float
    p95_s: float


class P95ChangesMore(Finding):
    """It does here: p95 changes by a factor of {p95.value:.2f}, throughput by
    {throughput.value:.2f}."""

    p95: Ratio  # sync over async
    throughput: Ratio


class P95ChangesNoMore(Finding):
    """Here {outcome}: p95 by a factor of {p95.value:.2f}, throughput by {throughput.value:.2f}."""

    outcome: Literal["throughput changes more", "neither changes much more than the other"]
    p95: Ratio
    throughput: Ratio


class LargerChangeUndecided(Finding):
    """Inconclusive: p95 changes by a factor of {p95.value:.2f} (95 % interval {p95.low:.2f} to
    {p95.high:.2f}), throughput by {throughput.value:.2f} ({throughput.low:.2f} to
    {throughput.high:.2f}).[[ If launches keep varying like this, about {launches} of each step
    would decide which changes more (--resume RUN --trials {launches}).]]
    [[ Not even {too_few_launches} launches of each step would decide it.]]"""

    p95: Ratio
    throughput: Ratio
    launches: int | None
    too_few_launches: int | None


LargerChange = P95ChangesMore | P95ChangesNoMore


class SyncEffect(Answer):
    """{larger_change}[[ {chance}]][[ {cpu}]] By Little's law the mean response time of
    {users:# user} is users / throughput: {mean_async_s:duration} async, {mean_sync_s:duration}
    sync. The class determines the distribution: p95 is {spread_async:.1f} times p50 with async,
    {spread_sync:.1f} times with sync. {order}"""

    question = "Why does going from async to sync change p95 more than throughput?"

    larger_change: LargerChange | LargerChangeUndecided
    chance: str
    cpu: CpuOfRequest | None
    users: int
    mean_async_s: float
    mean_sync_s: float
    spread_async: float  # p95 over p50
    spread_sync: float
    order: str


ORDER_SHOWS = (
    "sync serves one request at a time, in order of arrival, so all wait about equally long; async"
    " starts them all, and some overtake others."
)
ORDER_HIDDEN = (
    "sync serves in order of arrival, but that is not visible here: something else spreads the"
    " response times."
)


def why_sync(ladder: Ladder) -> SyncEffect | Inconclusive:
    pair = pair_around(ladder.conclusive, "worker_class")
    if pair is None:
        return SyncEffect.unanswered("no step differs from the one before in async alone")
    responses = tuple(response for step in pair if (response := response_of(step)))
    if len(responses) < 2:
        return SyncEffect.unanswered(NO_PERCENTILES)
    p95, throughput = pair.after.ratio(pair.before, "response.p95"), pair.after.change
    if throughput is None or throughput.differs is None or p95.differs is None:
        return SyncEffect.unanswered(NO_INTERVALS, responses)
    spread_async, spread_sync = (response.p95_s / response.p50_s for response in responses)
    cpu = cpu_of_request(pair, "with async", "with sync")
    return SyncEffect(
        larger_change=larger_change(p95, throughput) or undecided_change(pair, p95, throughput),
        chance=""
        if throughput.differs
        else "The difference in throughput is not statistically significant.",
        cpu=cpu,
        users=pair.after.load.users,
        mean_async_s=pair.before.load.users / pair.before.rps,
        mean_sync_s=pair.after.load.users / pair.after.rps,
        spread_async=spread_async,
        spread_sync=spread_sync,
        order=ORDER_SHOWS if spread_sync < spread_async else ORDER_HIDDEN,
        evidence=(*(cores_of_app(step) for step in pair if cpu), *responses),
    )


def response_of(step: ConfigurationStep) -> ResponseOfStep | None:
    """The response times of a step; None if the load tool reports no percentiles."""
    p50_s, p95_s = step.mean("response.p50"), step.mean("response.p95")
    if not p50_s or not p95_s:
        return None
    return ResponseOfStep(
        configuration=step.configuration.text,
        mean_s=step.mean("response.mean"),
        p50_s=p50_s,
        p95_s=p95_s,
    )


def larger_change(p95: Ratio, throughput: Ratio) -> LargerChange | None:
    """Compares ratios of sync to async as factors, regardless of direction. One changed more if
    the smallest factor in its interval is at least MIN_LARGER_RATIO times the largest in the
    other's. None if the intervals do not decide."""
    least_p95, most_p95 = factors_of(p95)
    least_throughput, most_throughput = factors_of(throughput)
    if least_p95 >= MIN_LARGER_RATIO * most_throughput:
        return P95ChangesMore(p95, throughput)
    if least_throughput >= MIN_LARGER_RATIO * most_p95:
        return P95ChangesNoMore("throughput changes more", p95, throughput)
    if max(most_p95 / least_throughput, most_throughput / least_p95) <= MAX_SIMILAR_RATIO:
        return P95ChangesNoMore("neither changes much more than the other", p95, throughput)
    return None


def undecided_change(pair: StepPair, p95: Ratio, throughput: Ratio) -> LargerChangeUndecided:
    """The undecided comparison, with the launches per step that would decide it (see `ratio`)."""
    p95s_before, p95s_after = ([p95 for p95 in step.values("response.p95") if p95] for step in pair)
    rates_before, rates_after = (step.rates for step in pair)

    def decides(launches: int) -> bool:
        expected_p95 = ratio(p95s_after, p95s_before, count=launches)
        expected_throughput = ratio(rates_after, rates_before, count=launches)
        return larger_change(expected_p95, expected_throughput) is not None

    larger_counts = range(min(len(rates_before), len(rates_after)) + 1, MAX_LAUNCHES + 1)
    launches = next(filter(decides, larger_counts), None)
    too_few = MAX_LAUNCHES if launches is None else None
    return LargerChangeUndecided(p95, throughput, launches, too_few)


def factors_of(change: Ratio) -> tuple[float, float]:
    """The smallest and the largest factor in its interval, both at least 1."""
    low, high = change.ends
    ends = sorted(max(end, 1 / end) for end in (low, high))
    return (1.0 if low <= 1 <= high else ends[0]), ends[1]
