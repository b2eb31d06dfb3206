"""A subset of the corpus, through the command line.

Other tests are the noise and may use all cores: a cell that waited for a core may be inconclusive,
and a noisy cell may lack a finding, but no false statement may be reported. The lab does not detect
pauses while it times lone requests, so the test does, and repeats the scenario.
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

MAX_LOAD_S, MAX_ATTEMPTS = 5, 3
PAUSE_S = 0.3  # by which one lone request exceeds the others only if the machine paused
SHORT = [scenario for scenario in SCENARIOS.values() if scenario.short]


@pytest.fixture(scope="session")
def own_networks() -> bool:
    return run.own_networks()


def paused_before_a_load(archive: Path) -> bool:
    if not archive.exists():
        return False
    with store.unpacked(archive) as directory:
        records = [trial.record for trial in trial_data(run_store.load(directory))]
    lone_requests = [record.alone_s for record in records if record and record.alone_s]
    return any(max(times_s) - median(times_s) > PAUSE_S for times_s in lone_requests)


@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
def test_no_false_statement_is_reported(
    scenario: Scenario, tmp_path: Path, own_networks: bool
) -> None:
    for number in range(1, MAX_ATTEMPTS + 1):
        record = run.run(scenario, tmp_path, False, number, own_networks, MAX_LOAD_S)
        if not paused_before_a_load(tmp_path / f"{record.name}{store.SUFFIX}"):
            break
    else:
        pytest.skip("each time the machine paused while lone requests were timed")
    statements = store.statements(tmp_path, record, replace(scenario, sleeper=False))
    assert any(statement.kind == "verdict" for statement in statements)
    wrong = [
        statement
        for statement in table.misses(statements)
        if statement.outcome == FALSE or not statement.noisy
    ]
    assert not [f"{table.line_of(statement)}: {statement.sentence}" for statement in wrong]
