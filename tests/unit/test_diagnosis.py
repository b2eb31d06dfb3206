"""The corpus without servers: its scenarios are consistent, and its recorded runs are diagnosed by
the current rules. To record them: `python -m tests.diagnosis.run --record`."""

import pytest
from msgspec.structs import replace

from tests.builders.runs import CORPUS, recorded
from tests.diagnosis import table
from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import FALSE, MISSING, RIGHT
from tests.diagnosis.store import statements_of
from tests.diagnosis.truth import CODES, Scenario, truth
from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.cli import parse


def recorded_scenario(name: str) -> tuple[Scenario, bool]:
    """The scenario of a recorded run, and whether it was recorded with noise."""
    scenario, _, kind = name.rpartition("-")
    return SCENARIOS[scenario], kind == "noise"


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_each_cell_of_a_scenario_has_expectations(scenario: Scenario) -> None:
    options = parse(["sweep", *scenario.argv])
    rates = [rate.label for rate in options.rate or ()]
    assert {*map(str, options.levels), *rates} == set(scenario.cells)
    for expected in scenario.cells.values():
        required = {code for must in expected.must for code in must.split("|")}
        assert required | expected.may | expected.forbidden <= CODES
        assert not required & expected.forbidden


def test_codes_of_the_scenarios_are_diagnoses() -> None:
    def kinds(base: type) -> set[type]:
        return {base}.union(*map(kinds, base.__subclasses__()))

    assert {kind.__name__ for kind in kinds(Diagnosis)} > CODES


@pytest.mark.parametrize("name", CORPUS)
def test_a_recorded_run_is_diagnosed_correctly(name: str) -> None:
    scenario, noise = recorded_scenario(name)
    statements = statements_of(recorded(name), scenario, noise=noise)
    assert any(statement.outcome == RIGHT for statement in statements)
    assert not [(statement, statement.sentence) for statement in table.misses(statements)]


def test_a_wrong_report_is_noticed() -> None:
    """A recorded run, judged by another run's expectations."""
    name = "sync-sleeps-quiet"
    scenario, noise = recorded_scenario(name)
    drifts = dict.fromkeys(scenario.cells, truth("generator-bound", "Drift", "WaitingForSlots"))
    statements = statements_of(recorded(name), replace(scenario, cells=drifts), noise=noise)
    outcomes = {(statement.kind, statement.code, statement.outcome) for statement in statements}
    assert outcomes >= {
        ("verdict", "saturated", FALSE), ("verdict", "generator-bound", MISSING),
        ("finding", "Drift", MISSING), ("finding", "NothingWaits", FALSE),
    }  # fmt: skip
    assert ("finding", "WaitingForSlots", FALSE) not in outcomes
    assert len(table.misses(statements)) < sum(statement.wrong for statement in statements)
    assert "false verdict saturated" in table.as_text(statements)
