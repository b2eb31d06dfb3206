"""What a run of `workerlab limits` concludes, each answer with the steps it rests on. Pure.

Where a step was not measured, its question is left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from workerlab.experiments.document import answer
from workerlab.experiments.limits.results import Result
from workerlab.model import Finding

NEAR = 1.15  # times the ideal: no worse than the wait for the last answers
MILLION = 1_000_000
Results = Sequence[Result]


def findings(results: Results) -> tuple[Finding, ...]:
    """Of the steps that were measured."""
    known = [result for result in results if result.measured]
    return (
        *_asynchronous(known),
        *_unbounded(_named(known, "unbounded-")),
        *_bounded(_named(known, "raised-", "bounded-")),
        *_far([result for result in known if result.chapter == "far"]),
        *_aiohttp("aiohttp", _named(known, "aiohttp-")),
        *_memory([one for one in _named(known, "kept-") if one.memory_bytes and one.failed == 0]),
        *_bodies(_named(known, "bodies-")),
        *_kept(known),
        *_aiohttp("large", _named(known, "dropped-")),
        *_ports(_named(known, "ports-")),
        *_time_wait(_named(known, "time-wait-")),
        *_mistake(known, "missing_await"),
        *_mistake(known, "session_per_request"),
    )


def _named(results: Results, *starts: str) -> Results:
    return [result for result in results if result.name.startswith(starts)]


def _answer(
    question: str,
    code: str,
    values: Mapping[str, Any],
    basis: Results,
    evidence: Iterable[Finding] | None = None,
) -> Finding:
    evidence = (result.evidence for result in basis) if evidence is None else evidence
    keys = (result.data.trial.key for result in basis)
    return answer("limits", question, code, values, evidence, keys)


def _asynchronous(results: Results) -> Iterator[Finding]:
    basis = [result for result in results if result.chapter == "clients"]
    for together in _named(basis, "async-")[:1]:
        if together.data.null is None or not together.wall_s:
            return
        longest_s = together.data.null.service.max
        near = longest_s is not None and together.wall_s <= NEAR * longest_s
        values: dict[str, Any] = {
            "requests": together.load.requests,
            "took_s": together.wall_s,
            "near_s": longest_s if near else None,
            "longest_s": None if near else longest_s,
            "alone_s": None,
            "delays_s": together.data.null.delays_s,
        }
        for alone in _named(basis, "sync-")[:1]:
            if alone.wall_s:
                times = alone.wall_s / together.wall_s
                values |= {"alone_s": alone.wall_s, "times": times, "delays_s": None}
        yield _answer("asynchronous", "asynchronous", values, basis)


def _unbounded(tried: Results) -> Iterator[Finding]:
    for last in tried[-1:]:
        if last.errors.get("no_files"):
            yield _answer("unbounded", "causes", {"causes": last.causes}, tried)
        else:
            values = {"requests": last.load.requests, "failed": last.failed}
            yield _answer("unbounded", "enough_files", values, tried)


def _bounded(tried: Results) -> Iterator[Finding]:
    if not tried:
        return
    good = tuple(result.label for result in tried if result.failed == 0)
    bad = tuple(
        Finding("limits.step_failed", {"step": result.label, "failed": result.failed})
        for result in tried
        if result.failed
    )
    values: dict[str, Any] = {"good": good, "bad": bad}
    if len(good) == 2:
        slow, quick = sorted(tried, key=lambda result: -(result.wall_s or 0.0))
        values |= {"quick": quick.load.concurrency, "quick_s": quick.wall_s}
        values |= {"slow": slow.load.concurrency, "slow_s": slow.wall_s}
    yield _answer("bounded", "bounded" if good else "not_bounded", values, tried)


def _far(tried: Results) -> Iterator[Finding]:
    whole = [(one, one.ratio) for one in tried if one.failed == 0 and one.ratio is not None]
    if whole:
        best, ratio = max(whole, key=lambda one: (one[0].load.requests, one[0].load.concurrency))
        verdict = "limits.near_ideal" if ratio <= NEAR else "limits.above_ideal"
        values = {
            "requests": best.load.requests,
            "connections": best.load.concurrency,
            "took_s": best.wall_s,
            "ratio": ratio,
            "ideal_s": best.ideal_s,
            "verdict": Finding(verdict),
        }
        yield _answer("far", "far", values, tried)


def _aiohttp(question: str, tried: Results) -> Iterator[Finding]:
    """Of the largest without a failure: what its client did, and what that makes of a million."""
    whole = [result for result in tried if result.failed == 0 and result.wall_s]
    for result in sorted(whole, key=lambda result: result.load.requests)[-1:]:
        values = {
            **result.evidence.values,
            "body_bytes": result.null.body_bytes,
            "million_s": (result.wall_s or 0.0) * MILLION / result.load.requests,
            "delays_s": sum(result.null.delay_s) / 2 * MILLION / result.load.concurrency,
        }
        yield _answer(question, question, values, tried)


def _memory(known: Results) -> Iterator[Finding]:
    sizes = [{"requests": one.load.requests, "memory_bytes": one.memory_bytes} for one in known]
    if sizes:
        evidence = [Finding("limits.memory_of", size) for size in sizes]
        most = max(sizes, key=lambda size: size["requests"] or 0)
        yield _answer("memory", "memory", most, known, evidence)


def _bodies(tried: Results) -> Iterator[Finding]:
    for result in tried[:1]:
        if result.wall_s:
            bodies = result.load.requests - (result.failed or 0)
            total_bytes = bodies * result.null.body_bytes
            values = {
                "bodies": bodies,
                "body_bytes": result.null.body_bytes,
                "total_bytes": total_bytes,
                "took_s": result.wall_s,
                "bytes_per_s": total_bytes / result.wall_s,
                "failed": result.failed,
            }
            yield _answer("bodies", "bodies", values, [result])


def _kept(results: Results) -> Iterator[Finding]:
    """Memory per request of the clients that keep everything, and what that is of a million."""
    tasks, bodies = _named(results, "all-tasks-"), _named(results, "all-bodies-")
    per_task, per_body = _bytes_per_request(tasks), _bytes_per_request(bodies)
    if per_task and per_body:
        bounded = _named(results, "aiohttp-")[:1]
        peaks = [Finding("limits.memory_of_bounded", result.evidence.values) for result in bounded]
        values = {
            "task_bytes": per_task,
            "million_tasks_bytes": per_task * MILLION,
            "body_bytes": bodies[0].null.body_bytes,
            "kept_bytes": per_body,
            "million_bodies_bytes": per_body * MILLION,
            "bounded": peaks,
        }
        yield _answer("kept", "kept", values, [*tasks, *bodies, *bounded])


def _bytes_per_request(tried: Results) -> float | None:
    """By how much more the larger load took; None where not two are known, or it took no more."""
    sizes = sorted((each.load.requests, each.memory_bytes) for each in tried if each.memory_bytes)
    if len(sizes) != 2 or sizes[0][1] >= sizes[1][1]:
        return None
    (few, least_bytes), (many, most_bytes) = sizes
    return (most_bytes - least_bytes) / (many - few)


def _ports(tried: Results) -> Iterator[Finding]:
    for used_up in _named(tried, "ports-used-up")[:1]:
        others = _named(tried, "ports-sources", "ports-reuse")
        good = tuple(result.label for result in others if result.failed == 0)
        values = {"causes": used_up.causes, "failed": used_up.failed, "good": good}
        code = "ports" if used_up.errors.get("no_address") else "enough_ports"
        yield _answer("ports", code, values, [used_up, *others])


def _time_wait(tried: Results) -> Iterator[Finding]:
    for first in tried[:1]:
        sockets = (seen.client.get("TIME_WAIT", 0) for seen in first.data.observations.connections)
        no_address = first.errors.get("no_address")
        values = {
            **first.evidence.values,
            "no_address": no_address,
            "connected": first.data.null.connections if first.data.null else None,
            "time_wait": max(sockets, default=None),
            "good": tuple(result.label for result in tried[1:] if result.failed == 0),
        }
        yield _answer("time_wait", "time_wait" if no_address else "enough_ports", values, tried)


def mistake_values(result: Result) -> dict[str, Any]:
    """What its program and the server say of one form."""
    assert result.measured is not None
    counted = result.data.null
    return {
        **result.measured.details,
        "took_s": result.measured.duration_s,
        "requests": counted.requests if counted else None,
        "connections": counted.connections if counted else None,
    }


def _mistake(results: Results, mistake: str) -> Iterator[Finding]:
    forms = {one.what: one for one in results if one.tool.startswith(f"{mistake}-")}
    if not {"mistake", "cure"} <= forms.keys():
        return
    if mistake == "session_per_request" and not forms["cure"].wall_s:
        return  # its answer is how many times as long the other took
    wrong, right = (mistake_values(forms[form]) for form in ("mistake", "cure"))
    values = {**wrong, **{f"right_{name}": value for name, value in right.items()}}
    if right["took_s"]:
        values["times"] = wrong["took_s"] / right["took_s"]
    evidence = [Finding("limits.form", mistake_values(result)) for result in forms.values()]
    yield _answer(mistake, mistake, values, list(forms.values()), evidence)
