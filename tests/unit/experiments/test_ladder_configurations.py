"""The configurations of a ladder: each lacks one thing that the previous one had."""

from __future__ import annotations

import itertools

import pytest

from workerlab import codec
from workerlab.errors import UsageError
from workerlab.experiments.ladder.options import STORAGES
from workerlab.experiments.ladder.steps import (
    Configuration,
    configurations,
    differences,
    from_details,
    removals,
    to_details,
)
from workerlab.model.plan import Cell, Plan
from workerlab.plan import grid
from workerlab.server.service_check import KINDS

ALL = ("mongodb", "postgresql")


def available(planned: tuple[Configuration, ...]) -> list[Configuration]:
    return [config for config in planned if not config.why_not]


def test_a_ladder_has_its_configurations_and_removals() -> None:
    assert [config.text for config in configurations({}, ALL)] == [
        "uvicorn, 2 workers, MongoDB, Redis, in-process cache",
        "uvicorn, 2 workers, MongoDB, Redis",
        "uvicorn, 2 workers, MongoDB",
        "uvicorn, 2 workers, PostgreSQL",
        "uvicorn, 1 worker, PostgreSQL",
        "sync, 1 worker, PostgreSQL",
    ]
    missing = {"mongodb": "no MongoDB", "postgresql": "no PostgreSQL", "redis": "no Redis"}
    removed = list(removals(available(configurations(missing, STORAGES))).values())
    assert removed == ["nothing", "in-process cache", "other workers", "async"]  # SQLite alone
    del missing["redis"]
    reasons = [config.why_not for config in configurations(missing, ALL)]
    assert reasons == ["no MongoDB", "no PostgreSQL"]


each_subset = pytest.mark.parametrize(
    "missing",
    [
        dict.fromkeys(missing, "not here")
        for n in range(len(KINDS))
        for missing in itertools.combinations(KINDS, n)
    ],
    ids=lambda missing: "-".join(missing) or "nothing",
)


@each_subset
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_configuration_differs_from_the_previous_one_in_one_setting(
    missing: dict[str, str], workers: int
) -> None:
    planned = available(configurations(missing, STORAGES, workers))
    for before, after in itertools.pairwise(planned):
        assert len(differences(before, after)) == 1, (before, after)
        same_env = before.server.app.env == after.server.app.env
        assert same_env == (differences(before, after) != ("local_cache",))
    assert list(removals(planned)) == [config.name for config in planned]


@each_subset
def test_configurations_that_need_a_missing_service_are_left_out(missing: dict[str, str]) -> None:
    planned = configurations(missing, STORAGES)
    assert len({config.name for config in planned}) == len(planned)
    for config in planned:
        needs = {config.storage, config.cache} - {""}
        assert bool(needs & missing.keys()) == bool(config.why_not)
    left_out = {(config.storage, config.cache) for config in planned if config.why_not}
    assert {storage for storage, _ in left_out} >= set(STORAGES) & missing.keys()
    if "redis" in missing and available(planned):
        assert "redis" in {cache for _, cache in left_out}


def test_a_plan_with_configurations_round_trips() -> None:
    planned = configurations({"mongodb": "no MongoDB"}, ALL)
    cells = tuple(Cell(config.server, "fast", 4, keepalive=True) for config in available(planned))
    plan = Plan("ladder", cells, 3, 5, 1, "python", None, {}, (), details=to_details(planned))
    decoded = codec.decode(codec.encode(plan), Plan)
    assert from_details(decoded) == planned
    assert decoded.cells == cells
    assert len({trial.key for trial in grid(decoded)}) == 3 * len(cells)
    for server in decoded.servers:
        assert (server.app.target == "apps.blog.asgi:app") == (server.worker_class == "uvicorn")


@pytest.mark.parametrize("details", [{}, {"configurations": 5}, {"configurations": [{}]}])
def test_a_plan_without_configurations_is_refused(details: dict[str, object]) -> None:
    plan = Plan("ladder", (), 3, 5, 1, "python", None, {}, (), details=details)
    with pytest.raises(UsageError, match="this run's plan has no configurations"):
        from_details(plan)


def test_a_stand_in_is_named_wherever_its_service_would_be() -> None:
    planned = configurations({}, ALL, stand_ins=("mongodb",))
    lines = [config.text for config in planned] + [*removals(planned).values()]
    names = [config.name for config in planned]
    assert [name.startswith("mongodb-compatible-") for name in names] == [True] * 3 + [False] * 3
    assert sum("MongoDB-compatible server" in line for line in lines) == 4
    assert not any("MongoDB" in line.replace("MongoDB-compatible server", "") for line in lines)
