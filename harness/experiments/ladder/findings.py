"""The conclusions of `workerlab ladder`, computed.

    what made it fast    factors of all rungs, the largest first; one whose interval includes 1 is
                         no difference
    round trips          whether each cache that goes costs a trip that was not there before, and
                         whether each trip costs throughput
    limits               who set them, rung by rung (`ladder_limits`)
    Redis, sync          in `ladder_why`
    who answered         the components, in their own words

Where the numbers do not allow an answer, the answer says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.experiments.ladder.limits import KIND, grouped, limit
from harness.experiments.ladder.steps import Factor, Ladder, Step, held_up
from harness.experiments.ladder.why import why_redis, why_sync
from harness.experiments.words import amount, listed
from harness.model import Answer
from harness.numbers.units import format_duration

CANNOT = "Cannot be said"
TOLD = 0.1  # round trips per request that are no chance


def findings(ladder: Ladder) -> tuple[Answer, ...]:
    return (
        _fast(ladder),
        _trips(ladder),
        _limits(ladder),
        why_redis(ladder),
        why_sync(ladder),
        _answered(ladder),
    )


# --- what made it fast --------------------------------------------------------------------------


def _fast(ladder: Ladder) -> Answer:
    question = "What made it fast?"
    steps = [step for step in ladder.crowd if step.factor]
    if not steps:
        return Answer(question, f"{CANNOT}: no two rungs were measured under many users.")
    known = [(step, step.factor) for step in steps if step.factor]
    evidence = tuple(_told(step, factor) for step, factor in known)
    if not any(factor.known for _, factor in known):
        least = "a factor has no interval, as each rung was launched too few times (--trials 3)."
        return Answer(question, f"{CANNOT}: {least}", evidence)
    told = sorted((one for one in known if one[1].differs), key=lambda one: one[1].ratio)
    same = [step.name for step, factor in known if factor.known and not factor.differs]
    cost = [f"{step.name} {_times(factor)}" for step, factor in told if factor.ratio < 1]
    gain = [f"{step.name} {_times(factor)}" for step, factor in told if factor.ratio > 1]
    answer = f"With {ladder.crowd[0].load.words}"
    if cost:
        answer += f", requests/s with it over those without, the largest first: {listed(cost)}."
    else:
        answer += " nothing made it faster that can be told from chance."
    if same and cost:
        answer += f" No difference that can be told from chance: {listed(same)}."
    if gain:
        answer += f" Faster without it than with it: {listed(gain)}."
    if bound := [step.name for step in ladder.crowd if held_up(step)]:
        answer += (
            f" Where the load tool was the limit (removed: {listed(bound)}), requests/s are a lower"
            " bound, and the factors beside it are not the app's."
        )
    return Answer(question, answer, evidence)


def _times(factor: Factor) -> str:
    """How many times as fast it is with what was removed, or without where that is faster."""
    ends = (factor.ratio, factor.low or factor.ratio, factor.high or factor.ratio)
    ratio, low, high = ends if factor.ratio > 1 else (1 / ends[0], 1 / ends[2], 1 / ends[1])
    return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def _told(step: Step, factor: Factor) -> str:
    said = f"removed {step.name}: {amount(step.rps)} requests/s, {factor.ratio:.2f} times the rung"
    said += " before"
    if factor.low is None or factor.high is None:
        return f"{said}, without an interval"
    return f"{said}, 95 % interval {factor.low:.2f} to {factor.high:.2f}"


# --- round trips --------------------------------------------------------------------------------


def _trips(ladder: Ladder) -> Answer:
    question = "Does each removed cache cost a round trip, and does each round trip cost?"
    rungs = caching(ladder.crowd or ladder.alone)
    counted = [(step, redis_trips(step), storage_trips(step)) for step in rungs]
    known = [(s, redis, stored) for s, redis, stored in counted if None not in (redis, stored)]
    if len(known) < 2:
        return Answer(question, f"{CANNOT}: round trips were counted on fewer than two rungs.")
    said = [
        f"{_one_kind(redis or 0.0, stored or 0.0)} ({amount(step.rps)} requests/s)"
        for step, redis, stored in known
    ]
    kinds = [_farthest(redis or 0.0, stored or 0.0) for _, redis, stored in known]
    evidence = tuple(
        f"removed {step.name}: {redis:.3f} trips to Redis and {stored:.3f} to"
        f" {KIND[step.rung.storage]} per request; {_response(ladder, step)}"
        for step, redis, stored in known
    )
    if kinds != sorted(kinds) or len(set(kinds)) < len(kinds):
        answer = f"No: each rung does not ask farther away than the one before: {_arrows(said)}."
        return Answer(question, answer, evidence)
    answer = f"Round trips per request go {_arrows(said)}. {_cost([step for step, _, _ in known])}"
    return Answer(question, answer, evidence)


def caching(steps: Sequence[Step]) -> list[Step]:
    """The first ones, which differ in nothing but what is cached."""
    if not steps:
        return []
    first = steps[0].rung
    return [
        step
        for step in steps
        if (step.rung.settings, step.rung.storage) == (first.settings, first.storage)
    ]


def redis_trips(step: Step) -> float | None:
    return step.per_request("redis_trips")


def storage_trips(step: Step) -> float | None:
    return step.per_request("storage_trips")


def _farthest(redis: float, stored: float) -> int:
    """0: nowhere, 1: to Redis, 2: to the storage."""
    return 2 if stored > TOLD else 1 if redis > TOLD else 0


def _one_kind(redis: float, stored: float) -> str:
    said = [f"{n:.2f} to {where}" for n, where in ((redis, "Redis"), (stored, "the storage"))]
    told = [one for one, n in zip(said, (redis, stored), strict=True) if n > TOLD]
    return " and ".join(told) or f"{redis + stored:.2f}"


def _arrows(said: Sequence[str]) -> str:
    return ", then ".join(said)


def _response(ladder: Ladder, step: Step) -> str:
    twin = ladder.twin(step)
    mean_s = None if twin is None else twin.mean(lambda cell: cell.breakdown.response_s)
    return f"a lone user's response {format_duration(mean_s)}"


def _cost(steps: Sequence[Step]) -> str:
    """Whether throughput falls with each."""
    factors = [step.factor for step in steps[1:] if step.factor]
    if any(not factor.known for factor in factors):
        faster = [s.name for s in steps[1:] if s.factor and s.factor.ratio >= 1]
        said = f"All came out slower but {listed(faster)}" if faster else "Each came out slower"
        return f"{said}; too few launches for an interval."
    same = [s.name for s in steps[1:] if s.factor and not (s.factor.differs and s.factor.ratio < 1)]
    if not same:
        return "Each costs throughput beyond chance."
    if len(same) == len(factors):
        return "No loss of throughput can be told from chance."
    return f"Each costs throughput, but of {listed(same)} no loss can be told from chance."


# --- limits -------------------------------------------------------------------------------------


def _limits(ladder: Ladder) -> Answer:
    question = "Who was the limit of each rung: load tool, storage, app or machine?"
    answers, evidence = [], []
    for load, steps in ladder.crowds.items():
        found = [(step.name, limit(step, ladder.cores)) for step in steps]
        answers.append(f"With {load.words}, by what was removed last: {grouped(found)}.")
        evidence += [f"{load.words}, removed {name}: {one.why}" for name, one in found]
    if not answers:
        return Answer(question, f"{CANNOT}: no rung was measured under many users.")
    if ladder.cores is not None and ladder.cores <= 2:
        answers.append("On so few cores app, storage and load tool take them from each other.")
    return Answer(question, " ".join(answers), tuple(evidence))


# --- who answered -------------------------------------------------------------------------------


def _answered(ladder: Ladder) -> Answer:
    question = "Who answered as each storage and cache?"
    said = ladder.environment.get("components")
    known = {str(kind): str(says) for kind, says in said.items()} if isinstance(
        said, Mapping
    ) else {}  # fmt: skip
    evidence = tuple(f"{KIND.get(kind, kind)}: {says}" for kind, says in known.items())
    if not known:
        return Answer(question, f"{CANNOT}: the run does not say it.")
    if "mongodb" in known:
        answer = f"As MongoDB: {known['mongodb']}."
    else:
        why = next((r.why_not for r in ladder.rungs if r.storage == "mongodb" and r.why_not), "")
        answer = "As MongoDB nobody" + (f": {why}." if why else ", no rung stands on it.")
    others = [f"as {KIND.get(kind, kind)}: {says}" for kind, says in known.items()
              if kind != "mongodb"]  # fmt: skip
    if others:
        answer += f" Others: {'; '.join(others)}."
    return Answer(question, answer, evidence)
