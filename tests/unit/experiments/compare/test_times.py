"""The distribution of response times of a launch, from what its load tool reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workerlab.experiments.compare import document
from workerlab.experiments.compare.document import curve, mean_curve
from workerlab.finding import Note
from workerlab.model import (
    Cell,
    CellResult,
    Measurement,
    ParseError,
    Record,
    Server,
    Summary,
    Timing,
    Trial,
)

TRIAL = Trial(Cell(Server("sync", 1, 1, 2048, 1000), "fast", 1), 1)
CELL = CellResult(
    TRIAL,
    "",
    None,
    "at capacity",
    Note("at capacity"),
    response=Summary(p50=0.5, p99=2.0),
)
RUN: Any = SimpleNamespace(records={TRIAL.key: Record(TRIAL.key, None)}, directory=Path("run"))


def timing(end_s: float | None, cause: str | None = None) -> Timing:
    return Timing(0.0, 0.0, end_s, end_s, 200, cause)


def report_times(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    measurement = Measurement(**{"requests": 100, "failed": 0, "errors": {}, "duration_s": 1.0,
                                 "rps": 100.0, "response": Summary(), **values})  # fmt: skip
    monkeypatch.setattr(document, "measurement_of", lambda *_: measurement)


def test_only_successes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    successes = [timing(n / 100) for n in range(1, 201)]
    failures = [timing(99.0, "timeout"), timing(None, "reset")]
    report_times(monkeypatch, timings=(*failures, *reversed(successes)), failed=2)
    quantiles = curve(RUN, CELL)
    assert quantiles[50.0] == pytest.approx(1.0, abs=0.01)
    assert quantiles[99.0] == pytest.approx(1.98, abs=0.01)
    assert 99.9 not in quantiles  # 200 requests are too few for it
    assert list(quantiles.values()) == sorted(quantiles.values())


def test_single_times_are_used_or_else_the_tools_quantiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report_times(monkeypatch, responses_s=(0.3, 0.1, 0.2, 0.4))
    assert set(curve(RUN, CELL)) == {1.0, *map(float, range(5, 76, 5))}
    # It is unknown which of the times is that of the failure
    report_times(monkeypatch, responses_s=(0.3, 0.1, 0.2, 0.4), failed=1)
    assert curve(RUN, CELL) == {50.0: 0.5, 99.0: 2.0}
    report_times(monkeypatch, percentiles_s={10.0: 0.1, 20.0: 0.2})
    assert curve(RUN, CELL) == {10.0: 0.1, 20.0: 0.2}
    report_times(monkeypatch, percentiles_s={10.0: 0.1, 20.0: 0.2}, failed=1)
    assert curve(RUN, CELL) == {50.0: 0.5, 99.0: 2.0}
    report_times(monkeypatch)
    assert curve(RUN, CELL) == {50.0: 0.5, 99.0: 2.0}

    def damaged(*_: object) -> Measurement:
        raise ParseError("cut short")

    monkeypatch.setattr(document, "measurement_of", damaged)
    assert curve(RUN, CELL) == {50.0: 0.5, 99.0: 2.0}


def test_the_mean_curve_has_points_that_all_launches_have() -> None:
    assert mean_curve([{50.0: 1.0, 99.0: 4.0}, {50.0: 3.0}]) == {50.0: 2.0}
    assert mean_curve([]) == {}
