"""The trials that run side by side: the cores they need and the order in which they start."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.plan import APP, SERVER, plan
from workerlab.cli import parse
from workerlab.durations import predicted_s
from workerlab.experiments.jobs import (
    START_INTERVAL_S,
    START_SPREAD_S,
    CpuBudget,
    JobPlanner,
    batch_duration_s,
    only_sleeps,
)
from workerlab.experiments.sweep.command import jobs_of
from workerlab.model.evidence import Observations, ProcessSample, Record
from workerlab.model.plan import App, Cell, Plan, Rate, Server, Trial
from workerlab.plan import product, trials

CORES = 2
OWN = App("shop.wsgi:app", "/srv/shop")
LOOPS = replace(SERVER, worker_class="eventlet")


def jobs(sweep: Plan, cores: int = CORES, *, drops_known: bool = True) -> JobPlanner:
    def requested_rps(trial: Trial) -> float | None:
        return trial.cell.rate.rps if trial.cell.rate else None

    return JobPlanner(sweep, cores, requested_rps, drops_known=drops_known)


def sleeping_plan(*cells: Cell, **changes: Any) -> Plan:
    return plan(cells or None, jobs=None, **changes)


def expected_s(trial: Trial) -> float:
    return predicted_s(sleeping_plan(), trial.cell, 1.0)


def test_more_requests_per_second_need_more_cores() -> None:
    """At most what the slots allow, plus a little for each worker with an event loop."""

    def cores(server: Server) -> list[float]:
        sweep = sleeping_plan(*product((server,), ("ab",), (4, 8, 16)))
        return [jobs(sweep).cores(trial) or 0.0 for trial in trials(sweep)]

    four, eight, sixteen = cores(SERVER)
    assert four == eight == sixteen  # four slots
    loops = cores(LOOPS)
    assert loops == sorted(set(loops))
    assert loops[0] > four
    assert cores(replace(SERVER, app=replace(APP, sleep_s=0.1)))[0] > four


@pytest.mark.parametrize(
    ("app", "sleeps"),
    [
        (APP, True),
        (replace(APP, target="apps.imported_sleep:app"), True),
        (replace(APP, sleep_s=0.0), False),
        (replace(APP, sleep_s=None), False),  # a mix of requests
        (replace(APP, path="/?sleep=1&cpu=20"), False),
        (replace(APP, env=(("WORKERLAB_CPU", "5"),)), False),
        (replace(APP, target="apps.blog.wsgi:app"), False),
        (OWN, False),
    ],
)
def test_an_app_without_computation_only_sleeps(app: App, sleeps: bool) -> None:
    assert only_sleeps(app) == sleeps


def test_only_trials_known_to_sleep_share_the_cores() -> None:
    cell = trials(sleeping_plan())[0].cell
    for other in (
        replace(cell, server=replace(SERVER, app=OWN)),
        replace(cell, tool="locust"),
        replace(cell, inside="needs"),
        replace(cell, server=replace(LOOPS, app=replace(APP, sleep_s=0.001)), concurrency=1000),
    ):
        assert not jobs(sleeping_plan(other)).can_share(Trial(other, 1))
    assert jobs(sleeping_plan()).can_share(Trial(cell, 1))
    assert not jobs(plan()).can_share(Trial(cell, 1))  # jobs=1
    assert not jobs(sleeping_plan(load_hosts=("a",))).can_share(Trial(cell, 1))


def test_a_trial_that_may_drop_runs_alone_if_drops_are_not_known_per_server() -> None:
    """More connections than the accept queue takes."""
    cell = Cell(replace(SERVER, backlog=4), "ab", 16)
    few = replace(cell, concurrency=4)
    assert jobs(sleeping_plan(cell)).can_share(Trial(cell, 1))
    assert not jobs(sleeping_plan(cell), drops_known=False).can_share(Trial(cell, 1))
    assert jobs(sleeping_plan(few), drops_known=False).can_share(Trial(few, 1))


def samples(server_s: float) -> Observations:
    return Observations(processes=(ProcessSample(1, 0.0, 0.0, 0.0, 1, 1),
                                   ProcessSample(2, server_s, 0.0, 0.0, 1, 1)))  # fmt: skip


@pytest.mark.parametrize(("cpu_s", "shares"), [(0.002, True), (0.5, False)])
def test_a_users_app_shares_the_cores_once_it_was_seen_to_wait(cpu_s: float, shares: bool) -> None:
    cells = product((replace(SERVER, app=OWN),), ("ab",), (4, 8, 16))
    sweep = plan(cells, jobs=3)
    planner, (first, *others) = jobs(sweep), trials(sweep)
    assert planner.next_batch([first, *others]) == ([first], others)
    record = Record(first.key, None, lone_s=(1.0,), planned_requests=20, tool_cpu_s=0.0)
    planner.on_result(first, record, lambda: samples(20 * cpu_s))
    batch, left = planner.next_batch(others)
    assert batch == (others[::-1] if shares else others[:1])  # the longest first
    assert len(batch) + len(left) == len(others)


def test_the_longest_trials_start_first_but_repeated_ones_in_random_order() -> None:
    sweep = sleeping_plan()
    batch, left = jobs(sweep).next_batch(trials(sweep))
    assert ([trial.cell.concurrency for trial in batch], left) == ([16, 8, 4], [])
    repeated = sleeping_plan(trials=3, seed=5)
    todo = trials(repeated)
    assert jobs(repeated).next_batch(todo) == (todo, [])


def test_trials_that_run_alone_keep_their_place_among_repeated_ones() -> None:
    alone = replace(LOOPS, app=replace(APP, sleep_s=0.001))
    sweep = sleeping_plan(*product((SERVER, alone), ("ab",), (4, 8, 16)), trials=2, seed=3)
    planner, todo = jobs(sweep), trials(sweep)
    in_order, left = list[Trial](), todo
    while left:
        batch, left = planner.next_batch(left)
        assert len(batch) == 1 or all(map(planner.can_share, batch))
        in_order += batch
    assert in_order == todo


def test_trials_at_a_rate_come_last() -> None:
    rates = (Rate(rps=2.0), Rate(share=0.5))
    sweep = sleeping_plan(*product((SERVER,), ("fast",), (4, 8), rates=rates))
    planner = jobs(sweep)
    batch, left = planner.next_batch(trials(sweep))
    assert {trial.cell.rate for trial in batch} == {None}
    assert {trial.cell.rate for trial in left} == set(rates)
    assert planner.next_batch(left)[1] == []


def test_without_jobs_trials_run_one_by_one() -> None:
    todo = trials(plan())
    assert jobs(plan()).next_batch(todo) == (todo[:1], todo[1:])


# --- the CPU budget -------------------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "jobs", "fit"), [(1.0, None, 5), (10.0, 1, 1)])
def test_the_budget_is_limited_by_cores_and_jobs(cores: float, jobs: int | None, fit: int) -> None:
    budget = CpuBudget(cores, jobs)
    for number in range(fit):
        assert budget.fits(0.2, 0.0, loaded=False)
        budget.enter(str(number), 0.2, 0.0, loaded=False)
    assert not budget.fits(0.2, 0.0, loaded=False)
    budget.leave("0")
    assert budget.fits(0.2, 0.0, loaded=False)


def test_servers_start_at_intervals_during_a_load() -> None:
    """Starting takes CPU: several at once would disturb the load."""
    budget = CpuBudget(0.5, None)
    budget.enter("a", 0.1, 0.0, loaded=False)
    budget.enter("b", 0.01, 0.0, loaded=True)
    count = 0
    while budget.fits(0.01, 0.0, loaded=True):
        budget.enter(f"c{count}", 0.01, 0.0, loaded=True)
        count += 1
    assert count < 3
    assert budget.fits(0.01, 60.0, loaded=True)


def test_the_duration_of_a_batch_depends_on_the_budget() -> None:
    six = [(str(n), 10.0, 0.1) for n in range(6)]
    # Until the last one starts
    assert batch_duration_s(CpuBudget(1.0, None), six) == 10.0 + 5 * START_INTERVAL_S
    assert batch_duration_s(CpuBudget(1.0, 1), six) == 60.0
    assert batch_duration_s(CpuBudget(0.35, None), six) == 2 * (10.0 + 2 * START_INTERVAL_S)
    # The third starts when the second ends, and the last one some time after that
    mixed = [("a", 20.0, 0.1), ("b", 1.0, 0.25), ("c", 1.0, 0.1), ("d", 20.0, 0.1)]
    expected_s = 1.0 + START_INTERVAL_S + START_SPREAD_S + 20.0
    assert batch_duration_s(CpuBudget(0.35, None), mixed) == pytest.approx(expected_s)
    with_a_long_one = [("a", 30.0, 0.1), *six]
    assert batch_duration_s(CpuBudget(1.0, None), with_a_long_one) == 30.0 + 6 * START_INTERVAL_S
    assert batch_duration_s(CpuBudget(1.0, None), []) == 0.0


@pytest.mark.parametrize("app", [APP, OWN])
def test_time_left_shrinks_as_trials_run(app: App) -> None:
    sweep = sleeping_plan(*product((replace(SERVER, app=app),), ("ab",), (4, 8, 16)))
    planner, todo = jobs(sweep), trials(sweep)
    whole_s = planner.left_s(expected_s, todo, {})
    longest_s, sum_s = max(map(expected_s, todo)), sum(map(expected_s, todo))
    assert whole_s == (longest_s + 2 * START_INTERVAL_S if app is APP else sum_s)
    later_s = planner.left_s(expected_s, todo, {trial.key: 2.0 for trial in todo})
    assert later_s == (longest_s - 2.0 if app is APP else sum_s - 6.0)
    assert planner.left_s(lambda _: None, todo, {}) is None


def test_the_time_left_of_trials_that_run_alone_is_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar draws it several times a second, while the load runs on the same cores."""
    planner, todo = jobs(plan()), trials(plan())
    monkeypatch.delattr(JobPlanner, "cores")
    monkeypatch.delattr(JobPlanner, "budget")
    all_s = sum(map(expected_s, todo))
    assert planner.left_s(expected_s, todo, {}) == pytest.approx(all_s)
    assert planner.left_s(expected_s, todo, {todo[0].key: 2.0}) == pytest.approx(all_s - 2.0)


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "arguments", "expected"),
    [(APP, (), None), (OWN, (), 1), (OWN, ("--jobs", "auto"), None), (APP, ("--jobs", "1"), 1),
     (OWN, ("--jobs", "3"), 3)],
)  # fmt: skip
def test_a_users_app_runs_alone_by_default(
    app: App, arguments: tuple[str, ...], expected: int | None
) -> None:
    options = parse(["sweep", "sync", "4", *arguments])
    sweep = plan(product((replace(SERVER, app=app),), ("ab",), (4,)))
    assert jobs_of(options.jobs, sweep) == expected


def test_jobs_share_a_third_of_the_cores() -> None:
    assert jobs(sleeping_plan(), cores=6).max_cores == pytest.approx(2.0)
