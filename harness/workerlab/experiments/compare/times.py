"""Distributions of the response times of a launch, from its load tool."""

from collections.abc import Iterable, Mapping, Sequence

from workerlab.experiments.reading import measurement_of
from workerlab.model import CellResult, Measurement, ParseError
from workerlab.numbers.quantiles import percents_of, quantile
from workerlab.run_store import Run

QUANTILES = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99"}  # reported by every load tool

Curve = Mapping[float, float]  # seconds, by percentage of responses that took no longer


def curve(run: Run, cell: CellResult) -> Curve:
    """The curve of a launch, as fine as its load tool reports. Failures are left out; if the tool
    does not separate them, only QUANTILES are used."""
    measurement = _measurement(run, cell)
    if measurement is not None and measurement.timings:
        return _curve_of(
            timing.end_s
            for timing in measurement.timings
            if timing.cause is None and timing.end_s is not None
        )
    if measurement is not None and not measurement.failed and measurement.responses_s:
        return _curve_of(measurement.responses_s)
    if measurement is not None and not measurement.failed and measurement.percentiles_s:
        return measurement.percentiles_s
    quantiles = {percent: getattr(cell.response, name) for percent, name in QUANTILES.items()}
    return {percent: value for percent, value in quantiles.items() if value is not None}


def _measurement(run: Run, cell: CellResult) -> Measurement | None:
    record = run.records.get(cell.trial.key)
    try:
        return None if record is None else measurement_of(cell.trial, record, run.directory)
    except ParseError:
        return None


def _curve_of(times_s: Iterable[float]) -> Curve:
    ordered = sorted(times_s)
    return {percent: quantile(ordered, percent / 100) for percent in percents_of(len(ordered))}


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over several launches at the points they share."""
    common = set(curves[0]).intersection(*curves[1:]) if curves else set()
    return {at: sum(curve[at] for curve in curves) / len(curves) for at in sorted(common)}
