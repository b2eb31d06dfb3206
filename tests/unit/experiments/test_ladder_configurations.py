"""The rungs of a ladder: each lacks one thing that the one before had."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict

import pytest

from harness.experiments.ladder.configurations import (
    NAMES,
    STORAGES,
    Configuration,
    configurations,
    configurations_of,
)
from harness.model import Cell
from harness.plan import Plan, from_json, grid, to_json

ALL = ("mongodb", "postgresql")


def able(found: tuple[Configuration, ...]) -> list[Configuration]:
    return [rung for rung in found if not rung.why_not]


def settings(rung: Configuration) -> dict[str, object]:
    server = rung.server
    return {
        "storage": rung.storage,
        "redis": rung.cache,
        "env": rung.server.app.env,
        "workers": server.workers,
        "face": (server.worker_class, rung.server.app.target),
    }


def test_with_everything_it_is_the_whole_ladder() -> None:
    assert [rung.title for rung in configurations({}, ALL)] == [
        "async, 2 workers, MongoDB, Redis, in-process cache",
        "async, 2 workers, MongoDB, Redis",
        "async, 2 workers, MongoDB",
        "async, 2 workers, PostgreSQL",
        "async, 1 worker, PostgreSQL",
        "sync, 1 worker, PostgreSQL",
    ]


SUBSETS = [
    dict.fromkeys(missing, "not here")
    for n in range(len(NAMES))
    for missing in itertools.combinations(NAMES, n)
]


@pytest.mark.parametrize("lacking", SUBSETS, ids=lambda lacking: "-".join(lacking) or "nothing")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_rung_differs_from_the_one_before_in_one_setting(
    lacking: dict[str, str], workers: int
) -> None:
    found = able(configurations(lacking, STORAGES, workers))
    assert [bool(rung.removed) for rung in found] == [False] * bool(found) + [True] * (
        len(found) - 1
    )
    for before, after in itertools.pairwise(found):
        one, other = settings(before), settings(after)
        assert len([name for name in one if one[name] != other[name]]) == 1, (before, after)


@pytest.mark.parametrize("lacking", SUBSETS, ids=lambda lacking: "-".join(lacking) or "nothing")
def test_no_rung_stands_on_what_is_missing(lacking: dict[str, str]) -> None:
    found = configurations(lacking, STORAGES)
    assert len({rung.name for rung in found}) == len(found)
    for rung in found:
        needs = {rung.storage, rung.cache} - {""}
        assert bool(needs & lacking.keys()) == bool(rung.why_not)
    for storage in set(STORAGES) & lacking.keys():
        assert any(rung.storage == storage and rung.why_not for rung in found)
    if "redis" in lacking and able(found):
        assert any(rung.cache == "redis" and rung.why_not for rung in found)


def test_with_nothing_but_sqlite_there_are_three_things_to_remove() -> None:
    missing = {"mongodb": "no MongoDB", "postgresql": "no PostgreSQL", "redis": "no Redis"}
    found = able(configurations(missing, STORAGES))
    assert [rung.removed for rung in found] == [
        "",
        "the in-process cache",
        "the other workers",
        "async",
    ]


def test_where_no_storage_is_there_nothing_can_be_run() -> None:
    found = configurations({"mongodb": "no MongoDB", "postgresql": "no PostgreSQL"}, ALL)
    assert [rung.why_not for rung in found] == ["no MongoDB", "no PostgreSQL"]


def test_a_plan_with_configurations_survives_json() -> None:
    found = configurations({"mongodb": "no MongoDB"}, ALL)
    cells = tuple(Cell(one.server, "fast", 4, keepalive=True) for one in able(found))
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
        details={"configurations": [asdict(one) for one in found]},
    )
    again = from_json(json.loads(json.dumps(to_json(plan))))
    assert configurations_of(again) == found
    assert again.cells == cells
    assert len({one.key for one in grid(again)}) == 3 * len(cells)
    for server in again.servers:
        asgi = server.app.target == "apps.blog.asgi:app"
        assert asgi == (server.worker_class == "uvicorn")
