"""From facts to results: one trial at a time, once the group's R0 and knee are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from harness.analyse.evidence import Evidence
from harness.analyse.facts import Facts
from harness.analyse.knee import Knee
from harness.analyse.verdict import Seen, verdict
from harness.analyse.waiting import waiting
from harness.analyse.words import seconds
from harness.model import CellResult
from harness.worker_classes import WORKER_CLASSES

SHORT_S = 0.1


def lone_s(trials: Iterable[Evidence]) -> float | None:
    """R0: the median response of lone requests over all trials of one server, in seconds.

    The readiness requests and, where the tool tells it, its own lone first one. A lone request
    holds a slot for as long as the server really does, longer than the app runs.
    """
    values: list[float] = []
    for trial in trials:
        if trial.record is None or trial.record.fault is not None:
            continue
        values.extend(trial.record.lone_s)
        if trial.measurement is not None and trial.measurement.lone_s is not None:
            values.append(trial.measurement.lone_s)
    values = [value for value in values if value > 0]
    return median(values) if values else None


def at_most(valid: Iterable[Facts]) -> float | None:
    """The longest R0 that the load allows, in seconds: X <= min(N, C)/R0, so R0 <= min(N, C)/X."""
    limits = [
        parallel(facts.concurrency, facts.evidence.slots_configured) / facts.steady.rps
        for facts in valid
        if facts.steady.rps
    ]
    return min(limits, default=None)


def slower_alone(lone: float, proven: float) -> str:
    return (
        f"lone requests took {seconds(lone)}, slower than under load, where no request holds a slot"
        f" for more than {seconds(proven)} on average: bound and knee are reckoned from the latter"
    )


def _short(facts: Facts) -> Sequence[str]:
    """Chance decides over what lasts a moment."""
    window_s = facts.steady.window_s
    if window_s is None or window_s >= SHORT_S:
        return ()
    return (f"the steady part lasted only {seconds(window_s)}: raise --rounds",)


def parallel(concurrency: int, slots: int | None) -> int:
    """Requests that can be served at once: min(N, slots)."""
    return concurrency if slots is None else min(concurrency, slots)


def invalid(evidence: Evidence, reason: str) -> CellResult:
    """A cell that is not believed: its numbers are unknown, its reason is not."""
    warnings = evidence.record.warnings if evidence.record else ()
    return CellResult(
        trial=evidence.trial,
        app=evidence.app,
        sleep_s=evidence.sleep_s,
        verdict="invalid",
        reason=reason,
        notes=warnings,
    )


def result(facts: Facts, lone: float, knee: Knee, notes: Sequence[str] = ()) -> CellResult:
    """A cell that is believed. lone: R0 in seconds; notes: on the whole group."""
    evidence, said = facts.evidence, facts.said
    slots = evidence.slots_configured
    bound = parallel(facts.concurrency, slots) / lone
    waits, missing = waiting(facts)
    word, reason = verdict(_seen(facts, lone, knee))
    return CellResult(
        trial=evidence.trial,
        app=evidence.app,
        sleep_s=evidence.sleep_s,
        verdict=word,
        reason=reason + _failures(facts),
        requests=facts.outcome.answered,
        failed=facts.outcome.failed,
        errors=facts.outcome.errors,
        slots_configured=slots,
        slots_measured=facts.open_at_once,
        throughput_rps=facts.throughput_rps,
        tool_rps=said.rps,
        bound_rps=bound,
        response=said.response,
        connect=said.connect,
        service=facts.service,
        waiting=waits,
        requests_per_worker=facts.per_worker,
        load_s=facts.load_s,
        ideal_s=_ideal_s(facts, lone),
        notes=(*facts.record.warnings, *said.notes, *missing, *_short(facts), *notes),
    )


def _seen(facts: Facts, lone: float, knee: Knee) -> Seen:
    cell = facts.evidence.trial.cell
    return Seen(
        connections=facts.concurrency,
        rps=facts.steady.rps or 0.0,
        lone_s=lone,
        service_s=facts.service.mean or 0.0,
        slots=facts.evidence.slots_configured,
        open_at_once=facts.open_at_once,
        per_worker=tuple(facts.per_worker.values()),
        deals=WORKER_CLASSES[cell.server.worker_class].accepts_first,
        knee=knee.connections,
        above_rps=knee.above(facts.concurrency),
        connect_s=facts.said.connect.max,
    )


def _ideal_s(facts: Facts, lone: float) -> float | None:
    """How long the load takes if no slot is ever idle; None for a tool that runs for a time."""
    if not facts.evidence.counted:
        return None
    together = parallel(facts.concurrency, facts.evidence.slots_configured)
    alone = 1 if facts.evidence.lone_first else 0
    return lone * (alone + -(-(facts.outcome.answered - alone) // together))


def _failures(facts: Facts) -> str:
    failed = facts.outcome.failed
    if not failed:
        return ""
    causes = ", ".join(f"{cause}: {count}" for cause, count in sorted(facts.outcome.errors.items()))
    return f"; {failed} failed" + (f" ({causes})" if causes else "")
