"""The conclusions of `workerlab ladder`, computed.

    what made it fast    the factors of all steps, the largest first; one whose interval includes 1
                         is not statistically significant
    round trips          whether each cache that is removed costs a trip that was not there before,
                         and whether each trip costs throughput
    limits               of each step (`limits`)
    Redis, sync          `why`
    services             which servers were used, in their own words

Where the numbers do not allow an answer, the answer says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.experiments.ladder.configurations import differences
from harness.experiments.ladder.limits import Limit, limit
from harness.experiments.ladder.steps import Ladder, Step
from harness.experiments.ladder.why import why_redis, why_sync
from harness.model import Finding
from harness.numbers.intervals import TRIALS, Ratio
from harness.server.service_check import name_of

TRIPS = 0.1  # round trips per request: fewer are not one for each


def findings(ladder: Ladder) -> tuple[Finding, ...]:
    return (
        _fast(ladder),
        _trips(ladder),
        _limits(ladder),
        why_redis(ladder),
        why_sync(ladder),
        _services(ladder),
    )


# --- what made it fast --------------------------------------------------------------------------


def _fast(ladder: Ladder) -> Finding:
    question = "ladder.question.fast"
    known = [(step, step.ratio) for step in ladder.conclusive if step.ratio]
    evidence = tuple(_against_the_one_before(step, ratio) for step, ratio in known)
    if not known:
        return Finding("ladder.fast.unmeasured", question=question)
    if all(ratio.differs is None for _, ratio in known):
        return Finding("ladder.fast.few", {"trials": TRIALS}, (), evidence, question)
    significant = sorted((one for one in known if one[1].differs), key=lambda one: one[1].value)
    cost = [_factor(step, ratio) for step, ratio in significant if ratio.value < 1]
    values = {
        "load": ladder.conclusive[0].load.text,
        "cost": cost,
        "same": [step.removed for step, ratio in known if cost and ratio.differs is False],
        "gain": [_factor(step, ratio) for step, ratio in significant if ratio.value > 1],
        "bound": [step.removed for step in ladder.conclusive if step.tool_bound],
    }
    code = "ladder.fast" if cost else "ladder.fast.nothing"
    return Finding(code, values, (), evidence, question)


def _factor(step: Step, ratio: Ratio) -> Finding:
    """How many times as fast it is with what was removed, or without where that is faster."""
    low, high = ratio.low or ratio.value, ratio.high or ratio.value
    ends = (ratio.value, low, high) if ratio.value > 1 else (1 / ratio.value, 1 / high, 1 / low)
    values = dict(zip(("factor", "low", "high"), ends, strict=True))
    return Finding("ladder.factor", {"removed": step.removed, **values})


def _against_the_one_before(step: Step, ratio: Ratio) -> Finding:
    interval = {"low": ratio.low, "high": ratio.high}
    values = {"removed": step.removed, "rps": step.rps, "ratio": ratio.value}
    return Finding("ladder.ratio", {**values, **interval})


# --- round trips --------------------------------------------------------------------------------


def _trips(ladder: Ladder) -> Finding:
    question = "ladder.question.trips"
    steps = [
        (step, values) for step in caching(ladder.conclusive or ladder.one_user)
        if None not in (values := trips(step)).values()
    ]  # fmt: skip
    if len(steps) < 2:
        return Finding("ladder.trips.unmeasured", question=question)
    evidence = tuple(_trips_of(ladder, step, values) for step, values in steps)
    each = tuple(Finding("ladder.trips.step", one.values) for one in evidence)
    farthest = [2 if one["storage"] > TRIPS else int(one["redis"] > TRIPS) for _, one in steps]
    if farthest != sorted(set(farthest)):
        return Finding("ladder.trips.no", {"steps": each}, (), evidence, question)
    values = {"steps": each, "cost": _cost([step for step, _ in steps])}
    return Finding("ladder.trips", values, (), evidence, question)


def caching(steps: Sequence[Step]) -> list[Step]:
    """The first ones, which differ in nothing but what is cached."""
    caches = {"local_cache", "cache"}
    return [
        step
        for step in steps
        if caches.issuperset(differences(steps[0].configuration, step.configuration))
    ]


def trips(step: Step) -> dict[str, Any]:
    """Per request, None where they were not counted."""
    names = {"redis": "redis_trips", "storage": "storage_trips"}
    return {name: step.metric("per_request", metric) for name, metric in names.items()}


def _trips_of(ladder: Ladder, step: Step, values: dict[str, Any]) -> Finding:
    alone = ladder.with_one_user(step)
    more = {
        "removed": step.removed,
        "storage_name": name_of(step.configuration.storage),
        "rps": step.rps,
        "response_s": alone and alone.mean("breakdown.response_s"),
    }
    return Finding("ladder.trips.evidence", {**values, **more})


def _cost(steps: Sequence[Step]) -> Finding:
    """Whether throughput falls with each."""
    known = [(step.removed, step.ratio) for step in steps[1:] if step.ratio]
    if any(ratio.differs is None for _, ratio in known):
        faster = [removed for removed, ratio in known if ratio.value >= 1]
        return Finding("ladder.trips.cost.few", {"faster": faster})
    same = [removed for removed, ratio in known if not (ratio.differs and ratio.value < 1)]
    if len(same) == len(known):
        return Finding("ladder.trips.cost.none")
    return Finding("ladder.trips.cost", {"same": same})


# --- limits, services ---------------------------------------------------------------------------


def _limits(ladder: Ladder) -> Finding:
    question, loads, evidence = "ladder.question.limits", [], []
    for load, steps in ladder.many_users.items():
        limits = [(step.removed, limit(step, ladder.cores)) for step in steps]
        values = {"load": load.text, "limits": tuple(_by_limit(limits))}
        loads.append(Finding("ladder.limits.load", values))
        evidence += [
            Finding("ladder.limits.why", {"load": load.text, "removed": removed, "why": one.why})
            for removed, one in limits
        ]
    if not loads:
        return Finding("ladder.limits.unmeasured", question=question)
    few = ladder.cores if ladder.cores is not None and ladder.cores <= 2 else None
    values = {"loads": tuple(loads), "few_cores": few}
    return Finding("ladder.limits", values, (), tuple(evidence), question)


def _by_limit(limits: Sequence[tuple[Finding, Limit]]) -> Iterable[Finding]:
    """Each limit once, with the steps that it limited."""
    names: dict[tuple[str, object], tuple[Finding, list[Finding]]] = {}
    for removed, one in limits:
        key = one.name.code, one.name.values.get("service")
        names.setdefault(key, (one.name, []))[1].append(removed)
    for name, steps in names.values():
        yield Finding("ladder.limits.of", {"limit": name, "steps": tuple(steps)})


def _services(ladder: Ladder) -> Finding:
    """MongoDB first: what calls itself so may be another server."""
    question = "ladder.question.services"
    servers = ladder.environment.get("services")
    if not isinstance(servers, dict) or not servers:
        return Finding("ladder.services.unknown", question=question)
    listed = [
        Finding("ladder.service", {"service": name_of(kind), "version": servers[kind]})
        for kind in sorted(servers, key=lambda kind: kind != "mongodb")
    ]
    if "mongodb" not in servers:
        left_out = (one for one in ladder.configurations if one.storage == "mongodb")
        why = next((one.why_not for one in left_out if one.why_not), None)
        listed.insert(
            0, Finding("ladder.service.none", {"service": name_of("mongodb"), "why": why})
        )
    return Finding("ladder.services", {"services": tuple(listed)}, question=question)
