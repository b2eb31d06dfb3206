"""What a ladder means: factors, limits and the two questions, from cells made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from tests.builders.ladder import MEASURED, Seen, all_configurations, cells, report, whole
from workerlab.experiments.ladder.document import study
from workerlab.experiments.ladder.limits import limit
from workerlab.experiments.ladder.steps import Load, Step, ladder
from workerlab.model import CellResult, CoreWait, Document, Finding, Label, Table
from workerlab.report import FORMATS
from workerlab.report import text as terminal
from workerlab.report.html.document_charts import chart_figures
from workerlab.report.messages import text

FAST, TRIPS, LIMITS, REDIS, SYNC, SERVICES = (
    f"ladder.question.{name}" for name in ("fast", "trips", "limits", "redis", "sync", "services")
)
CALM = Seen(1000, app=0.2, storage=0.1, tool=0.1)


def finding(document: Document, question: str) -> Finding:
    (one,) = (one for one in document.findings if one.question == question)
    assert isinstance(one, Finding)
    return one


def load(users: int, tool: str) -> Finding:
    return Load(tool, users).text


def table(document: Document, code: str, users: int = 100, tool: str = "fast") -> Table:
    wanted = Finding(code, {} if code == "ladder.table.steps" else {"load": load(users, tool)})
    (one,) = (one for one in document.tables if one.title == wanted)
    return one


def column(of: Table, name: str) -> list[object]:
    (place,) = (i for i, one in enumerate(of.columns) if one.name == name)
    return [row[place] for row in of.rows]


def removed(name: str, **values: str) -> Finding:
    return Finding(f"ladder.removed.{name}", values)


NOTHING, LOCAL_CACHE = removed("nothing"), removed("local_cache")
WORKERS, ASYNC = removed("workers"), removed("worker_class")
NO_REDIS = removed("cache", cache="Redis")
NO_MONGODB = removed("storage", storage="MongoDB", instead="PostgreSQL")


def changed(name: str, **values: object) -> Mapping[str, Seen]:
    """As it was measured, but for one configuration."""
    return {**MEASURED, name: replace(MEASURED[name], **values)}  # type: ignore[arg-type]


def but_for(name: str, results: Sequence[CellResult], **values: object) -> list[CellResult]:
    return [
        replace(cell, **values)  # type: ignore[arg-type]
        if cell.trial.cell.server.name == name
        else cell
        for cell in results
    ]


# --- what made it fast --------------------------------------------------------------------------


def test_what_made_it_fast_by_size() -> None:
    one = finding(whole(), FAST)
    assert one.code == "ladder.fast"
    factors = [(cost.values["removed"], cost.values["factor"]) for cost in one.values["cost"]]
    assert factors == [
        (LOCAL_CACHE, pytest.approx(6800 / 3000)),
        (ASYNC, pytest.approx(1900 / 1250)),
        (WORKERS, pytest.approx(2700 / 1900)),
        (NO_REDIS, pytest.approx(3000 / 2750)),
    ]
    assert all(
        cost.values["low"] < cost.values["factor"] < cost.values["high"]
        for cost in one.values["cost"]
    )
    assert one.values["same"] == [NO_MONGODB]
    assert (one.values["gain"], one.values["bound"]) == ([], [])
    assert [said.values["removed"] for said in one.evidence] == [
        LOCAL_CACHE, NO_REDIS, NO_MONGODB, WORKERS, ASYNC,
    ]  # fmt: skip


def test_what_is_faster_without_is_listed() -> None:
    slow = changed("mongodb-redis-uvicorn-w2", rps=2000.0)
    (gain,) = finding(whole(slow), FAST).values["gain"]
    assert (gain.values["removed"], gain.values["factor"]) == (NO_REDIS, pytest.approx(2.75 / 2))


def test_where_nothing_is_significant_nothing_made_it_fast() -> None:
    same = dict.fromkeys(MEASURED, MEASURED["mongodb-uvicorn-w2"])
    one = finding(whole(same), FAST)
    assert (one.code, one.values["cost"], one.values["same"]) == ("ladder.fast.nothing", [], [])


def test_too_few_trials_are_inconclusive() -> None:
    planned = all_configurations()
    document = study(report(cells(planned, launches=1)), planned)
    assert finding(document, FAST).code == "ladder.fast.few"
    (note,) = (one for one in document.notes if codes(one) == "ladder.few_trials")
    assert note == Finding("ladder.few_trials", {"needed": 3, "fewest": 1})
    rates = table(document, "ladder.table.rates")
    assert column(rates, "factor")[:2] == [None, pytest.approx(3000 / 6800)]
    assert set(column(rates, "factor_low")) == {None}


def codes(label: Label) -> str:
    return label.code if isinstance(label, Finding) else ""


def test_where_the_load_tool_was_the_limit_is_a_lower_bound() -> None:
    planned = all_configurations()
    bound = but_for(planned[0].name, cells(planned), generator_bound=True, bound_reasons=("CPU",))
    assert finding(study(report(bound), planned), FAST).values["bound"] == [NOTHING]


def test_the_answer_is_from_the_tool_that_was_the_limit_least_often() -> None:
    planned = all_configurations()
    bound = [
        replace(cell, generator_bound=True, bound_reasons=("its CPU",))
        if cell.trial.cell.tool == "locust-fast"
        else cell
        for cell in cells(planned)
    ]
    one = finding(study(report(bound), planned), FAST)
    assert one.values["load"] == load(100, "fast")


# --- round trips --------------------------------------------------------------------------------


def test_round_trips_are_counted_and_cost() -> None:
    one = finding(whole(), TRIPS)
    assert one.code == "ladder.trips"
    steps = [
        tuple(step.values[name] for name in ("redis", "storage", "rps"))
        for step in one.values["steps"]
    ]
    assert steps == [
        (0.001, 0.001, pytest.approx(6800, rel=1e-3)),
        (1.0, 0.001, pytest.approx(3000, rel=1e-3)),
        (0.0, 1.0, pytest.approx(2750, rel=1e-3)),
    ]
    assert one.values["cost"] == Finding("ladder.trips.cost", {"same": []})
    assert len(one.evidence) == 3
    assert one.evidence[0].values["response_s"] == pytest.approx(160e-6 + 50e-6, rel=0.1)


def test_a_trip_that_costs_nothing_is_named() -> None:
    same = changed("mongodb-uvicorn-w2", rps=3000.0)
    cost = finding(whole(same), TRIPS).values["cost"]
    assert cost == Finding("ladder.trips.cost", {"same": [NO_REDIS]})


def test_a_cache_that_does_not_cache_is_detected() -> None:
    """All its users go to the storage."""
    planned = all_configurations()
    kept = cells(planned)
    plain = next(c for c in kept if c.trial.cell.server.name == planned[2].name and c.app_metrics)
    broken = but_for(planned[1].name, kept, app_metrics=plain.app_metrics)
    assert finding(study(report(broken), planned), TRIPS).code == "ladder.trips.no"


def test_without_app_metrics_trips_are_not_known() -> None:
    planned = all_configurations()
    document = study(report([replace(one, app_metrics=None) for one in cells(planned)]), planned)
    assert finding(document, TRIPS).code == "ladder.trips.unmeasured"
    assert finding(document, REDIS).values["hit"] == Finding("ladder.hit.no_metrics")
    trips = table(document, "ladder.table.trips", 100, "locust-fast")
    assert set(column(trips, "redis_trips")) == {None}


# --- limits -------------------------------------------------------------------------------------


def limit_of(
    seen: Seen, name: str = "postgresql-uvicorn-w2", cores: int = 8, **more: object
) -> str:
    planned = all_configurations()
    host = min(1.0, (seen.app + seen.storage + seen.cache + seen.tool) / cores + 0.05)
    results = [
        replace(cell, usage=replace(cell.usage, host_busy=host), **more)  # type: ignore[arg-type]
        for cell in cells(planned, {**MEASURED, name: seen})
    ]
    return limit(step_of(results, name), cores)[0].code


def step_of(results: Sequence[CellResult], name: str) -> Step:
    steps = next(iter(ladder(results, all_configurations(), {}).many_users.values()))
    return next(step for step in steps if step.configuration.name == name)


def test_where_nothing_is_near_a_limit_it_is_not_known() -> None:
    assert limit_of(CALM) == "ladder.limit.unknown"


@pytest.mark.parametrize(
    ("seen", "name", "cores", "limited_by"),
    [
        (replace(CALM, cache=0.81), "mongodb-redis-uvicorn-w2", 8, "service"),
        (replace(CALM, cache=0.5), "mongodb-redis-uvicorn-w2", 8, "unknown"),
        (replace(CALM, storage=1.7), "postgresql-uvicorn-w2", 2, "service"),
        (replace(CALM, storage=1.7), "postgresql-uvicorn-w2", 8, "unknown"),
        (replace(CALM, app=1.7), "postgresql-uvicorn-w2", 8, "app"),
        (replace(CALM, app=0.9), "postgresql-uvicorn-w1", 8, "app"),
        (replace(CALM, app=0.9), "postgresql-uvicorn-w2", 8, "unknown"),
        (replace(CALM, app=1.2, storage=0.3, tool=0.5), "postgresql-uvicorn-w2", 2, "machine"),
    ],
)
def test_what_was_the_limit(seen: Seen, name: str, cores: int, limited_by: str) -> None:
    assert limit_of(seen, name, cores) == f"ladder.limit.{limited_by}"


def test_a_busy_slot_is_the_apps_limit() -> None:
    """One request at a time, each waiting for the storage: no CPU shows it."""
    assert limit_of(replace(CALM, rps=1000.0), "postgresql-sync-w1") == "ladder.limit.app"


def test_the_load_tool_comes_first() -> None:
    full = replace(CALM, app=1.9)
    code = limit_of(full, generator_bound=True, bound_reasons=("its CPU",))
    assert code == "ladder.limit.tool"


BESIDE = CoreWait(share=0.3, worker_s=0.002, tool_s=0.001, others_cores=1.4, cores=2)


def test_other_programs_are_the_limit_where_the_trial_waited_for_them() -> None:
    """Whatever else looks full: the app's workers here."""
    planned = all_configurations()
    name = "postgresql-uvicorn-w2"
    taken = [
        replace(cell, core_wait=BESIDE) if cell.trial.cell.server.name == name else cell
        for cell in cells(planned, {**MEASURED, name: replace(CALM, app=1.9)})
    ]
    limited, why = limit(step_of(taken, name), 2)
    assert (limited.code, why.code) == ("ladder.limit.others", "ladder.limit.others.why")
    assert why.values["noise"].values["others_cores"] == pytest.approx(1.4)
    (note,) = (one for one in study(report(taken), planned).notes if one.code == "ladder.disturbed")
    steps = [cell for cell in taken if cell.core_wait and cell.trial.number == 1]
    assert note.values["times"] == len(steps)


def test_cores_that_others_used_and_nobody_waited_for_limit_nothing() -> None:
    planned, idle = all_configurations(), replace(BESIDE, share=0.01)
    results = [
        replace(cell, core_wait=idle, usage=replace(cell.usage, host_busy=1.0))
        for cell in cells(planned, dict.fromkeys(MEASURED, replace(CALM, storage=0.1)))
    ]
    limited, _ = limit(step_of(results, "postgresql-uvicorn-w2"), 2)
    assert limited.code == "ladder.limit.machine"
    assert "ladder.disturbed" not in map(codes, study(report(results), planned).notes)


@pytest.mark.parametrize(("busy", "limited_by"), [(0.3, "pool"), (1.0, "machine")])
def test_waiting_for_a_connection_is_the_pools_limit_where_the_machine_is_not(
    busy: float, limited_by: str
) -> None:
    results = []
    for cell in cells(all_configurations(), dict.fromkeys(MEASURED, CALM)):
        assert cell.app_metrics
        metrics = replace(cell.app_metrics, spent_s={**cell.app_metrics.spent_s, "pool": 2.0})
        usage = replace(cell.usage, host_busy=busy)
        results.append(replace(cell, app_metrics=metrics, usage=usage))
    found, _ = limit(step_of(results, "postgresql-uvicorn-w2"), 8)
    assert found.code == f"ladder.limit.{limited_by}"


def test_limits_are_listed_with_who_used_the_machine() -> None:
    one = finding(whole(), LIMITS)
    assert one.values["few_cores"] == 2
    machine = one.values["loads"][0].values["limits"][0]
    assert machine.values["limit"].code == "ladder.limit.machine"
    assert machine.values["steps"][:3] == (NOTHING, LOCAL_CACHE, NO_REDIS)
    _, used = one.evidence[2].values["why"].values["usage"]
    assert used == Finding(
        "ladder.usage.cores",
        {
            "cores": (
                Finding("ladder.cores.app", {"cores": pytest.approx(1.1)}),
                Finding("ladder.cores.storage", {"cores": pytest.approx(0.3)}),
                Finding("ladder.cores.tool", {"cores": pytest.approx(0.4)}),
            )
        },
    )


# --- the two questions --------------------------------------------------------------------------


def test_what_redis_saves_is_weighed() -> None:
    one = finding(whole(), REDIS)
    assert one.values["cost"].code == "ladder.redis.little"
    assert one.values["cost"].values["share"] == pytest.approx(1 - 2750 / 3000)
    assert one.values["hit"].code == "ladder.hit.saves"
    assert one.values["hit"].values == {
        "hit_s": pytest.approx(130e-6),
        "miss_s": pytest.approx(200e-6),
        "difference_s": pytest.approx(70e-6),
        "response_s": pytest.approx(410e-6, rel=1e-3),
    }
    cpu = {"before_s": 1.1 / 3000, "after_s": 1.1 / 2750}
    assert one.values["cpu"].values == pytest.approx(cpu, rel=1e-3)
    assert len(one.evidence) == 4


@pytest.mark.parametrize(("rps", "cost"), [(900.0, "much"), (2990.0, "none"), (4000.0, "gain")])
def test_what_losing_redis_costs(rps: float, cost: str) -> None:
    one = finding(whole(changed("mongodb-uvicorn-w2", rps=rps)), REDIS)
    assert one.values["cost"].code == f"ladder.redis.{cost}"


def test_sync_spreads_responses_otherwise() -> None:
    as_published = {
        **changed("postgresql-uvicorn-w1", rps=220.0),
        "postgresql-sync-w1": replace(MEASURED["postgresql-sync-w1"], rps=200.0),
    }
    values = finding(whole(as_published), SYNC).values
    assert values["moved"].code == "ladder.sync.moved.p95"
    assert values["moved"].values == {
        "p95": pytest.approx(0.57, abs=0.005),
        "rps": pytest.approx(0.91, abs=0.005),
    }
    assert values["order"].code == "ladder.sync.order.shown"
    assert values["mean_async_s"] == pytest.approx(100 / 220, rel=1e-3)
    spread = values["spread_async"], values["spread_sync"]
    assert spread == (pytest.approx(3.0), pytest.approx(1.05))


def moved(rps: float, spread: float) -> Finding:
    """Of a sync step that differs so from the async one, which has 1900 requests/s."""
    seen = changed("postgresql-sync-w1", rps=rps, spread=spread)
    one = finding(whole(seen), SYNC).values["moved"]
    assert isinstance(one, Finding)
    return one


def test_what_does_not_happen_is_not_explained_away() -> None:
    assert moved(1900.0, 3.0).code == "ladder.sync.moved.neither"
    assert moved(950.0, 3.0).code == "ladder.sync.moved.neither"  # half the rate, twice the time


def test_where_launches_do_not_decide_it_takes_more_of_them() -> None:
    one = moved(1250.0, 1.05)  # factors of 1.52 and 1.27, which three launches do not tell apart
    assert one.code == "ladder.sync.moved.undecided"
    assert 3 < one.values["launches"] < 10
    assert f"--trials {one.values['launches']}" in text(one)
    assert text(one).startswith("Inconclusive: p95 changes by a factor of 0.79 (95 % interval")


def test_where_no_number_of_launches_would_decide_that_is_said() -> None:
    planned = all_configurations()
    every = [
        replace(one, response=replace(one.response, p95=1e-3 * 9**one.trial.number))
        if one.trial.cell.server.name == "postgresql-sync-w1"
        else one
        for one in cells(planned)
    ]
    one = finding(study(report(every), planned), SYNC).values["moved"]
    assert one.values["launches"] is None
    assert "Not even 100 launches" in text(one)


# --- what is missing ----------------------------------------------------------------------------


def test_configurations_left_out_are_shown_with_their_reason() -> None:
    planned = all_configurations({"mongodb": "no mongod: --mongo-url names one"})
    seen = {one.name: MEASURED["postgresql-uvicorn-w2"] for one in planned}
    document = study(report(cells(planned, seen), services={"redis": "Redis 7"}), planned)
    steps = table(document, "ladder.table.steps")
    why = [row[-1] for row in steps.rows]
    assert why == ["no mongod: --mongo-url names one", *[None] * (len(planned) - 1)]
    assert document.valid
    first, redis = finding(document, SERVICES).values["services"]
    values = {"service": "MongoDB", "why": "no mongod: --mongo-url names one"}
    assert first == Finding("ladder.service.none", values)
    assert redis == Finding("ladder.service", {"service": "Redis", "version": "Redis 7"})


def test_without_redis_its_question_is_open() -> None:
    planned = all_configurations({"redis": "no redis-server"})
    seen = {one.name: MEASURED["postgresql-uvicorn-w2"] for one in planned}
    document = study(report(cells(planned, seen)), planned)
    assert finding(document, REDIS).code == "ladder.redis.unmeasured"


def test_mongodb_comes_first_of_the_services() -> None:
    first, *_ = finding(whole(), SERVICES).values["services"]
    assert first.values["version"].startswith("a server in Java that speaks")


def test_an_invalid_trial_is_named_and_left_out() -> None:
    planned = all_configurations()
    good = cells(planned)
    bad = replace(good[0], verdict="invalid", reason="it died", throughput_rps=None)
    document = study(report([bad, *good[1:]]), planned)
    assert not document.valid
    values = {"configuration": planned[0].text, "load": load(1, "fast")}
    values = {**values, "trial": 1, "reason": "it died"}
    assert Finding("ladder.invalid", values, (bad.trial.key,)) in document.notes
    assert column(table(document, "ladder.table.rates", 1), "launches")[0] == 2


def test_a_configuration_without_a_valid_trial_is_left_out_of_the_factors() -> None:
    planned = all_configurations()
    gone = but_for(planned[1].name, cells(planned), verdict="invalid", throughput_rps=None)
    document = study(report(gone), planned)
    ratios = column(table(document, "ladder.table.rates"), "factor")
    assert len(ratios) == len(planned) - 1
    assert ratios[1] == pytest.approx(2750 / 6800)
    # What lies between was not Redis alone
    assert finding(document, REDIS).code == "ladder.redis.unmeasured"


def test_a_run_of_nothing() -> None:
    document = study(report([]), all_configurations())
    assert not document.valid
    assert document.title == Finding("ladder.title.empty")
    for question in (FAST, TRIPS, LIMITS, REDIS, SYNC):
        assert finding(document, question).code.endswith(".unmeasured")
    for render in FORMATS.values():
        assert render(document)


# --- tables and charts --------------------------------------------------------------------------


def test_throughput_per_tool() -> None:
    rates = table(whole(), "ladder.table.rates", 100, "locust-fast")
    assert column(rates, "throughput_rps")[0] == pytest.approx(6800, rel=0.001)
    assert column(rates, "launches") == [3] * 6
    single = table(whole(), "ladder.table.rates", 1)
    assert "limit" not in [one.name for one in single.columns]


@pytest.mark.parametrize(("users", "tool"), [(1, "fast"), (100, "locust-fast")])
def test_parts_add_up_to_the_response(users: int, tool: str) -> None:
    times = table(whole(), "ladder.table.times", users, tool)
    names = [one.name for one in times.columns]
    inside = [i for i, one in enumerate(names) if i > 1 and one != "in_worker_s"]
    for row in times.rows:
        service = sum(row[i] or 0.0 for i in inside)  # type: ignore[misc]
        response, before = row[1], row[names.index("in_worker_s")]
        assert isinstance(response, float)
        assert isinstance(before, float)
        assert service + before / 0.9 == pytest.approx(response, rel=0.01)


def test_steps_stand_in_the_order_of_the_plan() -> None:
    planned = all_configurations()
    rates = table(study(report(cells(planned)[::-1]), planned), "ladder.table.rates")
    assert column(rates, "removed")[:3] == [NOTHING, LOCAL_CACHE, NO_REDIS]


def test_charts_are_bars_by_step() -> None:
    rates, times, *_, trips = whole().charts
    assert (rates.form, len(rates.series), len(rates.names)) == ("bars", 2, 6)
    assert (times.form, times.series[0].name) == ("stacked", Finding("part.in_worker"))
    assert (trips.form, trips.names[2]) == ("stacked", NO_REDIS)
    drawn = chart_figures(whole())
    assert len(drawn) == 4
    assert ("Redis", "0", "1") in drawn[-1].rows
    assert {key.shape for one in drawn for key in one.legend} == {"box"}


@pytest.mark.parametrize("width", [80, 100])
def test_a_terminal_holds_the_tables(width: int) -> None:
    page = terminal.render(whole(), width=width)
    assert max(map(len, page.splitlines())) <= width


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_every_finding_has_a_sentence(form: str) -> None:
    assert FORMATS[form](whole())


def test_the_same_configuration_with_one_user() -> None:
    planned = all_configurations()
    steps = ladder(cells(planned), planned, {})
    single = steps.with_one_user(steps.conclusive[2])
    assert single is not None
    assert single.configuration == steps.conclusive[2].configuration
    assert single.load.users == 1
