"""How the response times of a launch are distributed, by what its load tool told."""

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


def said(monkeypatch: pytest.MonkeyPatch, **words: Any) -> None:
    found = Measurement(**{"requests": 100, "failed": 0, "errors": {}, "duration_s": 1.0,
                           "rps": 100.0, "response": Summary(), **words})  # fmt: skip
    monkeypatch.setattr(document, "measurement_of", lambda *_: found)


def test_every_success_counts_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [timing(n / 100) for n in range(1, 201)]
    bad = [timing(99.0, "timeout"), timing(None, "reset")]
    said(monkeypatch, timings=(*bad, *reversed(good)), failed=2)
    found = curve(RUN, CELL)
    assert found[50.0] == pytest.approx(1.0, abs=0.01)
    assert found[99.0] == pytest.approx(1.98, abs=0.01)
    assert 99.9 not in found  # of 200 requests nobody knows it
    assert list(found.values()) == sorted(found.values())


def test_what_the_load_tool_tells_one_by_one_or_else_its_quantiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said(monkeypatch, responses_s=(0.3, 0.1, 0.2, 0.4))
    assert set(curve(RUN, CELL)) == {1.0, *map(float, range(5, 76, 5))}
    said(monkeypatch, responses_s=(0.3, 0.1, 0.2, 0.4), failed=1)  # whose is not told
    assert curve(RUN, CELL) == {50.0: 0.5, 99.0: 2.0}
    said(monkeypatch, percentiles_s={10.0: 0.1, 20.0: 0.2})
    assert curve(RUN, CELL) == {10.0: 0.1, 20.0: 0.2}
    said(monkeypatch, percentiles_s={10.0: 0.1, 20.0: 0.2}, failed=1)
    assert curve(RUN, CELL) == {50.0: 0.5, 99.0: 2.0}
    said(monkeypatch)
    assert curve(RUN, CELL) == {50.0: 0.5, 99.0: 2.0}

    def damaged(*_: object) -> Measurement:
        raise ParseError("cut short")

    monkeypatch.setattr(document, "measurement_of", damaged)
    assert curve(RUN, CELL) == {50.0: 0.5, 99.0: 2.0}


def test_the_mean_of_launches_where_all_have_a_point() -> None:
    assert mean_curve([{50.0: 1.0, 99.0: 4.0}, {50.0: 3.0}]) == {50.0: 2.0}
    assert mean_curve([]) == {}
