"""From facts to results: one trial at a time, once the group's R0 and knee are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.analysis.app_metrics import parts
from harness.analysis.breakdown import split
from harness.analysis.case import Case
from harness.analysis.diagnosis import diagnose
from harness.analysis.evidence import TrialData
from harness.analysis.facts import Facts
from harness.analysis.handshakes import (
    NAMESPACE,
    handshakes,
    late_connects,
    what_was_counted,
)
from harness.analysis.keepalive import kept_connections, split_prediction
from harness.analysis.knee import Knee
from harness.analysis.load_tool import BOUND, Judgement, in_flight, lower_bound
from harness.analysis.loops import one_at_a_time
from harness.analysis.r0 import parallel
from harness.analysis.samples import missing_notes
from harness.analysis.shown import shown
from harness.analysis.verdict import Seen, verdict
from harness.analysis.waiting import waiting
from harness.model import CellResult
from harness.numbers.words import seconds

SHORT_S = 0.1


def invalid(evidence: TrialData, reason: str) -> CellResult:
    """A cell that is not believed: its numbers are unknown, its reason is not."""
    warnings = evidence.record.warnings if evidence.record else ()
    return CellResult(
        trial=evidence.trial,
        app=evidence.app,
        sleep_s=evidence.sleep_s,
        verdict="invalid",
        reason=reason,
        worker_class=evidence.worker_class,
        notes=warnings,
    )


def result(
    facts: Facts, lone: float, knee: Knee, judged: Judgement, notes: Sequence[str] = ()
) -> CellResult:
    """A cell that is believed. lone: R0 in seconds; judged: of the load tool; notes: on the whole
    group."""
    evidence, said = facts.evidence, facts.said
    waits, missing = waiting(facts)
    word, reason = verdict(_seen(facts, lone, knee))
    if judged.bound:
        word, reason = BOUND, lower_bound(facts.tool, facts.steady.rps or 0.0, judged.reasons)
    simple = shown(facts, word, reason)
    believed = replace(
        simple,
        bound_rps=parallel(facts.concurrency, evidence.slots_configured) / lone,
        waiting=waits,
        ideal_s=_ideal_s(facts, lone),
        generator_bound=judged.bound,
        bound_reasons=judged.reasons,
        achieved_concurrency=in_flight(said),
        notes=(*simple.notes, *missing, *_short(facts), *notes),
    )
    whole = _observed(believed, facts, lone)
    return replace(whole, diagnosis=diagnose(_case(facts, whole, lone)))


def _observed(believed: CellResult, facts: Facts, lone: float) -> CellResult:
    """With what was seen from outside while the load ran, and what follows from it."""
    seen = facts.evidence.observations
    spent, left_out = split(facts)
    kept = kept_connections(facts)
    return replace(
        believed,
        breakdown=spent,
        app_metrics=parts(facts),
        connections_per_worker=kept,
        split_prediction_rps=split_prediction(facts, kept, lone, believed.bound_rps),
        notes=(*believed.notes, *left_out, *missing_notes(seen), *_whose(facts)),
    )


def _whose(facts: Facts) -> Sequence[str]:
    """Counters that grew although this server dropped nothing are others'."""
    shook = handshakes(facts)
    if shook.dropped or not (shook.counters.listen_overflows or shook.counters.syn_retransmits):
        return ()
    said = what_was_counted(shook)
    return (f"{said}: {NAMESPACE}, and nothing shows that this server dropped anything",)


def _case(facts: Facts, cell: CellResult, lone: float) -> Case:
    return Case(
        cell=cell,
        rps=facts.steady.rps or 0.0,
        lone_s=lone,
        handshakes=handshakes(facts),
        blocked=one_at_a_time(facts),
        patched_late=_patched_late(facts.record.proof),
        cores=facts.evidence.observations.cores,
    )


def _patched_late(proof: Mapping[str, object]) -> bool:
    """gevent replaces the calls that block in each worker; eventlet does it before any fork."""
    return proof.get("preload_app") is True and proof.get("patched") == "gevent"


def _seen(facts: Facts, lone: float, knee: Knee) -> Seen:
    shook, worker_class = handshakes(facts), facts.evidence.worker_class
    return Seen(
        connections=facts.concurrency,
        rps=facts.steady.rps or 0.0,
        lone_s=lone,
        service_s=facts.service.mean or 0.0,
        slots=facts.evidence.slots_configured,
        open_at_once=facts.open_at_once,
        per_worker=tuple(facts.per_worker.values()),
        slots_known=worker_class.slots_known,
        deals=worker_class.accepts_first,
        knee=knee.connections,
        above_rps=knee.above(facts.concurrency),
        dropped=shook.dropped,
        late=late_connects(shook),
    )


def _short(facts: Facts) -> Sequence[str]:
    """Chance decides over what lasts a moment."""
    window_s = facts.steady.window_s
    if window_s is None or window_s >= SHORT_S:
        return ()
    return (f"the steady part lasted only {seconds(window_s)}: raise --rounds",)


def _ideal_s(facts: Facts, lone: float) -> float | None:
    """How long the load takes if no slot is ever idle; None for a tool that runs for a time, or
    where nobody knows how many slots there are."""
    if not facts.evidence.counted or not facts.evidence.worker_class.slots_known:
        return None
    together = parallel(facts.concurrency, facts.evidence.slots_configured)
    alone = 1 if facts.evidence.lone_first else 0
    return lone * (alone + -(-(facts.outcome.answered - alone) // together))
