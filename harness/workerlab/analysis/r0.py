"""R0, how long a request holds a slot when it has the server for itself; the bound follows from it.

Three sources, the first that is precise enough:

    lone requests      one after the other, before the load: their median where their mean is
                       within 5 % of it, else their mean; the 95 % interval is Student's.
                       Of a mix, rounds of its routes, each with the mean of its requests by weight
    the lightest load  the mean span of its lowest level and what a lone request takes beside its
                       span, where that lies inside the interval of the lone ones and is known
                       better: of a random service a few lone requests say little
    the load's limit   X <= min(N, C)/R0, so R0 <= min(N, C)/X: lone requests that took longer were
                       slow for a reason of their own

Successes alone count, on both sides: an app that sheds answers its failures in no time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from msgspec import Struct

from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.occupancy import overhead_s
from workerlab.analysis.samples import durations_s
from workerlab.finding import Finding
from workerlab.model import Server
from workerlab.numbers.intervals import half_of_mean

CONTRADICTED = 1.05  # how much longer than the load proves a lone response may seem
AGREE = (
    0.05  # of the median, from which the mean may differ: the tail is the machine's, not the app's
)
KNOWN = 0.02  # half of an interval, as a part of its mean: lone requests say it well enough
ENOUGH = 16  # spans for an interval of their mean
MOSTLY = 0.99  # of the answers are successes: spans of failures do not change the mean


class R0(Struct, frozen=True):
    """Seconds, and half of the 95 % interval: None where there are too few responses to tell."""

    seconds: float
    half_s: float | None

    @property
    def relative_half(self) -> float:
        return self.half_s / self.seconds if self.half_s and self.seconds else 0.0


UNKNOWN = R0(0.0, None)  # no lone request was answered: no trial is valid then


def lone_responses(trials: Iterable[TrialData]) -> Mapping[Server, R0 | None]:
    """R0 of each server by the lone requests of all its trials: those of the warm-up and, where the
    tool tells it, its own lone first one. A lone request holds a slot for as long as the server
    really does, longer than the app runs."""
    values: dict[Server, list[float]] = defaultdict(list)
    for trial in trials:
        found = values[trial.cell.server]
        if trial.record is not None and trial.record.fault is None:
            # Of a mix, the tool's own is of one of its requests
            mixed, measurement = bool(trial.record.lone_weights), trial.measurement
            own = measurement.lone_s if measurement and not mixed else None
            found += [one for one in (*trial.record.alone_s, own or 0.0) if one > 0]
    return {server: _of_lone(found) for server, found in values.items()}


def _of_lone(values: Sequence[float]) -> R0 | None:
    if not values:
        return None
    if len(values) == 1:
        return R0(values[0], None)
    middle, found = median(values), _mean(values)
    alike = abs(found.seconds - middle) <= AGREE * middle
    return R0(middle, found.half_s) if alike else found


def _mean(values: Sequence[float]) -> R0:
    return R0(fmean(values), half_of_mean(values))


class SlowerAlone(Finding):
    """lone requests took {lone_s:duration}, slower than under load, where no request holds a slot
    for more than {most_s:duration} on average: bound and knee are computed from that"""

    lone_s: float
    most_s: float


def under_load(lone: R0, closed: Sequence[Facts]) -> tuple[R0, tuple[Finding, ...]]:
    """R0 in the light of the valid trials of a closed loop, and what there is to note of it."""
    lightest = _of_lightest(closed) if lone.relative_half > KNOWN else None
    if lightest and abs(lightest.seconds - lone.seconds) <= (lone.half_s or 0.0):
        lone = min(lone, lightest, key=lambda one: one.relative_half)
    limits_s = [facts.parallel / rps for facts in closed if (rps := facts.throughput_rps) > 0]
    most_s = min(limits_s, default=None)
    if most_s is None or lone.seconds <= CONTRADICTED * most_s:
        return lone, ()
    return R0(most_s, lone.half_s), (SlowerAlone(lone.seconds, most_s),)


def _of_lightest(closed: Sequence[Facts]) -> R0 | None:
    """By the spans of the lowest level; None where they are few, or some of them failures."""
    lowest = min((facts.connections for facts in closed), default=0)
    trials = [facts for facts in closed if facts.connections == lowest]
    spans_s = [one for facts in trials for one in durations_s(facts.finished)]
    if len(spans_s) < ENOUGH or min(facts.outcome.success for facts in trials) < MOSTLY:
        return None
    spans = _mean(spans_s)
    return R0(spans.seconds + median(map(overhead_s, trials)), spans.half_s)
