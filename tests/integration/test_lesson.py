"""The lesson in the terminal, with a real server: the step whose accept queue overflows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Lab
from workerlab import run_store
from workerlab.analysis.facts import Facts, facts_of
from workerlab.experiments.lesson import SHIPPED
from workerlab.experiments.lesson_words import measured, overflowed
from workerlab.experiments.reading import report_of, trial_data

pytestmark = [pytest.mark.once, pytest.mark.counters]


def only_step_with(setting: str, place: Path) -> Path:
    title, *steps = SHIPPED.read_text().split("[[step]]\n")
    (step,) = (step for step in steps if f"\n{setting}\n" in step)
    path = place / "lesson.toml"
    path.write_text(f"{title}[[step]]\n{step}")
    return path


def test_an_overflowing_queue_is_as_fast_as_its_clients_and_slots_make_it(
    lab: Lab, tmp_path: Path
) -> None:
    """Throughput times mean response time is the number of clients, also where some wait for long:
    both are of the time in which all clients have a request under way."""
    lab.env["COLUMNS"] = "60"
    done = lab("demo", "--yes", "--lesson", str(only_step_with("backlog = 4", tmp_path)))
    assert done.code == 0, done.err + done.out
    assert max(map(len, done.out.splitlines())) <= 60
    run = run_store.load(lab.run)
    ((cell, data),) = zip(report_of(run).cells, trial_data(run), strict=True)
    facts = facts_of(data)
    assert isinstance(facts, Facts)
    assert overflowed(facts)
    figures = measured(cell, facts)
    assert figures is not None
    assert figures.kept_up_s is not None
    assert figures.rps * figures.response_s == pytest.approx(16, rel=0.05)
    said = " ".join(done.out.split())
    assert "in which each of 16 clients had a request under way" in said
    assert "marks hidden" in said
