"""What a run of `workerlab limits` concludes, each answer with the steps it rests on. Pure.

Where a step was not measured, its question is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from harness.experiments.document import answer
from harness.experiments.limits.results import Result
from harness.model import Finding

NEAR = 1.15  # times the ideal: no worse than the wait for the last answers
Results = Sequence[Result]


def findings(results: Results) -> tuple[Finding, ...]:
    """Of the steps that were measured."""
    measured = [result for result in results if result.measured]
    questions: tuple[Callable[[Results], Finding | None], ...] = (
        _asynchronous, _unbounded, _bounded, _far, _memory, _bodies, _ports,
        partial(_mistake, mistake="missing_await"),
        partial(_mistake, mistake="session_per_request"),
    )  # fmt: skip
    answers = (question(measured) for question in questions)
    return tuple(one for one in answers if one is not None)


def _one(results: Results, start: str) -> Result | None:
    return next((result for result in results if result.name.startswith(start)), None)


def _answer(
    question: str,
    code: str,
    values: dict[str, Any],
    basis: Results,
    evidence: Iterable[Finding] | None = None,
) -> Finding:
    evidence = (result.evidence for result in basis) if evidence is None else evidence
    keys = (result.data.trial.key for result in basis)
    return answer("limits", question, code, values, evidence, keys)


def _asynchronous(results: Results) -> Finding | None:
    alone, together = _one(results, "sync-"), _one(results, "async-")
    if together is None or together.data.null is None or not together.wall_s:
        return None
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
    if alone is not None and alone.wall_s:
        times = alone.wall_s / together.wall_s
        values |= {"alone_s": alone.wall_s, "times": times, "delays_s": None}
    basis = [result for result in results if result.chapter == "clients"]
    return _answer("asynchronous", "asynchronous", values, basis)


def _unbounded(results: Results) -> Finding | None:
    tried = [result for result in results if result.name.startswith("unbounded-")]
    if not tried:
        return None
    last = tried[-1]
    if last.errors.get("no_files"):
        return _answer("unbounded", "causes", {"causes": last.causes}, tried)
    values = {"requests": last.load.requests, "failed": last.failed}
    return _answer("unbounded", "enough_files", values, tried)


def _bounded(results: Results) -> Finding | None:
    tried = [result for result in results if result.name.startswith(("raised-", "bounded-"))]
    if not tried:
        return None
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
    return _answer("bounded", "bounded" if good else "not_bounded", values, tried)


def _far(results: Results) -> Finding | None:
    tried = [result for result in results if result.chapter == "far"]
    whole = [result for result in tried if result.failed == 0 and result.ratio is not None]
    if not whole:
        return None
    best = max(whole, key=lambda result: (result.load.requests, result.load.concurrency))
    near = best.ratio is not None and best.ratio <= NEAR
    values = {
        "requests": best.load.requests,
        "connections": best.load.concurrency,
        "took_s": best.wall_s,
        "ratio": best.ratio,
        "ideal_s": best.ideal_s,
        "verdict": Finding("limits.near_ideal" if near else "limits.above_ideal"),
    }
    return _answer("far", "far", values, tried)


def _memory(results: Results) -> Finding | None:
    known = [
        result
        for result in results
        if result.name.startswith("kept-") and result.memory_bytes and result.failed == 0
    ]
    if not known:
        return None
    sizes = [
        {"requests": result.load.requests, "memory_bytes": result.memory_bytes} for result in known
    ]
    evidence = [Finding("limits.memory_of", size) for size in sizes]
    most = max(sizes, key=lambda size: size["requests"] or 0)
    return _answer("memory", "memory", most, known, evidence)


def _bodies(results: Results) -> Finding | None:
    result = _one(results, "bodies-")
    if result is None or not result.wall_s:
        return None
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
    return _answer("bodies", "bodies", values, [result])


def _ports(results: Results) -> Finding | None:
    used_up = _one(results, "ports-used-up")
    if used_up is None:
        return None
    others = [result for result in results if result.name in ("ports-sources", "ports-reuse")]
    good = tuple(result.label for result in others if result.failed == 0)
    values = {"causes": used_up.causes, "failed": used_up.failed, "good": good}
    code = "ports" if used_up.errors.get("no_address") else "enough_ports"
    return _answer("ports", code, values, [used_up, *others])


# --- the classic mistakes -----------------------------------------------------------------------


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


def _mistake(results: Results, mistake: str) -> Finding | None:
    forms = {one.what: one for one in results if one.tool.startswith(f"{mistake}-")}
    if not {"mistake", "cure"} <= forms.keys():
        return None
    if mistake == "session_per_request" and not forms["cure"].wall_s:
        return None  # its answer is how many times as long the other took
    wrong, right = (mistake_values(forms[form]) for form in ("mistake", "cure"))
    values = {**wrong, **{f"right_{name}": value for name, value in right.items()}}
    if right["took_s"]:
        values["times"] = wrong["took_s"] / right["took_s"]
    evidence = [Finding("limits.form", mistake_values(result)) for result in forms.values()]
    return _answer(mistake, mistake, values, list(forms.values()), evidence)
