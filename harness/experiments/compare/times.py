"""How the response times of a launch are distributed, from what its load tool told."""

from collections.abc import Sequence

from harness.experiments.reading import measurement_of
from harness.model import CellResult, ParseError
from harness.numbers.quantiles import quantile
from harness.run_store import Run

# Of the responses, per cent: where a curve has its points, and what any load tool tells
PERCENTS = (*map(float, range(1, 100)), 99.5, 99.9)
QUANTILES = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99"}

Curve = dict[float, float]  # seconds, by per cent of the responses that took no longer


def times_s(run: Run, cell: CellResult) -> Sequence[float]:
    """Of each success, ascending; none where the load tool does not tell them one by one, or apart
    from failures."""
    record = run.records.get(cell.trial.key)
    if record is None:
        return ()
    try:
        said = measurement_of(cell.trial, record, run.directory)
    except ParseError:
        return ()
    if said is None or said.timings:
        timings = said.timings if said else ()
        return sorted(one.end_s for one in timings if one.cause is None and one.end_s is not None)
    return () if said.failed else sorted(said.responses_s)


def curve(run: Run, cell: CellResult) -> Curve:
    """At each of PERCENTS that is a response apart from the slowest, else at QUANTILES."""
    if ordered := times_s(run, cell):
        most = 100 * (1 - 1 / len(ordered))
        return {
            percent: quantile(ordered, percent / 100) for percent in PERCENTS if percent <= most
        }
    known = {percent: getattr(cell.response, name) for percent, name in QUANTILES.items()}
    return {percent: value for percent, value in known.items() if value is not None}


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Of several launches, where all have a point."""
    common = set(curves[0]).intersection(*curves[1:]) if curves else set()
    return {at: sum(one[at] for one in curves) / len(curves) for at in sorted(common)}
