"""The corpus without its servers: its scenarios make sense, and recorded runs of them are judged
again by the rules of today. Recorded anew with `python -m tests.diagnosis.run --record`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.runs import CORPUS, recorded
from tests.diagnosis import table
from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import FALSE, MISSING, RIGHT, Statement
from tests.diagnosis.store import statements_of
from tests.diagnosis.truth import CODES, Scenario, truth
from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.cli import parse


def of_recorded(name: str) -> tuple[Scenario, bool]:
    """The scenario of a recorded run, and whether it was made beside noise."""
    scenario, _, kind = name.rpartition("-")
    return SCENARIOS[scenario], kind == "noise"


def statements(name: str) -> list[Statement]:
    scenario, noise = of_recorded(name)
    return statements_of(recorded(name), scenario, noise=noise)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda one: one.name)
def test_each_cell_of_a_scenario_has_its_truth(scenario: Scenario) -> None:
    options = parse(["sweep", *scenario.argv])
    rates = [one.label for one in options.rate or ()]
    assert {*map(str, options.levels), *rates} == set(scenario.cells)
    for one in scenario.cells.values():
        required = {code for must in one.must for code in must.split("|")}
        assert required | one.may | one.forbidden <= CODES
        assert not required & one.forbidden


def test_what_the_scenarios_name_are_diagnoses() -> None:
    assert {kind.__name__ for kind in _kinds(Diagnosis)} > CODES


def _kinds(base: type) -> set[type]:
    return {base}.union(*map(_kinds, base.__subclasses__()))


@pytest.mark.parametrize("name", CORPUS)
def test_a_recorded_run_is_understood(name: str) -> None:
    found = statements(name)
    assert any(one.outcome == RIGHT for one in found)
    assert not [(one, one.sentence) for one in table.misses(found)]


def test_a_wrong_report_is_noticed() -> None:
    """A recorded run, judged as if it had been another."""
    name = "sync-sleeps-quiet"
    scenario = of_recorded(name)[0]
    drifts = dict.fromkeys(scenario.cells, truth("generator-bound", "Drift", "WaitingForSlots"))
    found = statements_of(recorded(name), replace(scenario, cells=drifts), noise=False)
    outcomes = {(one.kind, one.code, one.outcome) for one in found}
    assert {
        ("verdict", "saturated", FALSE),
        ("verdict", "generator-bound", MISSING),
        ("finding", "Drift", MISSING),
        ("finding", "NothingWaits", FALSE),
    } <= outcomes
    assert ("finding", "WaitingForSlots", FALSE) not in outcomes
    assert len(table.misses(found)) < sum(one.wrong for one in found)
    assert "false verdict saturated" in table.as_text(found)
