"""From facts to the result of a trial, once R0 and knee of its series are known."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from workerlab.analysis import pauses
from workerlab.analysis.app_metrics import app_metrics
from workerlab.analysis.batches import precision
from workerlab.analysis.breakdown import breakdown
from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.diagnosis import findings
from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.failures import (
    failed_share,
    mixed_notes,
    success_response,
    success_service,
)
from workerlab.analysis.handshakes import counters_of_others
from workerlab.analysis.holding import queued_gap_s
from workerlab.analysis.in_force import in_force, served_by
from workerlab.analysis.keepalive import kept_connections, predicted_rps
from workerlab.analysis.load_tool import in_flight
from workerlab.analysis.occupancy import taken
from workerlab.analysis.samples import missing_notes
from workerlab.analysis.series import Series
from workerlab.analysis.stall import apart, headline, headline_rps, stalled, whole_rps
from workerlab.analysis.verdict import FailedRequests, Reason, TrialInvalid, of_closed
from workerlab.analysis.waiting import waiting
from workerlab.finding import Finding
from workerlab.model import CellResult, Verdict

FEW = 0.05  # of the requests failed: of the others can be told how long they take
LONG_HELD_S = 0.1  # a hundred times what it takes to close a connection and accept the next one
SHORT_S = 0.1  # chance decides over what lasts a moment


def invalid(data: TrialData, reasons: Sequence[Finding]) -> CellResult:
    """A cell whose numbers are unknown; its reasons are not."""
    return CellResult(
        trial=data.trial,
        app=data.app,
        sleep_s=data.sleep_s,
        verdict="invalid",
        reason=TrialInvalid(tuple(reasons)),
        worker_class=data.worker_class,
        in_force=in_force(data),
        served_by=served_by(data),
        notes=data.record.warnings if data.record else (),
    )


def result(facts: Facts, series: Series) -> CellResult:
    """A valid cell of the closed loop."""
    lone_s, bound = series.r0.seconds, series.bound.get(facts.key)
    bound_rps = facts.parallel / lone_s
    waits, missing = waiting(facts)
    parts, left_out = breakdown(facts)
    length_s = facts.window.length_s if facts.window else SHORT_S
    short = [SteadyPartShort(length_s)] if length_s < SHORT_S else []
    cell = measured(facts, *of_closed(facts, series))
    cell = replace(
        cell,
        lone_s=lone_s,
        occupancy=None if (part := headline(facts)) is None else taken(facts, part),
        bound_rps=bound_rps,
        waiting=waits,
        ideal_s=_ideal_s(facts, lone_s),
        breakdown=parts,
        connections_per_worker=kept_connections(facts),
        split_prediction_rps=predicted_rps(facts, lone_s, bound_rps),
        generator_bound=None if bound is None else bool(bound),
        bound_reasons=bound or (),
        achieved_concurrency=in_flight(facts.measurement),
        app_metrics=app_metrics(facts),
        notes=(
            *cell.notes,
            *missing,
            *short,
            *series.notes,
            *left_out,
            *apart(facts),
            *missing_notes(facts.seen),
            *counters_of_others(facts),
        ),
    )
    diagnoses = findings(facts, cell, series)
    return replace(cell, diagnosis=diagnoses[0], findings=diagnoses)


def with_failures(reason: Finding, failures: FailedRequests | None) -> Finding:
    return replace(reason, failures=failures) if isinstance(reason, Reason) else reason


def measured(facts: Facts, word: Verdict, reason: Finding) -> CellResult:
    """What was counted and seen of any valid cell, closed loop or at a rate, and as a part of its
    reason what failed meanwhile."""
    data, measurement, outcome = facts.data, facts.measurement, facts.outcome
    longest, limit = facts.accept_queue
    known = None if stalled(facts) else precision(facts).throughput_rps  # of the steady part
    failures = None
    if outcome.failed:
        causes = dict(sorted(outcome.errors.items()))
        failures = FailedRequests(outcome.failed, causes)
    return CellResult(
        trial=data.trial,
        app=data.app,
        sleep_s=data.sleep_s,
        verdict=word,
        reason=with_failures(reason, failures),
        worker_class=data.worker_class,
        requests=outcome.answered,
        failed=outcome.failed,
        errors=outcome.errors,
        slots_configured=facts.slots,
        slots_measured=facts.open_at_once,
        throughput_rps=headline_rps(facts),
        throughput_half_rps=known.half if known else None,
        tool_rps=measurement.rps,
        whole_rps=whole_rps(facts),
        response=success_response(facts),
        connect=measurement.connect,
        service=success_service(facts),
        requests_per_worker=facts.per_worker,
        load_s=facts.load_s,
        counters=facts.counters,
        accept_queue_max=longest,
        accept_queue_limit=limit,
        in_force=in_force(data, limit),
        served_by=served_by(data),
        usage=facts.usage,
        core_wait=core_wait(facts),
        routes=measurement.routes,
        ab=measurement.ab,
        held_s=queued_gap_s(facts),
        notes=(
            *facts.record.warnings,
            *measurement.notes,
            *_held(facts),
            *_pilot(facts),
            *_again(facts),
            *_paused(facts),
            *mixed_notes(facts),
        ),
    )


class SteadyPartShort(Finding):
    """the steady part lasted only {length_s:duration}: raise --rounds"""

    length_s: float


class SlotHeldAfterApp(Finding):
    """in the worker: after the app is done with a request, a slot stays taken for
    {held_s:duration}, and other requests wait for it"""

    held_s: float


class LongerLoadFollowed(Finding):
    """the throughput varied in a load of {pilot_s:duration}, so a longer one followed: the figures
    are those of its {load_s:duration} (--rounds or --duration fix the length)"""

    pilot_s: float
    load_s: float


class MeasuredAgainAlone(Finding):
    """measured again, alone: beside other cells all of them used {cores:.2f} cores, more than
    leaves the figures as they are"""

    cores: float


def _held(facts: Facts) -> Iterable[Finding]:
    """A slot that stays taken for long after the app is done with a request: in the worker."""
    held_s = queued_gap_s(facts)
    if held_s is not None and held_s >= LONG_HELD_S:
        yield SlotHeldAfterApp(held_s)


def _pilot(facts: Facts) -> Iterable[Finding]:
    if facts.record.pilot_s is not None:
        yield LongerLoadFollowed(facts.record.pilot_s, facts.load_s)


def _again(facts: Facts) -> Iterable[Finding]:
    if facts.record.again_cores is not None:
        yield MeasuredAgainAlone(facts.record.again_cores)


def _paused(facts: Facts) -> Iterable[pauses.PauseDuringLoad]:
    if (pause := pauses.noticeable(facts)) is not None:
        yield pauses.PauseDuringLoad(pause)


def _ideal_s(facts: Facts, lone_s: float) -> float | None:
    """How long the load takes if no slot is ever idle; None for a tool that runs for a time, where
    nobody knows how many slots there are, or where failures take another time than a lone request.
    """
    known = facts.data.counted and facts.data.worker_class.slots_known
    if not known or failed_share(facts) > FEW:
        return None
    alone = 1 if facts.data.lone_first else 0
    return lone_s * (alone + -(-(facts.outcome.answered - alone) // facts.parallel))
