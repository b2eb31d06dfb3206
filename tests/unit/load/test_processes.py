"""Load tool processes as a sweep axis: supported tools, rejected plans, and usable cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from workerlab.cli import parse
from workerlab.errors import UsageError
from workerlab.experiments.planning import plan_of
from workerlab.load.programs import ALL_CORES
from workerlab.load.registry import tool_named
from workerlab.plan import grid, load_for


def planned(arguments: str):  # type: ignore[no-untyped-def]
    return plan_of(parse(["sweep", "sync", "8", *arguments.split()]))[0]


def test_each_number_of_processes_is_a_cell() -> None:
    plan = planned("--tool fast --tool-processes 1,2,4")
    trials = grid(plan)
    assert [trial.cell.processes for trial in trials] == [1, 2, 4]
    assert [load_for(plan, trial.cell, 1.0).processes for trial in trials] == [1, 2, 4]
    assert len({trial.key for trial in trials}) == 3


NO_MIX = r"cannot send requests of several kinds \(--mix, --access-log\); use --tool fast"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--tool ab --tool-processes 2", "ab sends from one process only"),
        ("--tool wrk --tool-processes 1,2", "wrk sends from one process only"),
        ("--tool fast --tool-processes 16", "8 connections"),
        ("--tool fast --tool-processes 0", "0 is too small"),
        ("--tool fast --tool-processes many", "not a whole number"),
        ("--tool ab --mix shop.mix --app shop:app", f"ab {NO_MIX}"),
        ("--tool wrk --mix shop.mix --app shop:app", f"wrk {NO_MIX}"),
        ("--tool threads --mix shop.mix --app shop:app", f"threads {NO_MIX}"),
    ],
)
def test_unsupported_plans_are_rejected(
    arguments: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ab", "wrk"):  # even if not installed here
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "shop.mix").write_text("1 GET /\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why):
        planned(arguments)


@pytest.mark.parametrize(
    ("tool", "concurrency", "processes", "cores"),
    [
        ("ab", 100, 1, 1),
        ("fast", 100, 4, 4),
        ("wrk", 8, 1, 1),
        ("wrk", 100, 1, 2),
        ("processes", 20, 1, 20),
        ("threads", 20, 1, 1),
        ("processes-coroutines", 20, 1, ALL_CORES),
        ("processes-coroutines", 20, 2, 2),
        ("locust", 500, 4, 4),
    ],
)
def test_the_cores_that_a_tool_can_use(
    tool: str, concurrency: int, processes: int, cores: int
) -> None:
    assert tool_named(tool).cores_used(concurrency, processes) == cores
