"""What a run of `workerlab limits` shows: answers, each with the numbers it stands on. Pure.

Every answer is computed from the steps that were measured; where one is missing, its question is
left out or says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.experiments.limits.demonstrations import Demonstration
from harness.experiments.limits.mistake_findings import mistake_findings, mistake_tables
from harness.experiments.limits.rows import Seen, causes, seen, tables
from harness.experiments.points import Shot
from harness.model import Answer, Chart, Document, Series
from harness.numbers.units import format_bytes, format_duration, three_digits

TITLE = "How far one client goes, and what stops it"
NEAR = 1.15  # times the ideal: no worse than the wait for the last answers


def study(
    run: str,
    environment: Mapping[str, object],
    plan: Mapping[str, Any],
    shots: Sequence[Shot],
    shown: Sequence[Demonstration] = (),
) -> Document:
    steps = seen(tuple(shots), plan["steps"])
    questions: tuple[Callable[[list[Seen]], Answer | None], ...] = (
        _asynchronous,
        _unbounded,
        _bounded,
        _far,
        _memory,
        _bodies,
        _ports,
    )
    answers = [answer for question in questions if (answer := question(steps))]
    lost = [f"{step.key} was not measured: {step.shot.why_not}" for step in steps if not _ran(step)]
    lost += [f"{one.key} was not shown: {one.why_not}" for one in shown if one.why_not]
    return Document(
        run=run,
        kind="limits",
        title=TITLE,
        environment=environment,
        findings=(*answers, *mistake_findings(shown)),
        tables=(*tables(steps), *mistake_tables(shown)),
        charts=_charts(steps),
        notes=(*lost, *(f"left out: {why}" for why in plan.get("left_out", ()))),
        valid=not lost,
    )


def _ran(step: Seen) -> bool:
    return step.shot.measurement is not None


def _one(steps: list[Seen], start: str) -> Seen | None:
    """The first measured step whose key begins so."""
    return next((step for step in steps if step.key.startswith(start) and _ran(step)), None)


def _said(step: Seen) -> str:
    """A step and what it came to, as evidence."""
    over = "1 connection" if step.connections == 1 else f"{step.connections:,} connections"
    load = f"{step.requests:,} requests over {over} ({step.what})"
    ideal = f", ideal {format_duration(step.ideal_s)}" if step.ideal_s is not None else ""
    why = f": {causes(step.errors)}" if step.errors else ""
    took = format_duration(step.wall_s)
    return f"{step.shot.point.tool}, {load}: {took}{ideal}, {step.failed:,} failed{why}"


def _asynchronous(steps: list[Seen]) -> Answer | None:
    alone, together = _one(steps, "sync-"), _one(steps, "async-")
    if together is None or together.shot.server is None or not together.wall_s:
        return None
    longest, took = together.shot.server.service.max, format_duration(together.wall_s)
    answer = (
        f"{together.requests} requests at once took {took}, hardly longer than the longest answer"
        if longest is not None and together.wall_s <= NEAR * longest
        else f"{together.requests} requests at once took {took}"
    )
    answer += f" ({format_duration(longest)}). One after the other they "
    if alone is not None and alone.wall_s:
        times = three_digits(alone.wall_s / together.wall_s)
        answer += f"took {format_duration(alone.wall_s)}, {times} times as long."
    else:
        answer += f"would take {format_duration(together.shot.server.delays_s)}, all added up."
    evidence = [_said(step) for step in steps if step.chapter == "clients" and _ran(step)]
    return Answer("What does an asynchronous client gain?", answer, tuple(evidence))


def _unbounded(steps: list[Seen]) -> Answer | None:
    tried = [step for step in steps if step.key.startswith("unbounded-") and _ran(step)]
    if not tried:
        return None
    last = tried[-1]
    if last.errors.get("no_files"):
        answer = " ".join(last.explanations)
    else:
        answer = (
            f"{last.requests:,} requests at once did not run out of files here:"
            f" {last.failed:,} failed."
        )
    return Answer(
        "What stops a client without a bound?", answer, tuple(_said(step) for step in tried)
    )


def _bounded(steps: list[Seen]) -> Answer | None:
    ways = [step for step in steps if step.key.startswith(("raised-", "bounded-")) and _ran(step)]
    if not ways:
        return None
    good = [step.what for step in ways if step.failed == 0]
    bad = [f"{step.what} ({step.failed:,} failed)" for step in ways if step.failed]
    answer = f"Without a failure: {'; '.join(good)}." if good else "Nothing did here."
    if bad:
        answer += f" Not: {'; '.join(bad)}."
    raised, bounded = _one(ways, "raised-"), _one(ways, "bounded-")
    if raised and bounded and len(good) == 2:
        slower, faster = sorted((raised, bounded), key=lambda step: -(step.wall_s or 0.0))
        answer += (
            f" The {faster.connections:,} connections took {format_duration(faster.wall_s)}, the"
            f" {slower.connections:,} {format_duration(slower.wall_s)}."
        )
    return Answer("What avoids it?", answer, tuple(map(_said, ways)))


def _far(steps: list[Seen]) -> Answer | None:
    tried = [step for step in steps if step.chapter == "far" and _ran(step)]
    whole = [step for step in tried if step.failed == 0 and step.ratio is not None]
    if not whole:
        return None
    best = max(whole, key=lambda step: (step.requests, step.connections))
    assert best.ratio is not None
    near = "close to the best there is"
    if best.ratio > NEAR:
        near = "the client or the machine was slower"
    answer = (
        f"To {best.requests:,} requests over {best.connections:,} connections at least, none of"
        f" which failed, in {format_duration(best.wall_s)}: {three_digits(best.ratio)} times the"
        f" ideal {format_duration(best.ideal_s)}, {near}."
    )
    return Answer("How far does one client go?", answer, tuple(map(_said, tried)))


def _memory(steps: list[Seen]) -> Answer | None:
    known = [
        step
        for step in steps
        if step.key.startswith("kept-") and step.memory_bytes and step.failed == 0
    ]
    if not known:
        return None
    most = max(known, key=lambda step: step.requests)
    answer = (
        f"At most {format_bytes(most.memory_bytes)} for {most.requests:,} requests: their timings"
        " are counted in a histogram and their bodies thrown away once they are verified."
    )
    evidence = [f"{step.requests:,} requests: {format_bytes(step.memory_bytes)}" for step in known]
    return Answer("What does a million cost in memory?" if most.requests >= 1_000_000 else
                   "What do so many cost in memory?", answer, tuple(evidence))  # fmt: skip


def _bodies(steps: list[Seen]) -> Answer | None:
    step = _one(steps, "bodies-")
    if step is None or not step.wall_s:
        return None
    body_bytes = step.shot.point.target.body_bytes
    read = (step.requests - (step.failed or 0)) * body_bytes
    answer = (
        f"{step.requests - (step.failed or 0):,} bodies of {format_bytes(body_bytes)},"
        f" {format_bytes(read)} in all, came whole in {format_duration(step.wall_s)}"
        f" ({format_bytes(read / step.wall_s)} a second); {step.failed:,} failed."
    )
    return Answer("And with large bodies?", answer, (_said(step),))


def _ports(steps: list[Seen]) -> Answer | None:
    used_up = _one(steps, "ports-used-up")
    if used_up is None:
        return None
    ways = [step for step in steps if step.key in ("ports-sources", "ports-reuse") and _ran(step)]
    if used_up.errors.get("no_address"):
        answer = " ".join(used_up.explanations)
    else:
        answer = f"They did not run out here: {used_up.failed:,} failed."
    good = [step.what for step in ways if step.failed == 0]
    if good:
        answer += f" Without a failure: {'; '.join(good)}."
    evidence = tuple(map(_said, [used_up, *ways]))
    return Answer("What happens when the local ports run out?", answer, evidence)


def _charts(steps: list[Seen]) -> tuple[Chart, ...]:
    whole = sorted(
        (step for step in steps if step.failed == 0 and step.ideal_s and step.wall_s),
        key=lambda step: step.requests,
    )
    bounds = sorted({step.connections for step in whole})
    lines = []
    for bound in bounds:
        took = [(float(s.requests), s.wall_s or 0.0) for s in whole if s.connections == bound]
        lines.append(Series(f"{bound:,} connections", tuple(took)))
    ideal = [(float(step.requests), step.ideal_s or 0.0) for step in whole]
    lines.append(Series("ideal", tuple(ideal)))
    if not whole:
        return ()
    note = "Steps without a failure. Ideal: delays / connections, or the longest answer."
    title = "Time for so many requests"
    return (Chart(title, "requests", "seconds", tuple(lines), log=(True, True), note=note),)
