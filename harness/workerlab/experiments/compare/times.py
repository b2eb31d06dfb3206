"""How the response times of a launch are distributed, from what its load tool told."""

from collections.abc import Iterable, Mapping, Sequence

from workerlab.experiments.reading import measurement_of
from workerlab.model import CellResult, Measurement, ParseError
from workerlab.numbers.quantiles import percents_of, quantile
from workerlab.run_store import Run

QUANTILES = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99"}  # that any load tool tells

Curve = Mapping[float, float]  # seconds, by per cent of the responses that took no longer


def curve(run: Run, cell: CellResult) -> Curve:
    """Of a launch, as finely as its load tool tells. Failures are left out, or nothing but
    QUANTILES where the tool does not tell them apart."""
    said = _said(run, cell)
    if said is not None and said.timings:
        return _of(one.end_s for one in said.timings if one.cause is None and one.end_s is not None)
    if said is not None and not said.failed and said.responses_s:
        return _of(said.responses_s)
    if said is not None and not said.failed and said.percentiles_s:
        return said.percentiles_s
    known = {percent: getattr(cell.response, name) for percent, name in QUANTILES.items()}
    return {percent: value for percent, value in known.items() if value is not None}


def _said(run: Run, cell: CellResult) -> Measurement | None:
    record = run.records.get(cell.trial.key)
    try:
        return None if record is None else measurement_of(cell.trial, record, run.directory)
    except ParseError:
        return None


def _of(times_s: Iterable[float]) -> Curve:
    ordered = sorted(times_s)
    return {percent: quantile(ordered, percent / 100) for percent in percents_of(len(ordered))}


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Of several launches, where all have a point."""
    common = set(curves[0]).intersection(*curves[1:]) if curves else set()
    return {at: sum(one[at] for one in curves) / len(curves) for at in sorted(common)}
