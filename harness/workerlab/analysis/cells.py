"""The result of a valid trial, from its facts and from the R0 and the knee of its series.

Waiting time is the part of the response time in which no slot served the request: W = R - S.

The mean is exact: the difference between the mean response time of the client and the mean span of
the workers, over the same requests, including the lone first request. Only successes count, if it
is known which requests these are. There is no mean if some requests are in only one of the two
sources. If a tool's mean contains synthetic samples (wrk), the response time law replaces it
(Denning & Buzen 1978): R = N/X in a closed loop without think time.

Percentiles need the span of each request. Spans cannot be matched to timings reliably: not all
carry a request id, the offset of the tool's clock is unknown, and requests that end at nearly the
same time may be swapped. If service times hardly vary, this does not matter: if d is the largest
|S - mean S|, each R - mean S is within d of its true W, and so is each percentile. So percentiles
are given if every success is timed and d is at most 5 % of the mean response; otherwise they are
None.

The effective settings may differ from the configured ones: the kernel limits the backlog, and some
worker classes ignore settings.

App metrics and CPU times are cumulative, so their amount in the steady window is the difference
between its first and last sample. The number of requests is the app's own count, so numerator and
denominator come from the same two moments. If a metric shrank, it was reset during the load, and
the metrics are unknown. `observe/app_metrics.py` defines the names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from workerlab.analysis import stall
from workerlab.analysis.batches import precision
from workerlab.analysis.breakdown import breakdown
from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.diagnosis import findings
from workerlab.analysis.diagnosis.failing import (
    failed_share,
    mixed_notes,
    success_response,
    success_service,
    success_times_s,
)
from workerlab.analysis.facts import Facts, Outcome, TrialData
from workerlab.analysis.handshakes import counters_of_others
from workerlab.analysis.load_tool import mean_in_flight
from workerlab.analysis.samples import NS, durations_s, missing_notes, per_second
from workerlab.analysis.series import Series
from workerlab.analysis.slots import (
    keepalive_connections,
    occupancy_in,
    predicted_rps,
    queued_gap_s,
)
from workerlab.analysis.stall import (
    reported_part,
    reported_rps,
    slower_as_a_whole,
    stalled,
    whole_rps,
)
from workerlab.analysis.verdict import FailedRequests, Reason, TrialInvalid
from workerlab.finding import Finding, Findings, Note
from workerlab.model.evidence import AppMetricsSample, ServiceSample, Summary
from workerlab.model.result import AppMetrics, Invalid, Result, ValidVerdict
from workerlab.numbers.samples import summarise

SETTINGS = ("workers", "threads", "backlog", "worker_connections")


def effective_settings(data: TrialData, queue_limit: int | None = None) -> Mapping[str, int | None]:
    """The effective settings; None for a setting that the worker class ignores. Unknown settings
    are missing. `queue_limit`: limit of all accept queues together, sampled from the kernel; None:
    use the limit per queue that the workers reported."""
    proof = data.record.proof if data.record else {}
    server = data.cell.server
    queues = server.instances * (server.workers if data.worker_class.shares_port else 1)
    limit = queue_limit // queues if queue_limit else proof.get("accept_queue_limit")
    values: dict[str, int | None]
    values = {name: value for name in SETTINGS if isinstance(value := proof.get(name), int)}
    values |= dict.fromkeys(data.worker_class.ignores)
    values |= {"backlog": limit} if isinstance(limit, int) and limit else {}
    return {name: values[name] for name in SETTINGS if name in values}


def served_by(data: TrialData) -> Mapping[str, str]:
    """The versions of Gunicorn and Python that the workers reported; unknown ones are missing."""
    proof = data.record.proof if data.record else {}
    names = ("gunicorn", "python")
    return {name: version for name in names if isinstance(version := proof.get(name), str)}


RESOLUTION_S = 0.001  # ab rounds to whole milliseconds
# Deviation of a service time from the mean / the mean response
MAX_DEVIATION_SHARE = 0.05

UNANSWERED = "no waiting time: some requests reached a worker and were never answered"


class WaitingByLittle(Finding):
    """waiting follows from Little's law: {tool} gives no exact mean response"""

    tool: str


class WaitingNegative(Finding):
    """no waiting time: the mean response of {response_s:duration} is shorter than the mean service
    of {service_s:duration}"""

    response_s: float
    service_s: float


class TimesOfNeverAccepted(Finding):
    """no waiting time: {tool}'s response times include {requests:# request} that never reached a
    worker"""

    tool: str
    requests: int


def waiting(facts: Facts) -> tuple[Summary, Findings]:
    """Waiting times in seconds, and notes on missing ones."""
    outcome, measurement, notes = facts.outcome, facts.measurement, Findings()
    response_s, service_s = success_response(facts).mean, success_service(facts).mean
    if not measurement.exact_mean:
        response_s, notes = facts.connections / facts.rps, (WaitingByLittle(facts.tool),)
    elif (never_accepted := measurement.requests - outcome.answered) > 0:
        return Summary(), (TimesOfNeverAccepted(facts.tool, never_accepted),)
    elif facts.data.fixed_count and len(facts.finished) != outcome.answered:
        return Summary(), (Note(UNANSWERED),)
    if response_s is None or service_s is None:
        return Summary(), notes
    mean_s = response_s - service_s
    if mean_s < -RESOLUTION_S:
        return Summary(), (WaitingNegative(response_s, service_s),)
    times_s = success_times_s(facts)
    deviation_s = max(
        (abs(duration_s - service_s) for duration_s in durations_s(facts.success_spans or ())),
        default=0.0,
    )
    all_timed = times_s and len(times_s) == outcome.successes
    if not all_timed or deviation_s > MAX_DEVIATION_SHARE * response_s:
        return Summary(mean=max(0.0, mean_s)), notes
    return Summary(*summarise(max(0.0, time_s - service_s) for time_s in times_s)), notes


REQUESTS = "requests"
# Suffixes of metrics: nanoseconds spent, lookups and hits of a cache
SPENT_SUFFIX, LOOKUPS_SUFFIX, HITS_SUFFIX = "_ns", "_asked", "_hits"


def app_metrics(facts: Facts) -> AppMetrics | None:
    """App metrics and CPU use of components in the steady window; None if neither was sampled."""
    steady, observations = facts.steady_part, facts.observations
    increases = _increases(steady.select(observations.app_metrics))
    cores = _cores(steady.select(observations.services))
    requests = increases.pop(REQUESTS, 0)
    if not requests:
        return AppMetrics(0, {}, {}, {}, cores) if cores else None
    return AppMetrics(
        requests=requests,
        per_request={n: v / requests for n, v in increases.items() if not n.endswith(SPENT_SUFFIX)},
        spent_s={
            name.removesuffix(SPENT_SUFFIX): value / NS / requests
            for name, value in increases.items()
            if name.endswith(SPENT_SUFFIX)
        },
        hit_ratio={
            cache: increases[cache + HITS_SUFFIX] / lookups
            for name, lookups in increases.items()
            if name.endswith(LOOKUPS_SUFFIX) and lookups
            if (cache := name.removesuffix(LOOKUPS_SUFFIX)) + HITS_SUFFIX in increases
        },
        cores=cores,
    )


def _increases(samples: Sequence[AppMetricsSample]) -> dict[str, int]:
    """The increase of each metric over all workers; empty with fewer than two samples, or if any
    metric shrank."""
    if len(samples) < 2:
        return {}
    first, last = samples[0].totals, samples[-1].totals
    increases = {name: last[name] - first[name] for name in first if name in last}
    return {} if any(value < 0 for value in increases.values()) else increases


def _cores(samples: Sequence[ServiceSample]) -> Mapping[str, float]:
    """CPU seconds per second of each component with at least two samples."""

    def cores(name: str) -> float | None:
        return per_second(samples, lambda sample: sample.cpu_s.get(name))

    names = dict.fromkeys(name for sample in samples for name in sample.cpu_s)
    return {name: used for name in names if (used := cores(name)) is not None}


MAX_FAILED_SHARE = 0.05  # of requests; above it, the duration of a load cannot be computed
LONG_HELD_S = 0.1  # 100 times the time to close a connection and accept the next one
MIN_STEADY_S = 0.1  # figures of a shorter steady part depend too much on chance


def invalid_result(data: TrialData, reasons: Sequence[Finding]) -> Invalid:
    return Invalid(
        **_trial_fields(data),
        reason=TrialInvalid(tuple(reasons)),
        notes=data.record.warnings if data.record else (),
    )


def _trial_fields(data: TrialData, queue_limit: int | None = None) -> dict[str, Any]:
    """The fields of every result, valid or not. `queue_limit`: as in `effective_settings`."""
    return {
        "trial": data.trial,
        "app": data.app,
        "sleep_s": data.sleep_s,
        "worker_class": data.worker_class,
        "in_force": effective_settings(data, queue_limit),
        "served_by": served_by(data),
    }


def closed_result(facts: Facts, series: Series, verdict: ValidVerdict, reason: Finding) -> Result:
    """The result of a valid closed-loop cell."""
    lone_s, limits = series.r0.seconds, series.tool_limits.get(facts.key)
    bound_rps = facts.max_parallel / lone_s
    waits, waiting_notes = waiting(facts)
    parts, breakdown_notes = breakdown(facts)
    length_s = facts.steady_part.length_s
    short = [SteadyPartShort(length_s)] if length_s < MIN_STEADY_S else []
    cell = measured_result(facts, verdict, reason)
    cell = replace(
        cell,
        lone_s=lone_s,
        occupancy=occupancy_in(facts, reported_part(facts)),
        bound_rps=bound_rps,
        waiting=waits,
        ideal_s=_ideal_s(facts, lone_s),
        breakdown=parts,
        connections_per_worker=keepalive_connections(facts),
        split_prediction_rps=predicted_rps(facts, lone_s, bound_rps),
        generator_bound=None if limits is None else bool(limits),
        bound_reasons=limits or (),
        achieved_concurrency=mean_in_flight(facts.measurement),
        app_metrics=app_metrics(facts),
        notes=(
            *cell.notes,
            *waiting_notes,
            *short,
            *series.notes,
            *breakdown_notes,
            *slower_as_a_whole(facts),
            *missing_notes(facts.observations),
            *counters_of_others(facts),
        ),
    )
    diagnoses = findings(facts, cell, series)
    return replace(cell, diagnosis=diagnoses[0], findings=diagnoses)


def with_failures(reason: Finding, outcome: Outcome) -> Finding:
    """The reason for a verdict, followed by the failed requests, if any."""
    if not outcome.failed or not isinstance(reason, Reason):
        return reason
    failures = FailedRequests(outcome.failed, dict(sorted(outcome.errors.items())))
    return replace(reason, failures=failures)


def measured_result(facts: Facts, verdict: ValidVerdict, reason: Finding) -> Result:
    """The measured values of a valid cell, of the closed loop or at a rate."""
    measurement, outcome = facts.measurement, facts.outcome
    longest, limit = facts.accept_queue
    estimate = None if stalled(facts) else precision(facts).throughput_rps
    return Result(
        **_trial_fields(facts.data, limit),
        verdict=verdict,
        reason=with_failures(reason, outcome),
        requests=outcome.answered,
        failed=outcome.failed,
        errors=outcome.errors,
        slots_configured=facts.slots,
        slots_measured=facts.max_in_app,
        throughput_rps=reported_rps(facts),
        throughput_half_rps=estimate.half if estimate else None,
        tool_rps=measurement.rps,
        whole_rps=whole_rps(facts),
        response=success_response(facts),
        connect=measurement.connect,
        service=success_service(facts),
        requests_per_worker=facts.requests_per_worker,
        load_s=facts.load_s,
        counters=facts.counters,
        accept_queue_max=longest,
        accept_queue_limit=limit,
        usage=facts.usage,
        core_wait=core_wait(facts),
        routes=measurement.routes,
        ab=measurement.ab,
        held_s=queued_gap_s(facts),
        notes=(
            *facts.record.warnings,
            *measurement.notes,
            *_notes(facts),
            *mixed_notes(facts),
        ),
    )


class SteadyPartShort(Finding):
    """the steady part lasted only {length_s:duration}: use more rounds or a longer load"""

    length_s: float


class SlotHeldAfterApp(Finding):
    """a worker holds a slot for {held_s:duration} after the app finishes a request, while other
    requests wait for it"""

    held_s: float


class LongerLoadFollowed(Finding):
    """the throughput varied in a load of {pilot_s:duration}, so a longer one followed: the figures
    cover its {load_s:duration} (--rounds or --duration set a fixed length)"""

    pilot_s: float
    load_s: float


class MeasuredAgainAlone(Finding):
    """measured again alone: cells that ran side by side used {cores:.2f} cores, enough to distort
    the figures"""

    cores: float


def _notes(facts: Facts) -> Iterable[Finding]:
    held_s, record = queued_gap_s(facts), facts.record
    if held_s is not None and held_s >= LONG_HELD_S:
        yield SlotHeldAfterApp(held_s)
    if record.pilot_s is not None:
        yield LongerLoadFollowed(record.pilot_s, facts.load_s)
    if record.again_cores is not None:
        yield MeasuredAgainAlone(record.again_cores)
    if (pause := stall.noticeable_pauses(facts)) is not None:
        yield stall.PauseDuringLoad(pause)


def _ideal_s(facts: Facts, lone_s: float) -> float | None:
    """The load's duration in seconds if no slot were ever idle. None for a load of fixed duration,
    an unknown number of slots, or many failures, whose durations differ from a lone request's."""
    computable = facts.data.fixed_count and facts.worker_class.slots_known
    if not computable or failed_share(facts) > MAX_FAILED_SHARE:
        return None
    lone_requests = int(facts.data.lone_first)
    rounds = -(-(facts.outcome.answered - lone_requests) // facts.max_parallel)
    return lone_s * (lone_requests + rounds)
