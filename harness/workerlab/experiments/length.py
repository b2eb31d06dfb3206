"""Which loads a trial has, and how long one lasts if no option fixes its length.

    a load of a few rounds ─ its batches vary by at most 1 % ─► done
                           └ else: another load on the same server, of at least 8 one-second
                             batches, until the throughput is known within 5 % or time is up

A few rounds suffice for an app that always takes the same time. If the lab knows this of an app, a
precision of 5 % is enough after the first load. For any other app these rounds are a pilot: its
rate and spread determine the length of the next load (`analysis/batches.py`), since an interval
narrows with the square root of time. The pilot's variance is itself an estimate, so its upper 80 %
bound is used (chi-squared). If the pilot's rate is too imprecise, the next load only measures the
rate: in one case 969 requests took 14 s, where the first 21 predicted 29 s. If a load would leave
too little time for another one, in case it misses the 5 %, it takes all the time that is left.

A load that determines the throughput may still have too few requests for a target. Then one with
enough requests follows, if time allows.

The record, spans and observations of the trial are those of the last load alone. It begins once the
server has closed the connections of the load before. Files of earlier loads are in `pilot/`,
`pilot-2/`.

Rejected: telling the tool to continue (ab cannot), pooling the loads (each has a start and an end
that are not steady), one load of 30 s (a sweep of a sleeping app would take five times as long and
show nothing more).
"""

import time
from math import ceil, inf, sqrt
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from workerlab.analysis.batches import BATCH_S, ENOUGH_BATCHES, Precision, precision
from workerlab.analysis.checks import CHECKS
from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import Window
from workerlab.experiments.reading import read_trial
from workerlab.model import Load, Plan, Record, Trial
from workerlab.numbers.intervals import student
from workerlab.observe.observations import FILE
from workerlab.observe.spans import Live
from workerlab.observe.tcp import served_connections
from workerlab.plan import (
    MAX_FOLLOW_UP_REQUESTS,
    load_for,
    may_go_on,
    target_requests,
    varies,
)
from workerlab.server.running import Serving

STEADY_VARIATION = 0.01  # of batches: a longer load would show nothing new
TARGET_PRECISION = 0.05  # of the throughput: half of its 95 % interval
MIN_GROWTH = 1.2  # duration of the next load over the previous one: less would add little
MAX_SLACK_SHARE = 0.25  # of the time left, in case the rate drops below the pilot's
COUNTED_LOAD_MARGIN = 1.1  # times the duration: a load of counted requests may end early
MAX_PILOT_RATE_ERROR = 0.15  # a pilot with a larger error only sizes a load that measures the rate
MAX_RATE_ERROR = 0.5  # assumed if the error is larger or unknown
MANY_DEGREES = 30  # degrees of freedom
NORMAL_QUANTILE_20 = -0.8416  # standard normal quantile of 0.2, for an upper 80 % bound
DRAIN_S = 30.0
POLL_S = 0.01
PILOT = "pilot"  # name of the directories


def next_load(
    plan: Plan,
    trial: Trial,
    run_dir: Path,
    load: Load | None,
    record: Record,
    rps: float | None = None,
) -> Load | None:
    """The load to follow `load`; None if that one suffices or is invalid, or if its length is fixed
    or no time is left. The first load of the trial if `load` is None; `rps`: of an open cell."""
    if load is None:
        lone_s = fmean(record.alone_s) if record.alone_s else 0.0
        return load_for(plan, trial.cell, lone_s, rps, number=trial.number)
    if plan.max_seconds is None or not may_go_on(plan, trial.cell) or load.drops:
        return None  # a full accept queue delays clients for minutes, whatever the length
    facts = read_trial(trial, record, plan, run_dir).facts
    if not isinstance(facts, Facts) or any(check(facts) for check in CHECKS):
        return None  # invalid: the report gives the reason
    estimate = precision(facts)
    # By the tool's clock: on a busy machine, starting the tool takes a second
    lasted_s = facts.measurement.duration_s or facts.load_s
    measured_rps = facts.rps if isinstance(facts.steady, Window) else len(facts.finished) / lasted_s
    left_s = plan.max_seconds - (record.pilot_s or 0.0) - lasted_s
    if not is_precise(estimate, steady=not varies(plan, trial.cell)):
        follow_up = load_for_precision(load, estimate, measured_rps, lasted_s, left_s)
        if follow_up is not None:
            return follow_up
    requests = target_requests(plan, measured_rps * left_s)
    if requests <= facts.outcome.answered:
        return None
    return with_duration(load, measured_rps, requests / measured_rps)


def is_precise(estimate: Precision, *, steady: bool) -> bool:
    """Whether the estimate is precise enough. `steady`: only the machine makes the app's times
    vary, so a short load misses no rare event."""
    throughput = estimate.throughput_rps
    if throughput is None or estimate.variation is None:
        return False
    if estimate.variation <= STEADY_VARIATION:
        return True
    return (estimate.is_long or steady) and throughput.half <= TARGET_PRECISION * throughput.mean


def load_for_precision(
    load: Load, estimate: Precision, rps: float, lasted_s: float, left_s: float
) -> Load | None:
    """A load long enough for the target precision, if time allows. `rps`, `lasted_s`: of the load
    before; `left_s`: time left. None if that is too little for a useful load."""
    if rps <= 0:
        return None
    rate_error = _rate_error(estimate)
    edges_s = 2 * load.concurrency / rps  # until all slots are busy, and until all are free
    slack = 1 + min(rate_error, MAX_SLACK_SHARE)
    available_s = min((left_s - edges_s) / slack, MAX_FOLLOW_UP_REQUESTS / rps)
    steady_s = ENOUGH_BATCHES * BATCH_S * COUNTED_LOAD_MARGIN
    if rate_error <= MAX_PILOT_RATE_ERROR or steady_s < MIN_GROWTH * lasted_s:
        steady_s = max(steady_s, _needed_s(estimate, rate_error))
        steady_s = steady_s if steady_s * (1 + MIN_GROWTH) <= available_s else available_s
    steady_s = min(steady_s, available_s)
    if steady_s < MIN_GROWTH * lasted_s:
        return None
    return with_duration(load, rps, steady_s)


def with_duration(load: Load, rps: float, steady_s: float) -> Load:
    """The same load with a steady part of `steady_s`; its start and end are extra."""
    rounds = ceil(steady_s * rps / load.concurrency) + 1
    lasts_s = steady_s + 2 * load.concurrency / rps
    return replace(
        load,
        requests=1 + rounds * load.concurrency,
        duration_s=float(ceil(lasts_s)),
        deadline_s=load.deadline_s + ceil(3 * lasts_s),
    )


def _rate_error(estimate: Precision) -> float:
    """The share by which the true rate may differ from the measured one, at most MAX_RATE_ERROR."""
    throughput = estimate.throughput_rps
    if throughput is None or not throughput.mean:
        return MAX_RATE_ERROR
    return min(throughput.half / throughput.mean, MAX_RATE_ERROR)


def _needed_s(estimate: Precision, rate_error: float) -> float:
    """Seconds of load until half of the interval is TARGET_PRECISION of the mean; infinite if the
    pilot has no interval."""
    if not estimate.batch_s:
        return inf
    degrees = estimate.batches - 1
    standard_error = rate_error / student(degrees)
    max_variance_ratio = degrees / _chi_squared(NORMAL_QUANTILE_20, degrees)
    narrowing = student(MANY_DEGREES) * standard_error / TARGET_PRECISION
    return estimate.batches * estimate.batch_s * max_variance_ratio * narrowing**2


def _chi_squared(normal: float, degrees: int) -> float:
    """The chi-squared quantile for the standard normal quantile `normal` (Wilson & Hilferty
    1931)."""
    variance = 2 / (9 * degrees)
    return degrees * max(0.0, 1 - variance + normal * sqrt(variance)) ** 3


# --- from one load to the next --------------------------------------------------------------------


def wait_until_drained(server: Serving, trial_dir: Path) -> bool:
    """Wait until the server has closed every connection and its app is idle. False if that takes
    longer than DRAIN_S, or if the server has ended."""
    addresses = [(instance.host, instance.port) for instance in (server, *server.others)]
    live, until_s = Live(trial_dir), time.monotonic() + DRAIN_S
    while served_connections(addresses) or any(live.look()[0].values()):
        if time.monotonic() > until_s or not server.process.running:
            return False
        time.sleep(POLL_S)
    return True


def keep_pilot(trial_dir: Path) -> None:
    """Move the files of the last load to a new pilot directory. Raises OSError."""
    pilots = len(list(trial_dir.glob(f"{PILOT}*")))
    pilot_dir = trial_dir / (f"{PILOT}-{pilots + 1}" if pilots else PILOT)
    pilot_dir.mkdir()
    for name in ("tool", FILE):
        (trial_dir / name).rename(pilot_dir / name)
