"""The distribution of a launch's response times, as reported by its load tool."""

from typing import Any

import pytest

from tests.builders.analysis import result_of
from tests.builders.null import null_trial
from workerlab.experiments.compare.document import Curve, curve, mean_curve
from workerlab.model.evidence import Measurement, Summary, Timing
from workerlab.model.plan import Cell, Load, Server, Trial

TRIAL = Trial(Cell(Server("sync", 1, 1, 2048, 1000), "fast", 1), 1)
CELL = result_of(TRIAL, response=Summary(p50=0.5, p99=2.0))


def timing(end_s: float | None, cause: str | None = None) -> Timing:
    return Timing(0.0, 0.0, end_s, end_s, 200, cause)


def curve_of(**values: Any) -> Curve:
    """The curve of a launch whose load tool reports these values."""
    measurement = Measurement(**{"requests": 100, "failed": 0, "errors": {}, "duration_s": 1.0,
                                 "rps": 100.0, "response": Summary(), **values})  # fmt: skip
    return curve(null_trial("launch", "fast", Load(1, 100, 1.0, 60.0), measurement), CELL)


def test_only_successes_count() -> None:
    successes = [timing(n / 100) for n in range(1, 201)]
    failures = [timing(99.0, "timeout"), timing(None, "reset")]
    quantiles = curve_of(timings=(*failures, *reversed(successes)), failed=2)
    assert quantiles[50.0] == pytest.approx(1.0, abs=0.01)
    assert quantiles[99.0] == pytest.approx(1.98, abs=0.01)
    assert 99.9 not in quantiles  # 200 requests are too few for it
    assert list(quantiles.values()) == sorted(quantiles.values())


def test_single_times_are_preferred_to_the_tools_quantiles() -> None:
    times_s, percentiles_s = (0.3, 0.1, 0.2, 0.4), {10.0: 0.1, 20.0: 0.2}
    assert set(curve_of(responses_s=times_s)) == {1.0, *map(float, range(5, 76, 5))}
    both = curve_of(responses_s=times_s, percentiles_s=percentiles_s)
    assert both == curve_of(responses_s=times_s)
    assert curve_of(percentiles_s=percentiles_s) == percentiles_s
    cell_quantiles = {50.0: 0.5, 99.0: 2.0}
    # It is unknown which of the times belongs to the failure
    assert curve_of(responses_s=times_s, failed=1) == cell_quantiles
    assert curve_of(percentiles_s=percentiles_s, failed=1) == cell_quantiles
    assert curve_of() == curve(None, CELL) == cell_quantiles


def test_the_mean_curve_has_points_that_all_launches_have() -> None:
    assert mean_curve([{50.0: 1.0, 99.0: 4.0}, {50.0: 3.0}]) == {50.0: 2.0}
    assert mean_curve([]) == {}
