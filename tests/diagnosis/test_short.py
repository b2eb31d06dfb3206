"""The subset of the corpus that every test run makes, through the real command line.

What runs beside it is the noise, and may take all cores for as long as it likes: any cell may be
inconclusive where it says that it waited for a core, and where others were at work a finding may be
missing. Nothing may be reported that is not so.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.diagnosis import run, store, table
from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import FALSE
from tests.diagnosis.truth import Scenario

MOST_S = 5
SHORT = [one for one in SCENARIOS.values() if one.short]


@pytest.fixture(scope="session")
def own_networks() -> bool:
    return run.own_networks()


@pytest.mark.parametrize("scenario", SHORT, ids=lambda one: one.name)
def test_nothing_is_said_that_is_not_so(
    scenario: Scenario, tmp_path: Path, own_networks: bool
) -> None:
    ran = run.run(scenario, tmp_path, False, 1, own_networks, MOST_S)
    found = store.statements(tmp_path, ran, replace(scenario, sleeper=False))
    assert any(one.kind == "verdict" for one in found)
    wrong = [one for one in table.misses(found) if one.outcome == FALSE or not one.noisy]
    assert not [f"{table.line_of(one)}: {one.sentence}" for one in wrong]
