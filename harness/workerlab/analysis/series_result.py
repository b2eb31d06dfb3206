"""The conclusions of a series: verdicts and knee, capacity, and the most telling cell.

Verdicts do not depend on the knee, with one exception: without slots, only the knee shows that
cells in which nothing waits are at capacity. So all other verdicts are decided first, then the knee
from the conclusive trials, then these.

Capacity needs a knee, levels on both sides of it, and repeated trials. With Ĉ = Xmax * R0: above
it, log X of every trial with N >= 2Ĉ; below it, log(X/N) of every trial with N <= Ĉ/2. log C = mean
above - mean below is the log of the slots, with Welch's 95 % interval. Multiplied by the rate of
one slot, exp(mean below), it becomes requests/s. The unit of replication is a fresh launch of the
server. In simulation this interval covered 94 to 97 %. A fitted breakpoint with bootstrap was
rejected, since it covered 68 to 87 %.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.knee import (
    NEAR_RATIO,
    Knee,
    KneeDoubtful,
    KneeUnknown,
    doubts_of,
    is_flat,
    knee_of,
    max_closed_rps,
)
from workerlab.analysis.series import REACHED_SHARE, Series
from workerlab.analysis.trials import Replicates, by_level, conclusive
from workerlab.analysis.verdict import Judgements, at_knee, verdict_of_closed
from workerlab.model import CellResult, ClassResult
from workerlab.numbers.intervals import TRIALS, half_width


class Conclusions(NamedTuple):
    """What the valid closed trials of a series show."""

    series: Series
    judgements: Judgements
    knee: Knee
    capacity: "Capacity"


def conclusions_of(series: Series) -> Conclusions:
    judgements = {facts.key: verdict_of_closed(facts, series) for facts in series.closed}
    knee = knee_of(series, judgements)
    return Conclusions(
        series=series,
        judgements=at_knee(series, judgements, knee.connections),
        knee=knee,
        capacity=capacity_of(series, knee),
    )


def class_result(conclusions: Conclusions, cells: Iterable[CellResult]) -> ClassResult:
    """`cells`: those of this series. The most telling cell is the valid one of the closed loop that
    falls furthest below its bound, as that is what settings can win back; if none does, the one
    with the most connections. Of several trials it is the first. Trials in doubt (`doubts_of`) are
    used only if there are no others."""
    closed = (cell for cell in cells if cell.trial.cell.rate is None)
    valid = [cell for cell in closed if cell.verdict != "invalid"]
    series, knee, capacity = conclusions.series, conclusions.knee, conclusions.capacity
    doubts = doubts_of(series, series.closed)
    clear = [cell for cell in valid if cell.trial.key not in doubts] or valid
    telling = max(clear, key=_telling_rank, default=None)
    return ClassResult(
        server=series.key.server,
        tool=series.key.tool,
        slots_configured=series.slots,
        slots_measured=max((facts.max_in_app for facts in series.closed), default=None),
        capacity_rps=capacity.rps,
        capacity_ci95=capacity.ci95,
        knee=knee.connections,
        knee_note=knee.note,
        level_rps=_level_rps(knee, valid),
        knee_predicted=_predicted(series),
        keepalive=series.key.keepalive,
        processes=series.key.processes,
        diagnosis=telling.diagnosis if telling else None,
        telling=telling.trial.key if telling else None,
        worker_class=series.trials[0].worker_class,
    )


def _predicted(series: Series) -> float | None:
    """The knee predicted from the app's known wait and CPU time, without Gunicorn's own CPU; None
    if a time or the number of cores is unknown."""
    server, cores = series.key.server, max((facts.cores or 0 for facts in series.closed), default=0)
    wait_s, cpu_s = server.app.sleep_s, server.cpu_s
    if wait_s is None or cpu_s is None or not cores:
        return None
    bound = max_closed_rps(server.workers, series.slots, cores, wait_s, cpu_s)
    return None if bound is None else bound * (wait_s + cpu_s)


def _telling_rank(cell: CellResult) -> tuple[float, int, int]:
    """The share of the bound that is lost, connections, and trial number, negated."""
    reached_share = (cell.throughput_rps or 0.0) / cell.bound_rps if cell.bound_rps else 1.0
    shows = not isinstance(cell.diagnosis, Diagnosis) or cell.diagnosis.shows_loss
    lost_share = round(1 - reached_share, 2) if reached_share < REACHED_SHARE and shows else 0.0
    return lost_share, cell.trial.cell.concurrency, -cell.trial.number


def _level_rps(knee: Knee, cells: Iterable[CellResult]) -> float | None:
    """The throughput at which the series levels off, as its cells report it (a stalled cell reports
    that of its whole load); None if it does not level off."""
    levels = {
        level: Replicates(tuple(trials)).median("throughput_rps") or 0.0
        for level, trials in by_level(filter(conclusive, cells)).items()
    }
    max_rps = max(levels.values(), default=0.0)
    flat = knee.rps is not None and max_rps >= REACHED_SHARE * knee.rps and is_flat(levels)
    return max_rps if flat else None


# --- capacity -------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """One valid trial: connections, trial number, successful requests/s."""

    concurrency: int
    trial: int
    rps: float


class Capacity(NamedTuple):
    """Requests/s with a 95 % interval, or the reason why there is none."""

    rps: float | None = None
    ci95: tuple[float, float] | None = None
    note: str = ""


STILL_GROWING = "throughput did not stop growing"
NO_LEVEL_BELOW = "the knee is too low for a level of at most half of it"


def capacity_of(series: Series, knee: Knee) -> Capacity:
    """By the trials in which the load tool was not the limit."""
    samples = [
        Sample(facts.connections, facts.data.trial.number, facts.throughput_rps)
        for facts in series.not_tool_limited
    ]
    if not samples and series.closed:
        return Capacity(note="every cell is generator-bound")
    no_knee = "" if knee.connections is not None else STILL_GROWING
    if isinstance(knee.note, KneeDoubtful | KneeUnknown):
        no_knee = f"the knee is {knee.note}"
    return capacity(samples, series.r0.seconds, no_knee=no_knee)


def capacity(samples: Sequence[Sample], lone_s: float | None, *, no_knee: str = "") -> Capacity:
    """The highest sustained throughput. `lone_s`: R0, seconds. `no_knee`: why throughput was not
    shown to stop growing; "": there is a knee."""
    samples = [sample for sample in samples if sample.rps > 0]
    if not samples or not lone_s:
        return Capacity(note="no valid cell")
    estimate = max(sample.rps for sample in samples) * lone_s
    above = [sample for sample in samples if sample.concurrency >= 2 * estimate / NEAR_RATIO]
    below = [sample for sample in samples if sample.concurrency <= estimate / 2 * NEAR_RATIO]
    missing = _missing(above, below, estimate)
    if missing:
        return Capacity(note=missing)
    if no_knee:
        return Capacity(note=no_knee)
    log_rates = [math.log(sample.rps) for sample in above]
    half = half_width(log_rates, [math.log(sample.rps / sample.concurrency) for sample in below])
    centre = fmean(log_rates)
    return Capacity(math.exp(centre), (math.exp(centre - half), math.exp(centre + half)))


def _missing(above: Sequence[Sample], below: Sequence[Sample], estimate: float) -> str:
    """What to add to the sweep; "" if nothing. Trials are missing if the side with the fewest
    launches has too few; a side without levels does not count."""
    low, high = math.floor(estimate / 2 * NEAR_RATIO), math.ceil(2 * estimate / NEAR_RATIO)
    trial_counts = [len({sample.trial for sample in side}) for side in (above, below) if side]
    if not below and not low:
        return NO_LEVEL_BELOW
    wants = [
        f"at least {TRIALS} trials" if min(trial_counts, default=0) < TRIALS else "",
        "" if below else f"a level of at most {low}",
        "" if above else f"a level of at least {high}",
    ]
    return f"an interval needs {' and '.join(filter(None, wants))}" if any(wants) else ""
