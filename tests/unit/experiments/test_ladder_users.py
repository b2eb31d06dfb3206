"""The search for the limit of a ladder's first configuration, from constructed cells."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from tests.builders.analysis import invalid_of
from tests.builders.document import answer, table
from tests.builders.ladder import MEASURED, SERVICES, all_configurations, cell, cells, report
from workerlab.analysis.target import TermOutcome
from workerlab.experiments.ladder import limits
from workerlab.experiments.ladder.document import study
from workerlab.experiments.ladder.steps import Ladder, UserLoad, ladder
from workerlab.finding import Note
from workerlab.model.evidence import Counters
from workerlab.model.result import TrialResult

PLANNED = all_configurations()
USERS = 100
RPS = 4000.0
P95 = TermOutcome(
    term="p95<1s", metric="p95", limit=1.0, result="met", requests=1000, failed=0, unsent=None,
    measured="p95 2 s",
)  # fmt: skip


def level(users: int, *outcomes: str, rps: float = RPS) -> list[TrialResult]:
    """A launch for each outcome of p95; "invalid": an invalid launch."""
    results = list[TrialResult]()
    for launch, outcome in enumerate(outcomes, 1):
        usage = replace(MEASURED[PLANNED[0].name], rps=rps)
        result = cell(PLANNED[0], "fast", users, launch, usage)
        if outcome == "invalid":
            results.append(invalid_of(result, Note("the load was never started")))
        else:
            results.append(replace(result, target=(replace(P95, result=outcome),)))
    return results


def ladder_with(*more: Iterable[TrialResult], usual_users: int | None = USERS) -> Ladder:
    """A ladder with launches of a single user, and `more`."""
    single_user = cells(PLANNED, tools=())
    results = [*single_user, *(result for launches in more for result in launches)]
    return ladder(results, PLANNED, {"cores": 2, "services": SERVICES}, usual_users)


MET = ("met", "met", "met")
TARGET_MET = level(USERS, *MET)


def users_next(*more: Iterable[TrialResult]) -> int | None:
    load = limits.next_load(ladder_with(*more))
    return load and load.users


def test_users_are_doubled_until_a_level_breaks() -> None:
    at_200, at_400 = level(200, *MET), level(400, "broken", "broken", "met")
    assert limits.next_load(ladder_with(TARGET_MET)) == UserLoad("fast", 200)
    assert users_next(TARGET_MET, at_200) == 400
    assert users_next(TARGET_MET, at_200, at_400) is None
    assert users_next(level(USERS, "broken")) is None


def test_the_search_is_bounded() -> None:
    launches = [level(USERS * times, *MET) for times in (1, 2, 4, 8)]
    assert users_next(*launches[:-1]) == 800
    assert users_next(*launches) is None
    served = limits.how_many_users(ladder_with(*launches))
    assert isinstance(served.outcome, limits.NothingBroke)
    assert str(served).startswith(
        "With 800 users (fast), neither happens, and more users were not tried."
    )


def test_the_search_ends_if_the_load_tool_was_the_limit() -> None:
    bound = [replace(result, generator_bound=True) for result in TARGET_MET]
    assert users_next(bound) is None
    assert "more would show the load tool's limit" in str(limits.how_many_users(ladder_with(bound)))


@pytest.mark.parametrize(
    ("launches", "why"),
    [
        (level(200, *MET), None),
        (level(200, "met", "not shown", "met"), None),
        (level(200, "met", "met", "broken"), None),
        (level(200, "met", "broken", "broken"), limits.TargetBroken),
        (level(200, "met", "invalid", "met"), limits.InvalidLaunches),
        (level(200, "invalid", "invalid", "invalid"), limits.InvalidLaunches),
        (level(200, *MET, rps=RPS / 2), limits.UnstableThroughput),
        ([*level(200, *MET)[:2], *level(200, *MET, rps=RPS / 2)[2:]], limits.UnstableThroughput),
    ],
)
def test_a_level_fails_for_a_reason(launches: list[TrialResult], why: type | None) -> None:
    search = ladder_with(TARGET_MET, launches)
    first, second = limits.levels(search)
    assert (first.load.users, first.failure, second.load.users) == (USERS, None, 200)
    assert (second.failure and type(second.failure)) == why
    assert type(limits.how_many_users(search).outcome) is (why or limits.NothingBroke)
    assert str(limits.how_many_users(search))


def test_the_answer_has_both_ends_and_the_limit() -> None:
    drops = Counters(listen_drops=7)
    broken = [replace(result, counters=drops) for result in level(400, *["broken"] * 3)]
    sentence = str(limits.how_many_users(ladder_with(TARGET_MET, broken, level(200, *MET))))
    assert sentence.startswith(
        "With 200 users, neither happens. With 400 users (fast), p95<1s is missed: p95 2 s (in 3 of"
        " 3 launches). Throughput: "
    )
    assert "21 handshakes were dropped" in sentence
    assert "The limit with 200 users: all cores are busy (host" in sentence


def test_levels_are_not_steps_and_an_invalid_level_leaves_the_run_valid() -> None:
    usual = cells(PLANNED, tools=("fast",))
    more = [*level(2 * USERS, *MET), *level(4 * USERS, "invalid")]
    document = study(report([*usual, *more]), PLANNED, usual_users=USERS)
    assert document.valid
    assert str(document.title).endswith("; 1 user (fast), 100 users (fast).")
    levels_table = table(document, "The first step with more users (fast)")
    assert [(row[0], row[-1]) for row in levels_table.rows] == [(USERS, 3), (2 * USERS, 3)]
    assert "1 of 1 launch was invalid" in str(answer(document, limits.UsersServed))
    with_invalid_step = report([*usual, *level(USERS, "invalid")])
    assert not study(with_invalid_step, PLANNED, usual_users=USERS).valid


def test_a_ladder_without_a_search_has_no_finding_about_users() -> None:
    document = study(report(cells(PLANNED)), PLANNED)
    assert not any(isinstance(finding, limits.UsersServed) for finding in document.findings)
    assert limits.levels(ladder_with(TARGET_MET, usual_users=None)) == []
    assert limits.levels(ladder_with()) == []
    assert limits.next_load(ladder_with()) is None
