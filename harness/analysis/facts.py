"""One trial looked at by itself: everything that needs no other trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.analysis import spans as spanning
from harness.analysis.evidence import TrialData
from harness.analysis.outcomes import Outcome, excused, outcome
from harness.analysis.samples import overflowed
from harness.analysis.throughput import Rate, steady_rate
from harness.model import Measurement, Record, Span, Summary


@dataclass(frozen=True)
class Facts:
    """A trial whose output could be read. Its witnesses have not been heard yet."""

    evidence: TrialData
    record: Record
    said: Measurement
    spans: tuple[Span, ...]  # of the load, by start
    finished: tuple[Span, ...]  # of these, what was answered while the tool listened
    outcome: Outcome
    steady: Rate  # completions, whatever their status
    service: Summary
    open_at_once: int
    per_worker: Mapping[int, int]
    load_s: float

    @property
    def concurrency(self) -> int:
        """Connections kept busy; of the open model the most at once."""
        return connections(self.evidence)

    @property
    def asked_rps(self) -> float:
        """Arrivals per second; 0 in a closed loop."""
        return self.record.asked_rps or self.said.asked_rps or 0.0

    @property
    def tool(self) -> str:
        return self.evidence.trial.cell.tool

    @property
    def throughput_rps(self) -> float | None:
        """Successful responses per second in the steady part."""
        rps = self.steady.rps
        return None if rps is None else rps * self.outcome.success


def connections(evidence: TrialData) -> int:
    """The most at once. At a rate the plan does not know them: they follow from what a lone request
    costs."""
    cell, record = evidence.trial.cell, evidence.record
    planned = record.planned_connections if record is not None and cell.rate is not None else None
    return planned or cell.concurrency


def stopped_ns(evidence: TrialData, end_ns: int) -> int | None:
    """When a load that runs for a time sends nothing more, CLOCK_MONOTONIC; None for a counted one.

    A tool that waits for its last answers keeps fewer and fewer connections busy from then on.
    """
    record, said = evidence.record, evidence.measurement
    if evidence.counted:
        return None
    if record is None or record.planned_duration_s is None:
        return end_ns
    if said is None or said.origin_ns is None:
        return end_ns
    return min(end_ns, said.origin_ns + round(record.planned_duration_s * spanning.NS))


def unusable(evidence: TrialData) -> str | None:
    """Why there is nothing to look at in a finished trial, or None."""
    record = evidence.record
    if record is None:
        return "the trial was not run to its end"
    if record.fault is not None:
        missing = record.fault.kind == "unavailable"
        return f"unavailable: {record.fault.reason}" if missing else record.fault.reason
    if record.load_start_ns is None or record.load_end_ns is None:
        return "the load was never started"
    if evidence.parse_error is not None:
        return f"its output cannot be read: {evidence.parse_error}"
    if evidence.measurement is None:
        return f"{evidence.trial.cell.tool} left no output"
    return None


def look(evidence: TrialData) -> Facts | str:
    """The facts of a trial, or the reason why there are none."""
    why = unusable(evidence)
    record, said = evidence.record, evidence.measurement
    if why is not None or record is None or said is None:
        return why or "nothing was recorded"
    start, end = record.load_start_ns, record.load_end_ns
    if start is None or end is None:  # `unusable` has said so; this tells the type checker
        return "the load was never started"
    spans = spanning.of_load(evidence.spans, record)
    finished = spanning.ended(spans, None if evidence.counted else end)
    concurrency = connections(evidence)
    became = outcome(said, evidence.expect_status)
    if evidence.counted and overflowed(evidence.observations):
        became = excused(became, said, spans)
    return Facts(
        evidence=evidence,
        record=record,
        said=said,
        spans=spans,
        finished=finished,
        outcome=became,
        steady=steady_rate(
            spans,
            concurrency,
            lone_first=evidence.lone_first,
            stopped_ns=stopped_ns(evidence, end),
            begun_ns=start + round(evidence.ramp_s * spanning.NS),
        ),
        service=spanning.service(finished),
        # An answer reaches the client before its span is closed, and the client's next request
        # may start in between on another worker: more than it has connections is that overlap.
        open_at_once=min(spanning.most_open(spans), concurrency),
        per_worker=spanning.per_worker(spans, record.worker_pids),
        load_s=(end - start) / spanning.NS,
    )
