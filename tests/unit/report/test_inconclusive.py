"""An inconclusive cell: shown in every format, counted by no sentence, no failure."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import sentence
from tests.builders.html import cell, group, over_time, trial
from tests.builders.page import rendered
from workerlab.analysis.cells import WaitingByLittle
from workerlab.analysis.diagnosis.cpu import CoresTaken
from workerlab.analysis.overview import ALL_INCONCLUSIVE
from workerlab.finding import Finding
from workerlab.model import CellResult, CoreWait, Document, Report
from workerlab.report import FORMATS
from workerlab.report.html.page import headline_of
from workerlab.report.sweep_document import AffectedCells, sweep_document
from workerlab.report.text import VERDICT_COLOURS, render
from workerlab.report.values import text

WAITS = sentence("requests waited, nobody knows for whom")


def inconclusive(connections: int, reason: Finding = WAITS) -> CellResult:
    return replace(cell(trial("sync", connections)), verdict="inconclusive", reason=reason)


def sweep(*cells: CellResult, knee: float | None = None) -> Document:
    telling = replace(group("sync", knee=knee), telling=cells[-1].trial.key)
    seen = tuple(over_time(one.trial) for one in cells)
    report = Report("by-hand", {}, None, cells, (telling,), {})
    return replace(sweep_document(report), timelines=seen)


def codes(document: Document) -> dict[str, Any]:
    return {one.code: one.values for one in document.findings}


def affected(document: Document, state: str) -> list[AffectedCells]:
    affected_cells = [each for each in document.findings if isinstance(each, AffectedCells)]
    return [each for each in affected_cells if each.state == state]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_shows_word_and_reason(name: str) -> None:
    shown = FORMATS[name](sweep(cell(trial("sync", 4)), inconclusive(8)))
    assert "inconclusive" in shown
    assert text(WAITS) in shown


def test_the_page_and_the_terminal_have_a_look_for_it() -> None:
    document = sweep(inconclusive(8))
    assert "\x1b[34minconclusive" in render(document, colour=True)
    assert len(set(VERDICT_COLOURS.values())) == len(VERDICT_COLOURS)
    page = rendered(document)
    assert ".inconclusive::before" in page.styles
    assert page.text.count(text(WAITS)) >= 2  # beside the answer, and with its cell


def test_disturbed_cells_with_a_verdict_are_told_once() -> None:
    noise = CoresTaken(0.4, CoreWait(0.4, 0.001, others_cores=1.5, cores=2))
    quiet, one, other = (cell(trial("sync", n)) for n in (2, 4, 8))
    disturbed = [replace(cell, findings=(noise,), diagnosis=noise) for cell in (one, other)]
    document = sweep(quiet, *disturbed)
    (conclusion,) = affected(document, "Disturbed")
    assert conclusion.trials == (one.trial.key, other.trial.key)
    assert render(document).count("1.50 of 2 cores") == 1  # not by its class, too
    assert not affected(sweep(quiet, inconclusive(8)), "Disturbed")


def test_no_conclusion_on_a_class_or_run_rests_on_a_disturbed_cell() -> None:
    wait = CoreWait(0.4, 0.001, others_cores=1.5, cores=2)
    calm, *others = (cell(trial("sync", n)) for n in (4, 8, 16))
    disturbed = [replace(one, core_wait=wait) for one in others]
    conclusion = codes(sweep(*disturbed, knee=4.0))["SeriesLimits"]
    assert conclusion["saturated_from"] is None
    assert codes(sweep(*others, knee=4.0))["SeriesLimits"]["saturated_from"] == 8
    assert headline_of(sweep(*disturbed)) == ALL_INCONCLUSIVE
    assert headline_of(sweep(calm, *disturbed)).values["connections"] == 4


def test_it_is_no_failure() -> None:
    assert sweep(inconclusive(8)).valid


def test_a_class_is_not_saturated_by_it() -> None:
    conclusion = codes(sweep(cell(trial("sync", 4)), inconclusive(8), knee=4.0))["SeriesLimits"]
    assert (conclusion["saturated_from"], conclusion["inconclusive"]) == (None, ("8",))
    assert conclusion["why"] is None


def test_a_level_of_which_a_trial_tells_is_told() -> None:
    told = cell(trial("sync", 8, number=2))
    conclusion = codes(sweep(inconclusive(8), told, knee=4.0))["SeriesLimits"]
    assert (conclusion["saturated_from"], conclusion["inconclusive"]) == (8, ())


def test_a_class_of_nothing_else_is_not_known() -> None:
    found = codes(sweep(inconclusive(8), inconclusive(16), knee=4.0))
    assert "InconclusiveSeries" in found
    assert "SeriesLimits" not in found


def test_one_kind_of_reason_is_told_once() -> None:
    reasons = [sentence(f"requests waited {n} ms") for n in (10, 20)]
    (conclusion,) = affected(sweep(*map(inconclusive, (8, 16), reasons)), "Inconclusive")
    assert conclusion.cells == "every cell"
    assert (conclusion.reason, conclusion.example) == (reasons[0], "sync at 8")


def test_all_that_is_so_of_a_cell_is_told() -> None:
    first, second = sentence("the first thing"), sentence("another thing")
    second = WaitingByLittle("x")
    one = replace(cell(trial("sync", 8)), diagnosis=first, findings=(first, second))
    document = sweep(one)
    (found,) = json.loads(FORMATS["json"](document))["cells"]
    assert [one["code"] for one in found["findings"]] == [first.code, second.code]
    assert "x gives no exact mean" in render(document, explain=True)
    assert "x gives no exact mean" in rendered(document).text
    two = replace(one, trial=trial("sync", 8, number=2), findings=(first,))
    shown = " ".join(render(sweep(one, two), explain=True).split())
    assert re.search(r"x gives no exact mean[^(]*\(In 1 of 2 trials.\)", shown)
    assert "the first thing (In" not in shown
