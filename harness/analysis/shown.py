"""What every believed cell shows, whether its load was a closed loop or came at a rate."""

from __future__ import annotations

from harness.analysis.facts import Facts
from harness.analysis.outcomes import listed_causes
from harness.analysis.samples import accept_queue, counters, usage
from harness.model import CellResult, Verdict


def shown(facts: Facts, word: Verdict, reason: str) -> CellResult:
    """What was counted and seen; what follows from it is for the caller to add."""
    evidence, said = facts.evidence, facts.said
    length, limit = accept_queue(evidence.observations)
    return CellResult(
        trial=evidence.trial,
        app=evidence.app,
        sleep_s=evidence.sleep_s,
        verdict=word,
        reason=reason + _failures(facts),
        worker_class=evidence.worker_class,
        requests=facts.outcome.answered,
        failed=facts.outcome.failed,
        errors=facts.outcome.errors,
        slots_configured=evidence.slots_configured,
        slots_measured=facts.open_at_once,
        throughput_rps=facts.throughput_rps,
        tool_rps=said.rps,
        response=said.response,
        connect=said.connect,
        service=facts.service,
        requests_per_worker=facts.per_worker,
        load_s=facts.load_s,
        counters=counters(evidence.observations),
        accept_queue_max=length,
        accept_queue_limit=limit,
        usage=usage(evidence.observations, facts.record, facts.load_s),
        notes=(*facts.record.warnings, *said.notes),
    )


def _failures(facts: Facts) -> str:
    failed = facts.outcome.failed
    return f"; {failed} failed{listed_causes(facts.outcome.errors)}" if failed else ""
