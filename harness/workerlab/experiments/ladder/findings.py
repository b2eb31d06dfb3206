"""The conclusions of `workerlab ladder`, computed.

    what made it fast    the factors of all steps, the largest first; one whose interval includes 1
                         is not statistically significant
    round trips          whether each cache that is removed costs a trip that was not there before,
                         and whether each trip costs throughput
    limits, users        of each step; how many, where that was searched for (`limits`)
    Redis, sync          `why`
    services             which servers were used, in their own words

Where the numbers do not allow an answer, the answer says what is missing.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from workerlab.experiments.document import answer
from workerlab.experiments.ladder.configurations import differences
from workerlab.experiments.ladder.limits import how_many_users, levels, limit
from workerlab.experiments.ladder.steps import Ladder, Step
from workerlab.experiments.ladder.why import why_redis, why_sync
from workerlab.model import Finding
from workerlab.numbers.intervals import TRIALS, Ratio
from workerlab.server.service_check import name_of

TRIPS = 0.1  # round trips per request: fewer are not one for each
CACHES = {"local_cache", "cache"}

_answer = partial(answer, "ladder")


def findings(ladder: Ladder) -> tuple[Finding, ...]:
    search = (how_many_users,) if levels(ladder) else ()
    questions = (_fast, _trips, _limits, *search, why_redis, why_sync, _services)
    return tuple(question(ladder) for question in questions)


def _fast(ladder: Ladder) -> Finding:
    known = [(step, step.ratio) for step in ladder.conclusive if step.ratio]
    if not known:
        return _answer("fast", "fast.unmeasured")
    evidence = [
        Finding("ladder.ratio", {
            "removed": step.removed, "rps": step.rps,
            "ratio": ratio.value, "low": ratio.low, "high": ratio.high,
        })
        for step, ratio in known
    ]  # fmt: skip
    if all(ratio.differs is None for _, ratio in known):
        return _answer("fast", "fast.few", {"trials": TRIALS}, evidence)
    significant = sorted((one for one in known if one[1].differs), key=lambda one: one[1].value)
    cost = [_factor(step, ratio) for step, ratio in significant if ratio.value < 1]
    values = {
        "load": ladder.conclusive[0].load.text,
        "cost": cost,
        "same": [step.removed for step, ratio in known if cost and ratio.differs is False],
        "gain": [_factor(step, ratio) for step, ratio in significant if ratio.value > 1],
        "bound": [step.removed for step in ladder.conclusive if step.tool_bound],
    }
    return _answer("fast", "fast" if cost else "fast.nothing", values, evidence)


def _factor(step: Step, ratio: Ratio) -> Finding:
    """How many times as fast it is with what was removed, or without where that is faster."""
    low, high = ratio.low or ratio.value, ratio.high or ratio.value
    ends = (ratio.value, low, high) if ratio.value > 1 else (1 / ratio.value, 1 / high, 1 / low)
    values = dict(zip(("factor", "low", "high"), ends, strict=True))
    return Finding("ladder.factor", {"removed": step.removed, **values})


def _trips(ladder: Ladder) -> Finding:
    """Of the first steps, which differ in nothing but what is cached."""
    steps = ladder.conclusive or ladder.one_user
    steps = tuple(
        step
        for step in steps
        if CACHES.issuperset(differences(steps[0].configuration, step.configuration))
        and None not in _trips_of(step).values()
    )
    if len(steps) < 2:
        return _answer("trips", "trips.unmeasured")
    evidence = []
    for step in steps:
        alone, one = ladder.with_one_user(step), step.configuration
        storage = one.service(one.storage)
        response_s = alone and alone.mean("breakdown.response_s")
        more = {"removed": step.removed, "storage_name": storage, "rps": step.rps}
        values = {**_trips_of(step), **more, "response_s": response_s}
        evidence.append(Finding("ladder.trips.evidence", values))
    each = tuple(Finding("ladder.trips.step", one.values) for one in evidence)
    farthest = [
        2 if one.values["storage"] > TRIPS else int(one.values["redis"] > TRIPS) for one in each
    ]
    if farthest != sorted(set(farthest)):
        return _answer("trips", "trips.no", {"steps": each}, evidence)
    return _answer("trips", "trips", {"steps": each, "cost": _cost(steps)}, evidence)


def _trips_of(step: Step) -> Mapping[str, Any]:
    """Per request, None where they were not counted."""
    names = ("redis", "storage")
    return {name: step.metric("per_request", f"{name}_trips") for name in names}


def _cost(steps: Sequence[Step]) -> Finding:
    """Whether throughput falls with each."""
    known = [(step.removed, step.ratio) for step in steps[1:] if step.ratio]
    if any(ratio.differs is None for _, ratio in known):
        return Finding("ladder.trips.cost.few", {"trials": TRIALS})
    same = [removed for removed, ratio in known if not (ratio.differs and ratio.value < 1)]
    if len(same) == len(known):
        return Finding("ladder.trips.cost.none")
    return Finding("ladder.trips.cost", {"same": same})


def _limits(ladder: Ladder) -> Finding:
    loads, evidence = [], []
    for load, steps in ladder.many_users.items():
        # Each limit once, with the steps that it limited
        names: dict[tuple[str, object], tuple[Finding, list[Finding]]] = {}
        for step in steps:
            name, why = limit(step, ladder.cores)
            key = name.code, name.values.get("service")
            names.setdefault(key, (name, []))[1].append(step.removed)
            values = {"load": load.text, "removed": step.removed, "why": why}
            evidence.append(Finding("ladder.limits.why", values))
        limits = tuple(
            Finding("ladder.limits.of", {"limit": name, "steps": tuple(limited)})
            for name, limited in names.values()
        )
        loads.append(Finding("ladder.limits.load", {"load": load.text, "limits": limits}))
    if not loads:
        return _answer("limits", "limits.unmeasured")
    few = ladder.cores if ladder.cores is not None and ladder.cores <= 2 else None
    return _answer("limits", "limits", {"loads": tuple(loads), "few_cores": few}, evidence)


def _services(ladder: Ladder) -> Finding:
    """MongoDB first: what calls itself so may be another server."""
    servers = ladder.environment.get("services")
    if not isinstance(servers, dict) or not servers:
        return _answer("services", "services.unknown")
    listed = [
        Finding("ladder.service", {"service": name_of(kind), "version": servers[kind]})
        for kind in sorted(servers, key=lambda kind: kind != "mongodb")
    ]
    if "mongodb" not in servers:
        left_out = (one.why_not for one in ladder.configurations if one.storage == "mongodb")
        values = {"service": name_of("mongodb"), "why": next(filter(None, left_out), None)}
        listed.insert(0, Finding("ladder.service.none", values))
    return _answer("services", "services", {"services": tuple(listed)})
