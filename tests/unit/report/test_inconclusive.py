"""An inconclusive cell: visible in every format, ignored by conclusions, and not a failure."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import evidence, sentence
from tests.builders.html import cell, group, over_time, trial
from tests.builders.noise import noisy
from tests.builders.page import rendered
from tests.builders.sweep import affected
from workerlab.analysis import analyse
from workerlab.analysis.cells import WaitingByLittle
from workerlab.analysis.class_findings import conclusions_of
from workerlab.analysis.diagnosis.cpu import CoresTaken
from workerlab.analysis.overview import ALL_INCONCLUSIVE
from workerlab.experiments.sweep.document import sweep_document
from workerlab.finding import Finding
from workerlab.model.result import CoreWait, Document, Report, Result
from workerlab.report import FORMATS
from workerlab.report.html.page import headline_of
from workerlab.report.text import VERDICT_COLOURS, render
from workerlab.report.values import text

WAITS = sentence("requests waited for an unknown reason")


def inconclusive(connections: int, reason: Finding = WAITS) -> Result:
    return replace(cell(trial("sync", connections)), verdict="inconclusive", reason=reason)


def sweep(*cells: Result, knee: float | None = None) -> Document:
    sync = replace(group("sync", knee=knee), diagnosed_trial=cells[-1].trial.key)
    timelines = tuple(over_time(cell.trial) for cell in cells)
    report = Report("by-hand", {}, None, cells, (sync,), {})
    return replace(sweep_document(report), timelines=timelines)


def values_by_code(document: Document) -> dict[str, Any]:
    return {finding.code: finding.values for finding in document.findings}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_verdict_and_reason(name: str) -> None:
    output = FORMATS[name](sweep(cell(trial("sync", 4)), inconclusive(8)))
    assert "inconclusive" in output
    assert text(WAITS) in output


def test_the_page_and_the_terminal_have_a_style_for_the_verdict() -> None:
    document = sweep(inconclusive(8))
    assert "\x1b[34minconclusive" in render(document, colour=True)
    assert len(set(VERDICT_COLOURS.values())) == len(VERDICT_COLOURS)
    page = rendered(document)
    assert ".inconclusive::before" in page.styles
    assert page.text.count(text(WAITS)) >= 2  # in the findings, and with its cell


def test_the_reason_of_an_inconclusive_cell_comes_before_its_other_findings() -> None:
    finding = sentence("a response takes 2 s")
    shown = replace(inconclusive(8), findings=(finding,))
    assert conclusions_of(shown) == (WAITS, finding)
    assert conclusions_of(replace(shown, verdict="saturated")) == (finding,)


def test_disturbed_cells_with_a_verdict_are_reported_once() -> None:
    noise = CoresTaken(0.4, CoreWait(0.4, 0.001, others_cores=1.5, cores=2))
    undisturbed, *others = (cell(trial("sync", n)) for n in (2, 4, 8))
    disturbed = [replace(cell, findings=(noise,), diagnosis=noise) for cell in others]
    document = sweep(undisturbed, *disturbed)
    (conclusion,) = affected(document, "Disturbed")
    assert conclusion.trials == tuple(cell.trial.key for cell in others)
    more_noise = CoresTaken(0.7, CoreWait(0.7, 0.001, others_cores=1.6, cores=2))
    more_disturbed = replace(disturbed[-1], findings=(more_noise,), diagnosis=more_noise)
    (conclusion,) = affected(sweep(undisturbed, disturbed[0], more_disturbed), "Disturbed")
    assert "for up to 70 % of the response time" in text(conclusion)  # 40 % at 4
    assert conclusion.example == "sync at 8"
    assert render(document).count("1.50 of 2 cores") == 1  # not repeated for the class
    assert not affected(sweep(undisturbed, inconclusive(8)), "Disturbed")


def test_no_conclusion_on_a_class_or_run_rests_on_a_disturbed_cell() -> None:
    wait = CoreWait(0.4, 0.001, others_cores=1.5, cores=2)
    undisturbed, *others = (cell(trial("sync", n)) for n in (4, 8, 16))
    disturbed = [replace(cell, core_wait=wait) for cell in others]
    conclusion = values_by_code(sweep(*disturbed, knee=4.0))["SeriesLimits"]
    assert conclusion["saturated_from"] is None
    assert values_by_code(sweep(*others, knee=4.0))["SeriesLimits"]["saturated_from"] == 8
    assert headline_of(sweep(*disturbed)) == ALL_INCONCLUSIVE
    assert headline_of(sweep(undisturbed, *disturbed)).values["connections"] == 4


def test_a_class_that_others_disturbed_has_neither_diagnosis_nor_advice() -> None:
    trials = [evidence(connections=n, tool="fast") for n in (4, 8)]
    report = analyse("r", {}, [noisy(trial, server_wait=0.8, others=1.8) for trial in trials])
    assert all(cell.is_disturbed for cell in report.cells)
    assert len(report.cells[-1].findings) > 1
    document = sweep_document(report)
    output = " ".join(render(document, explain=True).split())
    assert "sync: 4 slots; inconclusive: other programs used 1.80 of 2 cores." in output
    for words in ("share 4 slots", "knee at", "knee inconclusive", "more workers"):
        assert words not in output
    assert "more workers, threads" not in rendered(document).text


def test_an_inconclusive_level_does_not_saturate_a_class() -> None:
    document = sweep(cell(trial("sync", 4)), inconclusive(8), knee=4.0)
    conclusion = values_by_code(document)["SeriesLimits"]
    assert (conclusion["saturated_from"], conclusion["inconclusive"]) == (None, ("8",))
    assert conclusion["why"] is None
    assert document.valid
    one_is_conclusive = sweep(inconclusive(8), cell(trial("sync", 8, number=2)), knee=4.0)
    conclusion = values_by_code(one_is_conclusive)["SeriesLimits"]
    assert (conclusion["saturated_from"], conclusion["inconclusive"]) == (8, ())


def test_a_class_of_inconclusive_cells_is_inconclusive() -> None:
    findings = values_by_code(sweep(inconclusive(8), inconclusive(16), knee=4.0))
    assert "InconclusiveSeries" in findings
    assert "SeriesLimits" not in findings


def test_reasons_of_one_kind_are_reported_once() -> None:
    reasons = [sentence(f"requests waited {n} ms") for n in (10, 20)]
    (conclusion,) = affected(sweep(*map(inconclusive, (8, 16), reasons)), "Inconclusive")
    assert conclusion.cells == "every cell"
    assert (conclusion.reason, conclusion.example) == (reasons[0], "sync at 8")


def test_all_findings_of_a_cell_are_reported() -> None:
    first, second = sentence("the first thing"), WaitingByLittle("x")
    both = replace(cell(trial("sync", 8)), diagnosis=first, findings=(first, second))
    document = sweep(both)
    (parsed,) = json.loads(FORMATS["json"](document))["cells"]
    assert [finding["code"] for finding in parsed["findings"]] == [first.code, second.code]
    for output in (render(document, explain=True), rendered(document).text):
        assert "x gives no exact mean" in output
    only_first = replace(both, trial=trial("sync", 8, number=2), findings=(first,))
    explained = " ".join(render(sweep(both, only_first), explain=True).split())
    assert re.search(r"x gives no exact mean[^(]*\(In 1 of 2 trials.\)", explained)
    assert "the first thing (In" not in explained
