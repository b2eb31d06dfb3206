"""What a ladder means: factors, limits and the two questions, from constructed cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from msgspec.structs import replace

from tests.builders.analysis import invalid_of
from tests.builders.document import answer, column, names, note, rows
from tests.builders.ladder import MEASURED, Measured, all_configurations, cells, report, whole
from workerlab.experiments.ladder import findings, limits, why
from workerlab.experiments.ladder.document import (
    InvalidStepTrial,
    StepsDisturbed,
    StepsWithoutInterval,
    study,
)
from workerlab.experiments.ladder.steps import ConfigurationStep, UserLoad, ladder
from workerlab.finding import Finding, Inconclusive
from workerlab.model.result import CoreWait, Document, Result, Table, TrialResult
from workerlab.report import FORMATS
from workerlab.report import text as terminal
from workerlab.report.html.chart_figures import chart_figures

PLANNED = all_configurations()
CALM = Measured(1000, app=0.2, storage=0.1, tool=0.1)


def document_of(results: Sequence[TrialResult]) -> Document:
    return study(report(results), PLANNED)


def inconclusive(document: Document) -> dict[str, str]:
    """The reasons, by question."""
    answers = [finding for finding in document.findings if isinstance(finding, Inconclusive)]
    return {answer.question: answer.reason for answer in answers}


def table(document: Document, name: str, users: int = 100, tool: str = "fast") -> Table:
    titles = (name, f"{name}, {UserLoad(tool, users).text}")
    (match,) = (table for table in document.tables if table.title in titles)
    return match


NOTHING, LOCAL_CACHE, WORKERS, ASYNC = "nothing", "in-process cache", "other workers", "async"
NO_REDIS, NO_MONGODB = "Redis", "MongoDB (for PostgreSQL)"


def measured_with(name: str, **values: object) -> Mapping[str, Measured]:
    """MEASURED with one configuration changed."""
    return {**MEASURED, name: replace(MEASURED[name], **values)}


def results_with(name: str, results: Sequence[Result], **values: object) -> list[Result]:
    return [
        replace(cell, **values) if cell.trial.cell.server.name == name else cell for cell in results
    ]


def results_of(
    change: Callable[[Result], Result], measured: Mapping[str, Measured] = MEASURED
) -> list[Result]:
    """The results of all trials, each changed."""
    return [change(result) for result in cells(PLANNED, measured)]


def spending(result: Result, **times_s: float | None) -> Result:
    """The result, with other times of the parts that the app times; None: not timed."""
    assert result.app_metrics
    spent_s = {**result.app_metrics.spent_s, **times_s}
    timed_s = {name: time_s for name, time_s in spent_s.items() if time_s is not None}
    return replace(result, app_metrics=replace(result.app_metrics, spent_s=timed_s))


# --- what made it fast --------------------------------------------------------------------------


def test_removal_factors_are_listed_by_size() -> None:
    fast = answer(whole(), findings.RemovalFactors)
    assert [(factor.removed, factor.factor.value) for factor in fast.factors] == [
        (LOCAL_CACHE, pytest.approx(6800 / 3000)),
        (ASYNC, pytest.approx(1900 / 1250)),
        (WORKERS, pytest.approx(2700 / 1900)),
        (NO_REDIS, pytest.approx(3000 / 2750)),
    ]
    for ratio in (factor.factor for factor in fast.factors):
        low, high = ratio.ends
        assert low < ratio.value < high
    assert fast.same == (NO_MONGODB,)
    assert (fast.gains, fast.tool_bound) == ((), ())
    rates = [rate for rate in fast.evidence if isinstance(rate, findings.RateOfStep)]
    in_order = [LOCAL_CACHE, NO_REDIS, NO_MONGODB, WORKERS, ASYNC]
    assert [rate.removed for rate in rates] == in_order
    assert str(fast).startswith(
        "With 100 users (locust-fast), removal reduced throughput by these factors, the largest"
        " first: in-process cache 2.27 (2.1"
    )
    assert str(fast).endswith(" Not statistically significant: MongoDB (for PostgreSQL).")
    assert str(rates[0]).startswith("in-process cache removed: 3000 req/s, 0.44 times the previous")


def test_removals_may_gain_throughput_or_have_no_effect() -> None:
    slow = measured_with("mongodb-redis-uvicorn-w2", rps=2000.0)
    (gain,) = answer(whole(slow), findings.RemovalFactors).gains
    assert (gain.removed, gain.factor.value) == (NO_REDIS, pytest.approx(2.75 / 2))
    same = dict.fromkeys(MEASURED, MEASURED["mongodb-uvicorn-w2"])
    fast = answer(whole(same), findings.RemovalFactors)
    assert (fast.factors, fast.same) == ((), ())
    assert str(fast) == (
        "With 100 users (locust-fast), no reduction of throughput is statistically significant."
    )


def test_too_few_trials_are_inconclusive() -> None:
    document = document_of(cells(PLANNED, launches=1))
    assert inconclusive(document)[findings.RemovalFactors.question] == findings.NO_INTERVAL
    assert StepsWithoutInterval(needed=3, fewest=1) in document.notes
    rates = table(document, "Throughput by step")
    assert column(rates, "factor")[:2] == [None, pytest.approx(3000 / 6800)]
    assert set(column(rates, "factor_low")) == {None}


@pytest.mark.parametrize(
    ("votes", "bound"),
    [
        ((True, True, True), True),
        ((True, None, None), True),  # unknown trials do not count
        ((True, False, None), True),
        ((True, False, False), False),
        ((None, None, None), False),
    ],
)
def test_throughput_limited_by_the_load_tool_is_a_lower_bound(
    votes: tuple[bool | None, ...], *, bound: bool
) -> None:
    def judged(result: Result) -> Result:
        if result.trial.cell.server.name != PLANNED[0].name:
            return result
        vote = votes[result.trial.number - 1]
        return replace(result, generator_bound=vote, bound_reasons=("CPU",) if vote else ())

    fast = answer(document_of(results_of(judged)), findings.RemovalFactors)
    assert fast.tool_bound == ((NOTHING,) if bound else ())
    assert ("throughput is a lower bound" in str(fast)) is bound


def test_the_answer_is_from_the_tool_that_was_the_limit_least_often() -> None:
    def bound(result: Result) -> Result:
        return replace(result, generator_bound=result.trial.cell.tool == "locust-fast")

    fast = answer(document_of(results_of(bound)), findings.RemovalFactors)
    assert fast.load == UserLoad("fast", 100).text


# --- round trips --------------------------------------------------------------------------------


def test_round_trips_have_their_cost() -> None:
    trips = answer(whole(), findings.CacheTrips)
    steps = [step for step in trips.evidence if isinstance(step, findings.TripsOfStep)]
    assert [(step.redis, step.storage, step.rps) for step in steps] == [
        (0.001, 0.001, pytest.approx(6800, rel=1e-3)),
        (1.0, 0.001, pytest.approx(3000, rel=1e-3)),
        (0.0, 1.0, pytest.approx(2750, rel=1e-3)),
    ]
    assert (trips.contradiction, trips.free) == ("", ())
    assert trips.cost == "Each costs throughput."
    assert len(trips.steps) == 3
    assert trips.steps[1] == (
        "in-process cache removed, 1.00 to Redis and 0.00 to the storage (3000 req/s)"
    )
    assert steps[0].response_s == pytest.approx(160e-6 + 50e-6, rel=0.1)


def test_round_trips_may_cost_nothing() -> None:
    trips = answer(whole(measured_with("mongodb-uvicorn-w2", rps=3000.0)), findings.CacheTrips)
    assert trips.free == (NO_REDIS,)
    assert trips.cost.startswith("Each costs throughput, except Redis, where")
    same = {name: replace(measured, rps=6800.0) for name, measured in MEASURED.items()}
    trips = answer(whole(same), findings.CacheTrips)
    assert (trips.cost, trips.free) == (findings.NO_LOSS, (LOCAL_CACHE, NO_REDIS))


def test_a_cache_that_does_not_cache_is_detected() -> None:
    """All its requests go to the storage."""
    results = cells(PLANNED)
    uncached = next(cell for cell in results if cell.trial.cell.server.name == PLANNED[2].name)
    broken = results_with(PLANNED[1].name, results, app_metrics=uncached.app_metrics)
    trips = answer(document_of(broken), findings.CacheTrips)
    assert (trips.contradiction, trips.cost) == (findings.NOT_FARTHER, "")


def test_without_app_metrics_trips_are_unknown() -> None:
    document = document_of(results_of(lambda result: replace(result, app_metrics=None)))
    assert inconclusive(document)[findings.CacheTrips.question] == findings.TRIPS_NOT_COUNTED
    assert answer(document, why.RedisLoss).hit == why.NO_METRICS
    trips = table(document, "Round trips", 100, "locust-fast")
    assert set(column(trips, "redis_trips")) == {None}


# --- limits -------------------------------------------------------------------------------------


def limit_of(
    usage: Measured, name: str = "postgresql-uvicorn-w2", cores: int = 8, **values: object
) -> limits.StepLimit:
    host = min(1.0, (usage.app + usage.storage + usage.cache + usage.tool) / cores + 0.05)
    results = results_of(
        lambda result: replace(result, usage=replace(result.usage, host_busy=host), **values),
        {**MEASURED, name: usage},
    )
    return limits.limit(step_of(results, name), cores)


def step_of(results: Sequence[Result], name: str) -> ConfigurationStep:
    steps = next(iter(ladder(results, PLANNED, {}).many_users.values()))
    return next(step for step in steps if step.configuration.name == name)


@pytest.mark.parametrize(
    ("usage", "name", "cores", "limited_by"),
    [
        (CALM, "postgresql-uvicorn-w2", 8, "unknown"),
        (replace(CALM, cache=0.81), "mongodb-redis-uvicorn-w2", 8, "Redis"),
        (replace(CALM, cache=0.5), "mongodb-redis-uvicorn-w2", 8, "unknown"),
        (replace(CALM, storage=1.7), "postgresql-uvicorn-w2", 2, "PostgreSQL"),
        (replace(CALM, storage=1.7), "postgresql-uvicorn-w2", 8, "unknown"),
        (replace(CALM, app=1.7), "postgresql-uvicorn-w2", 8, "app"),
        (replace(CALM, app=0.9), "postgresql-uvicorn-w1", 8, "app"),
        (replace(CALM, app=0.9), "postgresql-uvicorn-w2", 8, "unknown"),
        (replace(CALM, app=1.2, storage=0.3, tool=0.5), "postgresql-uvicorn-w2", 2, "machine"),
    ],
)
def test_cpu_near_its_limit_is_the_limit(
    usage: Measured, name: str, cores: int, limited_by: str
) -> None:
    limited = limit_of(usage, name, cores)
    assert limited.name == limited_by
    kinds = {"machine": limits.MachineLimit, "unknown": limits.UnknownLimit}
    assert type(limited) is kinds.get(limited_by, limits.CpuLimit)


def test_a_busy_slot_is_the_limit_of_the_app() -> None:
    """One request at a time waits for the storage, so no CPU is busy."""
    limited = limit_of(replace(CALM, rps=1000.0), "postgresql-sync-w1")
    assert isinstance(limited, limits.SlotsLimit)
    assert (limited.name, limited.slots) == ("app", 1)


def test_a_busy_load_tool_is_the_limit_even_if_the_app_is_full() -> None:
    limited = limit_of(replace(CALM, app=1.9), generator_bound=True, bound_reasons=("its CPU",))
    assert isinstance(limited, limits.ToolLimit)
    assert str(limited).startswith("locust-fast: its CPU (host ")


OTHERS_BUSY = CoreWait(share=0.3, worker_s=0.002, tool_s=0.001, others_cores=1.4, cores=2)


def test_other_programs_are_the_limit_if_the_trial_waited_for_them() -> None:
    """The app's workers look full, too."""
    name = "postgresql-uvicorn-w2"
    results = cells(PLANNED, {**MEASURED, name: replace(CALM, app=1.9)})
    results = results_with(name, results, core_wait=OTHERS_BUSY)
    limited = limits.limit(step_of(results, name), 2)
    assert isinstance(limited, limits.OthersLimit)
    assert limited.disturbance.wait.others_cores == pytest.approx(1.4)
    assert limited.usage.cores["other processes"] == pytest.approx(1.4)
    steps = [cell for cell in results if cell.core_wait and cell.trial.number == 1]
    assert note(document_of(results), StepsDisturbed).disturbed == len(steps)


def test_other_programs_that_delay_nothing_are_no_limit() -> None:
    idle = replace(OTHERS_BUSY, share=0.01)
    results = results_of(
        lambda result: replace(result, core_wait=idle, usage=replace(result.usage, host_busy=1.0)),
        dict.fromkeys(MEASURED, CALM),
    )
    assert limits.limit(step_of(results, "postgresql-uvicorn-w2"), 2).name == "machine"
    assert not any(isinstance(note, StepsDisturbed) for note in document_of(results).notes)


@pytest.mark.parametrize(("busy", "limited_by"), [(0.3, "pool"), (1.0, "machine")])
def test_waiting_for_a_connection_is_the_pools_limit_unless_the_machine_is_full(
    busy: float, limited_by: str
) -> None:
    def waiting(result: Result) -> Result:
        return replace(spending(result, pool=2.0), usage=replace(result.usage, host_busy=busy))

    results = results_of(waiting, dict.fromkeys(MEASURED, CALM))
    assert limits.limit(step_of(results, "postgresql-uvicorn-w2"), 8).name == limited_by


def test_limits_are_listed_with_the_machine_usage() -> None:
    by_load = answer(whole(), findings.LimitsOfSteps)
    assert by_load.few_cores == 2
    machine, *_ = by_load.loads[0].limits
    assert machine.startswith("machine (removed: nothing, in-process cache, Redis")
    _, _, without_redis, *_ = by_load.evidence
    assert isinstance(without_redis, findings.LimitOfStep)
    usage = without_redis.limit.usage
    assert isinstance(usage, limits.MachineUsage)
    assert usage.cores == pytest.approx({"app": 1.1, "storage": 0.3, "load tool": 0.4})
    assert str(usage) == "host 100 % busy; cores: app 1.10, storage 0.30, load tool 0.40"


# --- the two questions --------------------------------------------------------------------------


def test_redis_saves_time_of_the_storage() -> None:
    redis = answer(whole(), why.RedisLoss)
    assert redis.size == "little"
    assert redis.change.value == pytest.approx(2750 / 3000)
    assert redis.cost == "Here it costs 8 % of the throughput."
    hit = redis.hit
    assert isinstance(hit, why.RedisHit)
    assert hit.effect == "saves"
    assert (hit.hit_s, hit.miss_s) == (pytest.approx(130e-6), pytest.approx(200e-6))
    assert hit.difference_s == pytest.approx(70e-6)
    assert hit.response_s == pytest.approx(410e-6, rel=1e-3)
    assert isinstance(redis.cpu, why.CpuOfRequest)
    assert redis.cpu.before_s == pytest.approx(1.1 / 3000, rel=1e-3)
    assert redis.cpu.after_s == pytest.approx(1.1 / 2750, rel=1e-3)
    assert len(redis.evidence) == 4
    assert str(redis).endswith(
        "the storage 200 us: Redis saves 70.0 us; without it a response takes 410 us. A request"
        " takes 367 us of the app's CPU time with Redis, 400 us without."
    )


@pytest.mark.parametrize(("rps", "size"), [(900.0, "much"), (2990.0, "none"), (4000.0, "gain")])
def test_losing_redis_has_its_cost(rps: float, size: str) -> None:
    redis = answer(whole(measured_with("mongodb-uvicorn-w2", rps=rps)), why.RedisLoss)
    assert redis.size == size
    assert str(redis).startswith(redis.cost)


def test_a_part_that_the_app_does_not_time_is_left_out() -> None:
    untimed = results_of(lambda result: spending(result, serialise=None))
    redis = answer(document_of(untimed), why.RedisLoss)
    assert isinstance(redis.hit, why.RedisHit)
    assert redis.hit.hit_s == pytest.approx(110e-6)
    assert "Redis 110 us, pool" in str(redis.evidence[0])


def test_sync_changes_p95_more_than_throughput() -> None:
    as_published = {
        **measured_with("postgresql-uvicorn-w1", rps=220.0),
        "postgresql-sync-w1": replace(MEASURED["postgresql-sync-w1"], rps=200.0),
    }
    sync = answer(whole(as_published), why.SyncEffect)
    larger = sync.larger_change
    assert isinstance(larger, why.P95ChangesMore)
    assert larger.p95.value == pytest.approx(0.57, abs=0.005)
    assert larger.throughput.value == pytest.approx(0.91, abs=0.005)
    assert sync.order == why.ORDER_SHOWS
    assert sync.mean_async_s == pytest.approx(100 / 220, rel=1e-3)
    assert (sync.spread_async, sync.spread_sync) == (pytest.approx(3.0), pytest.approx(1.05))


def larger_change(rps: float, spread: float) -> Finding:
    """The finding for a sync step with these values; the async one has 1900 requests/s."""
    steps = measured_with("postgresql-sync-w1", rps=rps, spread=spread)
    return answer(whole(steps), why.SyncEffect).larger_change


def test_p95_may_change_no_more_than_throughput() -> None:
    for rps in (1900.0, 950.0):  # at half the rate, p95 is twice as long
        change = larger_change(rps, 3.0)
        assert isinstance(change, why.P95ChangesNoMore)
        assert change.outcome == "neither changes much more than the other"


def test_an_undecided_change_names_the_launches_needed() -> None:
    # Factors of 1.52 and 1.27 are too close for three launches
    undecided = larger_change(1250.0, 1.05)
    assert isinstance(undecided, why.LargerChangeUndecided)
    assert 3 < undecided.launches < 10
    assert f"--trials {undecided.launches}" in str(undecided)
    assert str(undecided).startswith("Inconclusive: p95 changes by a factor of 0.79 (95 % interval")


def with_p95(p95_s: Callable[[int], float | None]) -> Document:
    """A document in which the sync step has this p95, by the number of the trial."""

    def changed(result: Result) -> Result:
        if result.trial.cell.server.name != "postgresql-sync-w1":
            return result
        response = replace(result.response, p95=p95_s(result.trial.number))
        return replace(result, response=response)

    return document_of(results_of(changed))


def test_more_launches_cannot_decide_every_change() -> None:
    undecided = answer(with_p95(lambda number: 1e-3 * 9**number), why.SyncEffect).larger_change
    assert isinstance(undecided, why.LargerChangeUndecided)
    assert undecided.launches is None
    assert "Not even 100 launches" in str(undecided)


def test_a_launch_without_percentiles_is_left_out_of_them() -> None:
    document = with_p95(lambda number: None if number == 1 else 0.1 + number * 1e-4)
    assert answer(document, why.SyncEffect).larger_change
    assert inconclusive(with_p95(lambda _: None))[why.SyncEffect.question] == why.NO_PERCENTILES


# --- what is missing ----------------------------------------------------------------------------


def document_without(service: str, reason: str) -> Document:
    planned = all_configurations({service: reason})
    measured = {configuration.name: MEASURED["postgresql-uvicorn-w2"] for configuration in planned}
    return study(report(cells(planned, measured), services={"redis": "Redis 7"}), planned)


def test_configurations_left_out_are_shown_with_their_reason() -> None:
    reason = "no mongod: --mongo-url names one"
    document = document_without("mongodb", reason)
    reasons = [row[-1] for row in table(document, "The steps").rows]
    assert reasons == [reason, *[None] * (len(all_configurations({"mongodb": reason})) - 1)]
    assert document.valid
    assert answer(document, findings.ServicesUsed).services == (
        f"MongoDB: not used ({reason})",
        "Redis: Redis 7",
    )
    (left_out,) = document.notes
    assert str(left_out).startswith("Left out: uvicorn, 2 workers, MongoDB: no mongod")
    first, *_ = answer(whole(), findings.ServicesUsed).services
    assert first.startswith("MongoDB: a server in Java that speaks")
    document = document_without("redis", "no redis-server")
    assert inconclusive(document)[why.RedisLoss.question] == why.NO_REDIS_STEP


def test_an_invalid_trial_is_named_and_left_out() -> None:
    good = cells(PLANNED)
    bad = invalid_of(good[0], "it died")
    document = document_of([bad, *good[1:]])
    assert not document.valid
    died = InvalidStepTrial(PLANNED[0].text, UserLoad("fast", 1).text, 1, "it died")
    assert died in document.notes
    assert str(died) in " ".join(terminal.render(document).split())
    assert column(table(document, "Throughput by step", 1), "launches")[0] == 2


def test_a_configuration_without_a_valid_trial_is_left_out_of_the_factors() -> None:
    gone = [
        invalid_of(cell, cell.reason) if cell.server.name == PLANNED[1].name else cell
        for cell in cells(PLANNED)
    ]
    document = document_of(gone)
    ratios = column(table(document, "Throughput by step"), "factor")
    assert len(ratios) == len(PLANNED) - 1
    assert ratios[1] == pytest.approx(2750 / 6800)
    # The remaining steps differ in more than Redis
    assert inconclusive(document)[why.RedisLoss.question] == why.NO_REDIS_STEP


def test_a_run_without_trials_is_inconclusive() -> None:
    document = document_of([])
    assert not document.valid
    assert document.title == (
        "What makes a real web app fast? A blog from which each step removes one thing: no trial"
        " has been measured."
    )
    reasons = inconclusive(document)
    assert len(reasons) == len(document.findings) - 1  # the services are known
    assert reasons[findings.RemovalFactors.question] == findings.NO_TWO_STEPS
    for render in FORMATS.values():
        assert render(document)


# --- tables and charts --------------------------------------------------------------------------


def test_the_steps_of_a_table_have_the_order_of_the_plan() -> None:
    rates = table(whole(), "Throughput by step", 100, "locust-fast")
    assert column(rates, "throughput_rps")[0] == pytest.approx(6800, rel=0.001)
    assert column(rates, "launches") == [3] * 6
    single = table(whole(), "Throughput by step", 1)
    assert "limit" not in names(single)
    rates = table(document_of(cells(PLANNED)[::-1]), "Throughput by step")
    assert column(rates, "removed")[:3] == [NOTHING, LOCAL_CACHE, NO_REDIS]


@pytest.mark.parametrize(("users", "tool"), [(1, "fast"), (100, "locust-fast")])
def test_phases_add_up_to_the_response_time(users: int, tool: str) -> None:
    for row in rows(table(whole(), "Where the time goes", users, tool)):
        _, response_s, *parts_s = row.values()
        before_s = row["in_worker_s"]
        service_s = sum(part_s or 0.0 for part_s in parts_s) - before_s
        assert service_s + before_s / 0.9 == pytest.approx(response_s, rel=0.01)


def test_charts_are_bars_by_step() -> None:
    rates, times, *_, trips = whole().charts
    assert (rates.form, len(rates.series), len(rates.names)) == ("bars", 2, 6)
    assert (times.form, times.series[0].name) == ("stacked", "in the worker")
    assert (trips.form, trips.names[2]) == ("stacked", NO_REDIS)
    drawn = chart_figures(whole())
    assert len(drawn) == 4
    assert ("Redis", "0", "1") in drawn[-1].rows
    assert {key.shape for figure in drawn for key in figure.legend} == {"box"}


def test_every_finding_has_a_sentence_and_tables_fit_the_terminal() -> None:
    assert all(render(whole()) for render in FORMATS.values())
    for width in (80, 100):
        page = terminal.render(whole(), width=width)
        assert max(map(len, page.splitlines())) <= width
