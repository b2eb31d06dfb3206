"""How long a load lasts whose length nobody has fixed.

    a load of some rounds ─ its batches vary by 1 % at most ─► that is it
                          └ else: another load on the same server, of 8 batches of a second at
                            least, until the throughput is known within 5 % or the time is up

An app that always takes the same time has shown all there is to see after some rounds: its sweep is
not lengthened; where the lab knows that of an app, 5 % are enough at once. Of any other these
rounds are a pilot. How long the next load must be follows from the pilot's rate and spread
(`analysis/batches.py`): an interval narrows with the square root of time. As the pilot's variance
is a guess itself, it is taken to be as large as it is in four of five cases at most (chi-squared).
After a pilot that hardly knows the rate, the next load is to learn that: of 969 requests that were
to take 29 s, guessed from the first 21, all were answered after 14. A load that would leave too
little time for another, should it miss the 5 %, takes all there is.

A load that has shown all there is of the throughput may still have too few requests for a target;
then one of as many follows, if there is time for them.

The record, the spans and the observations of the trial are those of the last load alone, which
begins when the server has let go of the connections of the one before. What that left is in
`pilot/`, `pilot-2/`.

Rejected: to tell the tool to go on (ab counts, and cannot be told), to pool the loads (each has a
start and an end that are not steady), one load of 30 s (a sleeping app's sweep takes five times as
long, and shows nothing more).
"""

import time
from math import ceil, inf, sqrt
from pathlib import Path

from msgspec.structs import replace

from workerlab.analysis.batches import BATCH_S, ENOUGH, Precision, precision
from workerlab.analysis.checks import CHECKS
from workerlab.analysis.facts import Facts, facts_of
from workerlab.analysis.window import Window
from workerlab.experiments.reading import evidence
from workerlab.model import Load, Plan, Record, Trial
from workerlab.numbers.intervals import student
from workerlab.observe.observations import FILE
from workerlab.observe.spans import Live
from workerlab.observe.tcp import served_connections
from workerlab.plan import MOST_REQUESTS, may_go_on, target_requests, varies
from workerlab.server.running import Serving

STEADY = 0.01  # batches that vary no more have shown all there is to see
WITHIN = 0.05  # of the throughput: half of its 95 % interval
WORTH = 1.2  # times as long as the load before, or it shows little more
MOST_SLACK = 0.25  # of the time that is left, lest a lower rate than the pilot's exceeds it
MARGIN = 1.1  # of the time, which a load that counts may miss
ROUGHLY, MOST_APART = 0.15, 0.5  # a rate that is known, and one of which little is
MANY = 30  # degrees of freedom
FOUR_OF_FIVE = -0.8416  # standard normal quantile
DRAIN_S = 30.0
POLL_S = 0.01
PILOT = "pilot"
NS = 1e9


def longer(plan: Plan, one: Trial, run: Path, load: Load, record: Record) -> Load | None:
    """The load that is to follow; None where this one was long enough, or has to do."""
    if plan.max_seconds is None or not may_go_on(plan, one.cell) or load.drops:
        return None  # a full accept queue holds up clients for minutes, however long the load
    facts = facts_of(evidence(one, record, plan, run))
    if not isinstance(facts, Facts) or any(check(facts) for check in CHECKS):
        return None  # it is invalid, and the report says why
    found = precision(facts)
    # By the tool's clock: on a busy machine it takes a second to start, which is no load
    lasted_s = facts.measurement.duration_s or facts.load_s
    rps = facts.rps if isinstance(facts.steady, Window) else len(facts.finished) / lasted_s
    left_s = plan.max_seconds - (record.pilot_s or 0.0) - lasted_s
    if not known(found, steady=not varies(plan, one.cell)):
        more = following(load, found, rps, lasted_s, left_s)
        if more is not None:
            return more
    wanted = target_requests(plan, rps * left_s)
    return lasting(load, rps, wanted / rps) if wanted > facts.outcome.answered else None


def known(found: Precision, *, steady: bool) -> bool:
    """Whether a load says what more of it would say. `steady`: what it varies by is the machine's
    doing alone, so that there is nothing rare left to be seen."""
    throughput = found.throughput_rps
    if throughput is None or found.variation is None:
        return False
    if found.variation <= STEADY:
        return True
    return (found.long or steady) and throughput.half <= WITHIN * throughput.mean


def following(
    load: Load, found: Precision, rps: float, lasted_s: float, left_s: float
) -> Load | None:
    """A load of as many seconds as that takes, in requests of a tool that counts. `rps` and
    `lasted_s` are the pilot's. None where what is left shows little more than the pilot has."""
    if rps <= 0:
        return None
    apart = _apart(found)
    edges_s = 2 * load.concurrency / rps  # until all slots are taken, and until all are free
    room_s = min((left_s - edges_s) / (1 + min(apart, MOST_SLACK)), MOST_REQUESTS / rps)
    steady_s = ENOUGH * BATCH_S * MARGIN
    if apart <= ROUGHLY or steady_s < WORTH * lasted_s:
        steady_s = max(steady_s, _needed_s(found, apart))
        steady_s = steady_s if steady_s * (1 + WORTH) <= room_s else room_s
    steady_s = min(steady_s, room_s)
    if steady_s < WORTH * lasted_s:
        return None
    return lasting(load, rps, steady_s)


def lasting(load: Load, rps: float, steady_s: float) -> Load:
    """The same for so long, besides its start and end."""
    rounds = ceil(steady_s * rps / load.concurrency) + 1
    lasts_s = steady_s + 2 * load.concurrency / rps
    return replace(
        load,
        requests=1 + rounds * load.concurrency,
        duration_s=float(ceil(lasts_s)),
        deadline_s=load.deadline_s + ceil(3 * lasts_s),
    )


def _apart(found: Precision) -> float:
    """By how much of it the rate may be another than the pilot's."""
    throughput = found.throughput_rps
    if throughput is None or not throughput.mean:
        return MOST_APART
    return min(throughput.half / throughput.mean, MOST_APART)


def _needed_s(found: Precision, apart: float) -> float:
    """Until half of the interval is WITHIN the mean; all there is where the pilot has none."""
    if not found.batch_s:
        return inf
    degrees = found.batches - 1
    error = apart / student(degrees)
    upper = degrees / _chi_squared(FOUR_OF_FIVE, degrees)
    return found.batches * found.batch_s * upper * (student(MANY) * error / WITHIN) ** 2


def _chi_squared(normal: float, degrees: int) -> float:
    """The quantile at which the standard normal has `normal` (Wilson & Hilferty 1931)."""
    part = 2 / (9 * degrees)
    return degrees * max(0.0, 1 - part + normal * sqrt(part)) ** 3


# --- from one load to the next --------------------------------------------------------------------


def drained(server: Serving, trial: Path) -> bool:
    """Wait until the server has let go of every connection, and no request is in its app. False
    where it has not after DRAIN_S, or is gone."""
    places = [(one.host, one.port) for one in (server, *server.others)]
    live, until = Live(trial), time.monotonic() + DRAIN_S
    while served_connections(places) or any(live.look()[0].values()):
        if time.monotonic() > until or not server.process.running:
            return False
        time.sleep(POLL_S)
    return True


def keep_pilot(trial: Path) -> None:
    """Make room for what the next load will write. Raises OSError."""
    before = len(list(trial.glob(f"{PILOT}*")))
    place = trial / (f"{PILOT}-{before + 1}" if before else PILOT)
    place.mkdir()
    for name in ("tool", FILE):
        (trial / name).rename(place / name)
