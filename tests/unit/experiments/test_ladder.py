"""What a ladder means: factors, limits and the two questions, from cells made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from harness.experiments.ladder.document import study
from harness.experiments.ladder.limits import limit
from harness.experiments.ladder.steps import Ladder, Load, Step, factor_of, ladder
from harness.model import Answer, CellResult, Document, Finding, Table
from harness.report.html.charts import chart_figures
from harness.report.study import STUDY_FORMATS
from tests.builders.ladder import (
    MEASURED,
    Seen,
    all_configurations,
    cells,
    report,
    whole,
)

FAST = "What made it fast?"
TRIPS = "Does each removed cache cost a round trip, and does each round trip cost?"
LIMITS = "Who was the limit of each rung: load tool, storage, app or machine?"
REDIS = "Why does losing Redis cost so little?"
SYNC = "Why does going from async to sync move p95 more than requests/s?"
WHO = "Who answered as each storage and cache?"
NOBODY = Seen(1000, app=0.2, storage=0.1, tool=0.1)


def finding(found: Document, question: str) -> Answer:
    (one,) = (one for one in found.findings if one.question == question)
    return one


def table(found: Document, title: str) -> Table:
    (one,) = (one for one in found.tables if one.title == title)
    return one


def column(of: Table, name: str) -> list[object]:
    (place,) = (i for i, one in enumerate(of.columns) if one.name == name)
    return [row[place] for row in of.rows]


def changed(name: str, **values: object) -> Mapping[str, Seen]:
    """As it was measured, but for one rung."""
    return {**MEASURED, name: replace(MEASURED[name], **values)}  # type: ignore[arg-type]


def but_for(name: str, rungs_cells: Sequence[CellResult], **values: object) -> list[CellResult]:
    return [
        replace(cell, **values) if cell.trial.cell.server.name == name else cell  # type: ignore[arg-type]
        for cell in rungs_cells
    ]


# --- factors ------------------------------------------------------------------------------------


def test_a_factor_is_a_ratio_of_geometric_means_with_welchs_interval() -> None:
    """By hand: logs -0.1, 0, 0.1 on both sides, one shifted by log 2; s^2 = 0.01, n = 3, df = 4."""
    logs = [-0.1, 0.0, 0.1]
    found = factor_of(logs, [one + math.log(2) for one in logs])
    half = 2.776 * math.sqrt(2 * 0.01 / 3)
    assert found.ratio == pytest.approx(2)
    assert found.low == pytest.approx(2 * math.exp(-half))
    assert found.high == pytest.approx(2 * math.exp(half))
    assert found.differs


def test_an_interval_that_holds_1_is_no_difference() -> None:
    assert not factor_of([0.0, 0.1, 0.2], [0.05, 0.1, 0.2]).differs


@pytest.mark.parametrize(("before", "after"), [([0.0], [0.1]), ([0.0], [0.1, 0.1, 0.1])])
def test_one_launch_has_no_interval(before: list[float], after: list[float]) -> None:
    found = factor_of(before, after)
    assert (found.low, found.high, found.differs) == (None, None, False)


def test_what_made_it_fast_by_size() -> None:
    answer = finding(whole(), FAST).answer
    places = [answer.index(said) for said in (
        "the in-process cache 2.27", "async 1.52", "the other workers 1.42", "Redis 1.09",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "No difference that can be told from chance: MongoDB (for PostgreSQL)." in answer


def test_what_is_faster_without_is_said() -> None:
    slow = changed("mongodb-redis-uvicorn-w2", rps=2000.0)
    assert "Faster without it than with it: Redis 1.37" in finding(whole(slow), FAST).answer


def test_too_few_launches_give_no_answer() -> None:
    planned = all_configurations()
    found = study(report(cells(planned, launches=1)), planned)
    assert finding(found, FAST).answer.startswith("Cannot be said: a factor has no interval")
    assert any("at least 3 launches" in note for note in found.notes)
    ratios = column(table(found, "The ladder, 100 users by fast"), "factor")
    assert ratios[0] is None
    assert ratios[1] == pytest.approx(3000 / 6800)
    assert set(column(table(found, "The ladder, 100 users by fast"), "factor_low")) == {None}


def test_what_the_load_tool_held_up_is_a_lower_bound() -> None:
    planned = all_configurations()
    first = planned[0].name
    held = but_for(
        first, cells(planned), generator_bound=True, bound_reasons=("it used 0.99 cores",)
    )
    answer = finding(study(report(held), planned), FAST).answer
    assert "Where the load tool was the limit (removed: nothing)" in answer


def test_the_answer_is_from_the_tool_that_held_up_least() -> None:
    planned = all_configurations()
    held = [
        replace(cell, generator_bound=True, bound_reasons=("its CPU",))
        if cell.trial.cell.tool == "locust-fast"
        else cell
        for cell in cells(planned)
    ]
    assert finding(study(report(held), planned), FAST).answer.startswith("With 100 users by fast,")


# --- round trips --------------------------------------------------------------------------------


def test_round_trips_are_counted_and_cost() -> None:
    said = finding(whole(), TRIPS)
    assert said.answer == (
        "Round trips per request go 0.00 (6798 requests/s), then 1.00 to Redis (2999 requests/s),"
        " then 1.00 to the storage (2749 requests/s). Each costs throughput beyond chance."
    )
    assert len(said.evidence) == 3


def test_a_trip_that_costs_nothing_is_said() -> None:
    same = changed("mongodb-uvicorn-w2", rps=3000.0)
    said = finding(whole(same), TRIPS).answer
    assert said.endswith("Each costs throughput, but of Redis no loss can be told from chance.")


def test_a_cache_that_does_not_cache_is_found() -> None:
    """All its rungs go to the storage."""
    planned = all_configurations()
    kept = cells(planned)
    plain = next(c for c in kept if c.trial.cell.server.name == planned[2].name and c.app_metrics)
    assert plain.app_metrics is not None
    broken = but_for(planned[1].name, kept, app_metrics=plain.app_metrics)
    assert finding(study(report(broken), planned), TRIPS).answer.startswith("No: ")


def test_without_a_ledger_trips_are_not_known() -> None:
    planned = all_configurations()
    blind = [replace(cell, app_metrics=None) for cell in cells(planned)]
    found = study(report(blind), planned)
    assert finding(found, TRIPS).answer.startswith("Cannot be said")
    assert "the app kept no ledger" in finding(found, REDIS).answer
    assert set(column(table(found, "Round trips, 100 users by locust-fast"), "redis_trips")) == {
        None
    }


# --- limits -------------------------------------------------------------------------------------


def limit_of(
    seen: Seen, name: str = "postgresql-uvicorn-w2", cores: int = 8, **more: object
) -> str:
    planned = all_configurations()
    host = min(1.0, (seen.app + seen.storage + seen.cache + seen.tool) / cores + 0.05)
    found = [
        replace(cell, usage=replace(cell.usage, host_busy=host), **more)  # type: ignore[arg-type]
        for cell in cells(planned, {**MEASURED, name: seen})
        if cell.trial.cell.server.name == name and cell.trial.cell.concurrency > 1
    ]
    rung = next(one for one in planned if one.name == name)
    return limit(Step(rung, Load("fast", 100), tuple(found)), cores).who


def test_nobody_near_a_limit_is_not_known() -> None:
    assert limit_of(NOBODY) == "not known"


@pytest.mark.parametrize(
    ("seen", "name", "cores", "who"),
    [
        (replace(NOBODY, cache=0.81), "mongodb-redis-uvicorn-w2", 8, "Redis"),
        (replace(NOBODY, cache=0.5), "mongodb-redis-uvicorn-w2", 8, "not known"),
        (replace(NOBODY, storage=1.7), "postgresql-uvicorn-w2", 2, "PostgreSQL"),
        (replace(NOBODY, storage=1.7), "postgresql-uvicorn-w2", 8, "not known"),
        (replace(NOBODY, app=1.7), "postgresql-uvicorn-w2", 8, "app"),
        (replace(NOBODY, app=0.9), "postgresql-uvicorn-w1", 8, "app"),
        (replace(NOBODY, app=0.9), "postgresql-uvicorn-w2", 8, "not known"),
        (replace(NOBODY, app=1.2, storage=0.3, tool=0.5), "postgresql-uvicorn-w2", 2, "machine"),
    ],
)
def test_who_was_the_limit(seen: Seen, name: str, cores: int, who: str) -> None:
    assert limit_of(seen, name, cores) == who


def test_a_busy_slot_is_the_apps_limit() -> None:
    """One request at a time, each waiting for the storage: no CPU shows it."""
    assert limit_of(replace(NOBODY, rps=1000.0), "postgresql-sync-w1") == "app"


def test_the_load_tool_comes_first() -> None:
    full = replace(NOBODY, app=1.9)
    assert limit_of(full, generator_bound=True, bound_reasons=("its CPU",)) == "load tool"


def test_other_programs_are_named() -> None:
    """The host is full, and those that take part in it used only a part."""
    planned = all_configurations()
    name = "postgresql-uvicorn-w2"
    found = [
        replace(cell, usage=replace(cell.usage, host_busy=1.0))
        for cell in cells(planned, {**MEASURED, name: replace(NOBODY, storage=0.1)})
    ]
    one = next(steps for load, steps in ladder(found, planned, {"cores": 2}).crowds.items())
    step = next(step for step in one if step.rung.name == name)
    assert limit(step, 2).who == "other programs"
    assert "1.60 cores" in limit(step, 2).why
    assert any("close them and repeat" in note for note in study(report(found), planned).notes)


def test_waiting_for_a_connection_is_the_pools_limit_where_nobody_is_busy() -> None:
    planned = all_configurations()
    calm = limit_of(NOBODY)
    waiting = [cell for cell in cells(planned, dict.fromkeys(MEASURED, NOBODY)) if cell.app_metrics]
    assert calm == "not known"
    for host, who in ((0.3, "pool"), (1.0, "other programs")):
        found = []
        for cell in waiting:
            assert cell.app_metrics
            spent = {**cell.app_metrics.spent_s, "pool": 2.0}
            parts = replace(cell.app_metrics, spent_s=spent)
            found.append(
                replace(cell, app_metrics=parts, usage=replace(cell.usage, host_busy=host))
            )
        steps = next(iter(ladder(found, planned, {}).crowds.values()))
        step = next(one for one in steps if one.rung.name == "postgresql-uvicorn-w2")
        assert limit(step, 8).who == who


def test_on_two_cores_shares_are_said() -> None:
    said = finding(whole(), LIMITS)
    assert "On so few cores app, storage and load tool take them from each other." in said.answer
    assert "machine: nothing, the in-process cache, Redis" in said.answer
    assert "cores: app 1.10, storage 0.30, load tool 0.40" in said.evidence[2]


# --- the two questions --------------------------------------------------------------------------


def test_what_redis_saves_is_weighed() -> None:
    answer = finding(whole(), REDIS).answer
    assert answer.startswith("Here it costs 8 % of the requests/s. For a lone user a hit costs 130")
    assert "the storage 200 us: Redis saves 70.0 us of a response of 410 us." in answer
    assert "A request costs the app 367 us of CPU with Redis, 400 us without it." in answer


def test_a_redis_that_is_worth_its_trip_is_not_called_cheap() -> None:
    slow = changed("mongodb-uvicorn-w2", rps=900.0)
    assert finding(whole(slow), REDIS).answer.startswith("Here it does not cost little: 70 %")


def test_no_difference_is_no_cost() -> None:
    same = changed("mongodb-uvicorn-w2", rps=2990.0)
    assert finding(whole(same), REDIS).answer.startswith("Here it costs nothing that can be told")


def test_sync_spreads_responses_otherwise() -> None:
    as_published = {
        **changed("postgresql-uvicorn-w1", rps=220.0),
        "postgresql-sync-w1": replace(MEASURED["postgresql-sync-w1"], rps=200.0),
    }
    answer = finding(whole(as_published), SYNC).answer
    assert answer.startswith("It does here: p95 changes by a factor of 0.57, requests/s by 0.91.")
    assert "By Little's law the mean response of 100 users is users / requests/s" in answer
    assert "p95 is 3.0 times p50 async, 1.1 times sync." in answer


def test_what_does_not_happen_is_not_explained_away() -> None:
    answer = finding(whole(), SYNC).answer
    assert answer.startswith("Here neither moves much more than the other")


# --- what is missing ----------------------------------------------------------------------------


def test_skipped_rungs_are_shown_with_their_reason() -> None:
    planned = all_configurations({"mongodb": "no mongod: --mongo-url names one"})
    seen = {rung.name: MEASURED["postgresql-uvicorn-w2"] for rung in planned}
    found = study(report(cells(planned, seen), components={"redis": "Redis 7"}), planned)
    rows = table(found, "The rungs").rows
    assert rows[0][-1] == "no mongod: --mongo-url names one"
    assert all(row[-1] is None for row in rows[1:])
    assert found.valid
    assert "As MongoDB nobody: no mongod" in finding(found, WHO).answer


def test_without_redis_the_question_is_open() -> None:
    planned = all_configurations({"redis": "no redis-server"})
    seen = {rung.name: MEASURED["postgresql-uvicorn-w2"] for rung in planned}
    found = study(report(cells(planned, seen)), planned)
    assert finding(found, REDIS).answer == ("Cannot be said: no rung lost Redis and nothing else.")


def test_who_answered_as_mongodb_is_said() -> None:
    assert finding(whole(), WHO).answer.startswith("As MongoDB: a server in Java that speaks")


def test_an_invalid_launch_is_named_and_left_out() -> None:
    planned = all_configurations()
    good = cells(planned)
    bad = replace(good[0], verdict="invalid", reason="it died", throughput_rps=None)
    found = study(report([bad, *good[1:]]), planned)
    assert not found.valid
    title = "async, 2 workers, MongoDB, Redis, in-process cache, 1 user by fast, launch 1: it died"
    assert title in found.notes
    assert column(table(found, "The ladder, 1 user by fast"), "launches")[0] == 2


def test_a_rung_without_a_believed_launch_is_left_out_of_the_factors() -> None:
    planned = all_configurations()
    gone = but_for(planned[1].name, cells(planned), verdict="invalid", throughput_rps=None)
    found = study(report(gone), planned)
    ratios = column(table(found, "The ladder, 100 users by fast"), "factor")
    assert len(ratios) == len(planned) - 1
    assert ratios[1] == pytest.approx(2750 / 6800)


def test_a_run_of_nothing() -> None:
    found = study(report([]), all_configurations())
    assert not found.valid
    assert "no launch has been measured" in found.title
    for question in (FAST, TRIPS, LIMITS, REDIS, SYNC):
        assert finding(found, question).answer.startswith("Cannot be said")
    for form in STUDY_FORMATS.values():
        assert form.render(found)


# --- tables and charts --------------------------------------------------------------------------


def test_what_came_out_per_tool() -> None:
    shown = table(whole(), "The ladder, 100 users by locust-fast")
    assert column(shown, "throughput_rps")[0] == pytest.approx(6800, rel=0.001)
    assert column(shown, "launches") == [3] * 6
    assert "limit" not in [one.name for one in table(whole(), "The ladder, 1 user by fast").columns]


def test_parts_add_up_to_the_response() -> None:
    for name in ("1 user by fast", "100 users by locust-fast"):
        shown = table(whole(), f"Where the time goes, {name}")
        names = [one.name for one in shown.columns]
        inside = [i for i, one in enumerate(names) if i > 1 and one != "in_worker_s"]
        for row in shown.rows:
            service = sum(row[i] or 0.0 for i in inside)  # type: ignore[misc]
            response, before = row[1], row[names.index("in_worker_s")]
            assert isinstance(response, float)
            assert isinstance(before, float)
            assert service + before / 0.9 == pytest.approx(response, rel=0.01)


def test_rungs_stand_in_the_order_of_the_plan() -> None:
    planned = all_configurations()
    shown = table(study(report(cells(planned)[::-1]), planned), "The ladder, 100 users by fast")
    assert column(shown, "removed")[:3] == ["nothing", "the in-process cache", "Redis"]


def test_charts_are_bars_by_rung() -> None:
    charts = {one.title: one for one in whole().charts}
    rates = charts["Requests per second"]
    assert (rates.form, len(rates.series), len(rates.names)) == ("bars", 2, 6)
    spent = charts["Where the time goes, 1 user by fast"]
    assert spent.form == "stacked"
    assert spent.series[0].name == Finding("part.in_worker")
    drawn = chart_figures(whole())
    assert len(drawn) == 4
    assert ("Redis", "0", "1") in drawn[-1].rows
    assert {key.shape for one in drawn for key in one.legend} == {"box"}


@pytest.mark.parametrize("width", [80, 100])
def test_a_terminal_holds_the_tables(width: int) -> None:
    text = STUDY_FORMATS["table"].render(whole(), width=width)  # type: ignore[call-arg]
    tables = text[text.index("The rungs:") :]
    assert max(map(len, tables.splitlines())) <= width


def test_json_says_what_a_bar_is() -> None:
    document = json.loads(STUDY_FORMATS["json"].render(whole()))
    (trips,) = (one for one in document["charts"] if one["title"] == "Round trips per request")
    assert (trips["form"], trips["names"][2]) == ("stacked", "Redis")
    assert document["kind"] == "ladder"


def test_a_ladder_knows_its_twins() -> None:
    planned = all_configurations()
    found: Ladder = ladder(cells(planned), planned, {})
    twin = found.twin(found.crowd[2])
    assert twin is not None
    assert (twin.rung.name, twin.load.users) == (found.crowd[2].rung.name, 1)
