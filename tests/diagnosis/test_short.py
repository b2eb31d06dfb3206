"""The subset of the corpus that every test run makes, through the real command line.

What runs beside it is the noise, and may take all cores for as long as it likes: any cell may be
inconclusive where it says that it waited for a core, and where others were at work a finding may be
missing. Nothing may be reported that is not so. What a lone request takes is known beforehand, and
nobody looks at the machine meanwhile: where it stood still then, the scenario is run again.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from msgspec.structs import replace

from tests.diagnosis import run, store, table
from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import FALSE
from tests.diagnosis.truth import Scenario
from workerlab import run_store
from workerlab.experiments.reading import trial_data

MOST_S, TRIES = 5, 3
STILL_S = 0.3  # longer than the others that a lone request of these apps takes
SHORT = [scenario for scenario in SCENARIOS.values() if scenario.short]


@pytest.fixture(scope="session")
def own_networks() -> bool:
    return run.own_networks()


def stood_still_before_a_load(archive: Path) -> bool:
    if not archive.exists():
        return False
    with store.unpacked(archive) as directory:
        records = [trial.record for trial in trial_data(run_store.load(directory))]
    lone = [record.alone_s for record in records if record and record.alone_s]
    return any(max(times_s) - median(times_s) > STILL_S for times_s in lone)


@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
def test_nothing_is_said_that_is_not_so(
    scenario: Scenario, tmp_path: Path, own_networks: bool
) -> None:
    for number in range(1, TRIES + 1):
        ran = run.run(scenario, tmp_path, False, number, own_networks, MOST_S)
        if not stood_still_before_a_load(tmp_path / f"{ran.name}{store.PACKED}"):
            break
    else:
        pytest.skip("each time the machine stood still while lone requests were timed")
    statements = store.statements(tmp_path, ran, replace(scenario, sleeper=False))
    assert any(statement.kind == "verdict" for statement in statements)
    wrong = [
        statement
        for statement in table.misses(statements)
        if statement.outcome == FALSE or not statement.noisy
    ]
    assert not [f"{table.line_of(statement)}: {statement.sentence}" for statement in wrong]
