"""The search for the limit of a ladder's first configuration, from cells made by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from tests.builders.ladder import MEASURED, SERVICES, all_configurations, cell, cells, report
from workerlab.experiments.ladder.document import study
from workerlab.experiments.ladder.limits import how_many_users, levels, next_load
from workerlab.experiments.ladder.steps import Ladder, Load, ladder
from workerlab.model import CellResult, Counters, Finding
from workerlab.report.messages import text

PLANNED = all_configurations()
USERS = 100
RPS = 4000.0


def level(users: int, *outcomes: str, rps: float = RPS) -> list[CellResult]:
    """A launch for each outcome of p95, "invalid" among them."""
    found = []
    for launch, outcome in enumerate(outcomes, 1):
        seen = replace(MEASURED[PLANNED[0].name], rps=rps)
        one = cell(PLANNED[0], "fast", users, launch, seen)
        values = {"term": "p95<1s", "measured": "p95 2 s", "why": Finding("target.too_close")}
        one = replace(one, target=(Finding(f"target.{outcome}", values),))
        if outcome == "invalid":
            one = replace(one, verdict="invalid", reason=Finding("check.not_started"), target=())
        found.append(one)
    return found


def searched(*more: Iterable[CellResult], usual_users: int | None = USERS) -> Ladder:
    """Of a run that has launches with a single user, and `more`."""
    own = [one for one in cells(PLANNED, tools=("fast",)) if one.trial.cell.concurrency == 1]
    every = [*own, *(one for launches in more for one in launches)]
    return ladder(every, PLANNED, {"cores": 2, "services": SERVICES}, usual_users)


MET = ("met", "met", "met")
KEPT = level(USERS, *MET)


def users_next(*more: Iterable[CellResult]) -> int | None:
    load = next_load(searched(*more))
    return load and load.users


def test_users_are_doubled_until_a_level_breaks() -> None:
    at_200, at_400 = level(200, *MET), level(400, "broken", "broken", "met")
    assert next_load(searched(KEPT)) == Load("fast", 200)
    assert users_next(KEPT, at_200) == 400
    assert users_next(KEPT, at_200, at_400) is None
    assert users_next(level(USERS, "broken")) is None


def test_the_search_is_bounded() -> None:
    every = [level(USERS * times, *MET) for times in (1, 2, 4, 8)]
    assert users_next(*every[:-1]) == 800
    assert users_next(*every) is None
    said = text(how_many_users(searched(*every)))
    assert said.startswith("With 800 users by fast nothing breaks, and more users were not tried.")


def test_where_the_load_tool_was_the_limit_the_search_ends() -> None:
    bound = [replace(one, generator_bound=True) for one in KEPT]
    assert users_next(bound) is None
    assert "more would show the load tool's limit" in text(how_many_users(searched(bound)))


@pytest.mark.parametrize(
    ("launches", "why"),
    [
        (level(200, *MET), None),
        (level(200, "met", "not_shown", "met"), None),
        (level(200, "met", "met", "broken"), None),
        (level(200, "met", "broken", "broken"), "target"),
        (level(200, "met", "invalid", "met"), "invalid"),
        (level(200, "invalid", "invalid", "invalid"), "invalid"),
        (level(200, *MET, rps=RPS / 2), "unstable"),
        ([*level(200, "met", "met"), *level(200, *MET, rps=RPS / 2)[2:]], "unstable"),
    ],
)
def test_what_breaks_a_level(launches: list[CellResult], why: str | None) -> None:
    found = searched(KEPT, launches)
    first, second = levels(found)
    assert (first.load.users, first.why, second.load.users) == (USERS, None, 200)
    assert (second.why and second.why.code) == (why and f"ladder.users.{why}")
    assert text(how_many_users(found))


def test_the_answer_has_both_ends_and_the_limit() -> None:
    broken = [
        replace(one, counters=Counters(listen_drops=7))
        for one in level(400, "broken", "broken", "broken")
    ]
    one = how_many_users(searched(KEPT, broken, level(200, *MET)))
    assert (one.values["before"], one.values["load"]) == (200, Load("fast", 400).text)
    said = text(one)
    assert said.startswith(
        "With 200 users nothing breaks. With 400 users by fast p95<1s: broken, p95 2 s (in 3 of 3"
        " launches). Throughput: "
    )
    assert "21 handshakes were dropped" in said
    assert "The limit with 200 users: all cores are busy (host" in said


def test_levels_are_in_no_step_and_an_invalid_one_does_not_spoil_the_run() -> None:
    usual = cells(PLANNED, tools=("fast",))
    more = [*level(2 * USERS, *MET), *level(4 * USERS, "invalid")]
    document = study(report([*usual, *more]), PLANNED, usual_users=USERS)
    assert document.valid
    assert [text(load) for load in document.title.values["loads"]] == [
        "1 user by fast", "100 users by fast",
    ]  # fmt: skip
    (table,) = (one for one in document.tables if one.title.code == "ladder.table.users")
    assert [(row[0], row[-1]) for row in table.rows] == [(USERS, 3), (2 * USERS, 3)]
    (answer,) = (one for one in document.findings if one.question == "ladder.question.users")
    assert "1 of 1 launch was invalid" in text(answer)
    spoilt = [*usual, *level(USERS, "invalid")]
    assert not study(report(spoilt), PLANNED, usual_users=USERS).valid


def test_without_a_search_nothing_is_said_of_it() -> None:
    document = study(report(cells(PLANNED)), PLANNED)
    assert "ladder.question.users" not in [one.question for one in document.findings]
    assert levels(searched(KEPT, usual_users=None)) == []
    assert levels(searched()) == []
    assert next_load(searched()) is None
