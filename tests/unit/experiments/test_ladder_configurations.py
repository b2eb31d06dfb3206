"""The configurations of a ladder: each lacks one thing that the one before had."""

from __future__ import annotations

import itertools

import pytest

from workerlab import codec
from workerlab.experiments.ladder.options import STORAGES
from workerlab.experiments.ladder.steps import (
    Configuration,
    configurations,
    differences,
    from_details,
    removals,
    to_details,
)
from workerlab.model import Cell, Plan, UsageError
from workerlab.plan import grid
from workerlab.server.service_check import KINDS

ALL = ("mongodb", "postgresql")


def able(planned: tuple[Configuration, ...]) -> list[Configuration]:
    return [each for each in planned if not each.why_not]


def test_with_everything_it_is_the_whole_ladder() -> None:
    assert [each.text for each in configurations({}, ALL)] == [
        "uvicorn, 2 workers, MongoDB, Redis, in-process cache",
        "uvicorn, 2 workers, MongoDB, Redis",
        "uvicorn, 2 workers, MongoDB",
        "uvicorn, 2 workers, PostgreSQL",
        "uvicorn, 1 worker, PostgreSQL",
        "sync, 1 worker, PostgreSQL",
    ]


SUBSETS = [
    dict.fromkeys(missing, "not here")
    for n in range(len(KINDS))
    for missing in itertools.combinations(KINDS, n)
]


@pytest.mark.parametrize("lacking", SUBSETS, ids=lambda lacking: "-".join(lacking) or "nothing")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_configuration_differs_from_the_one_before_in_one_setting(
    lacking: dict[str, str], workers: int
) -> None:
    planned = able(configurations(lacking, STORAGES, workers))
    for before, after in itertools.pairwise(planned):
        assert len(differences(before, after)) == 1, (before, after)
        same_env = before.server.app.env == after.server.app.env
        assert same_env == (differences(before, after) != ("local_cache",))
    assert list(removals(planned)) == [each.name for each in planned]


@pytest.mark.parametrize("lacking", SUBSETS, ids=lambda lacking: "-".join(lacking) or "nothing")
def test_no_configuration_stands_on_what_is_missing(lacking: dict[str, str]) -> None:
    planned = configurations(lacking, STORAGES)
    assert len({each.name for each in planned}) == len(planned)
    for each in planned:
        needs = {each.storage, each.cache} - {""}
        assert bool(needs & lacking.keys()) == bool(each.why_not)
    for storage in set(STORAGES) & lacking.keys():
        assert any(each.storage == storage and each.why_not for each in planned)
    if "redis" in lacking and able(planned):
        assert any(each.cache == "redis" and each.why_not for each in planned)


def test_with_nothing_but_sqlite_there_are_three_things_to_remove() -> None:
    missing = {"mongodb": "no MongoDB", "postgresql": "no PostgreSQL", "redis": "no Redis"}
    planned = able(configurations(missing, STORAGES))
    removed = list(removals(planned).values())
    assert removed == ["nothing", "in-process cache", "other workers", "async"]


def test_where_no_storage_is_there_nothing_can_be_run() -> None:
    planned = configurations({"mongodb": "no MongoDB", "postgresql": "no PostgreSQL"}, ALL)
    assert [each.why_not for each in planned] == ["no MongoDB", "no PostgreSQL"]


def test_a_plan_with_configurations_survives_json() -> None:
    planned = configurations({"mongodb": "no MongoDB"}, ALL)
    cells = tuple(Cell(each.server, "fast", 4, keepalive=True) for each in able(planned))
    plan = Plan(
        kind="ladder",
        cells=cells,
        trials=3,
        rounds=5,
        seed=1,
        python="python",
        config=None,
        unavailable={},
        notes=(),
        details=to_details(planned),
    )
    again = codec.decode(codec.encode(plan), Plan)
    assert from_details(again) == planned
    assert again.cells == cells
    assert len({each.key for each in grid(again)}) == 3 * len(cells)
    for server in again.servers:
        asgi = server.app.target == "apps.blog.asgi:app"
        assert asgi == (server.worker_class == "uvicorn")


@pytest.mark.parametrize("details", [{}, {"configurations": 5}, {"configurations": [{}]}])
def test_a_plan_without_configurations_is_one_sentence(details: dict[str, object]) -> None:
    plan = Plan("ladder", (), 3, 5, 1, "python", None, {}, (), details=details)
    with pytest.raises(UsageError, match="the plan of this run has no configurations"):
        from_details(plan)


def test_a_stand_in_is_named_in_every_line() -> None:
    planned = configurations({}, ALL, stand_ins=("mongodb",))
    lines = [each.text for each in planned] + [*removals(planned).values()]
    names = [each.name for each in planned]
    assert [name.startswith("mongodb-compatible-") for name in names] == [True] * 3 + [False] * 3
    assert sum("MongoDB-compatible server" in line for line in lines) == 4
    assert not any("MongoDB" in line.replace("MongoDB-compatible server", "") for line in lines)
