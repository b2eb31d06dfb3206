"""Which trials run side by side: what they need of the cores, in what order they begin."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.plan import APP, SERVER, plan
from workerlab.cli import parse
from workerlab.experiments.execution import requested_rps
from workerlab.experiments.jobs import (
    START_INTERVAL_S,
    START_SPREAD_S,
    USABLE_SHARE,
    CpuBudget,
    JobScheduler,
    batch_duration_s,
    only_sleeps,
)
from workerlab.experiments.sweep.command import jobs_of
from workerlab.model import App, Cell, Observations, Plan, ProcessSample, Rate, Record, Trial
from workerlab.plan import predicted_s, product, trials

CORES = 2
OWN = App("shop.wsgi:app", "/srv/shop")
LOOPS = replace(SERVER, worker_class="eventlet")


def jobs(made: Plan, cores: int = CORES, *, drops_known: bool = True) -> JobScheduler:
    return JobScheduler(made, cores, requested_rps, drops_known=drops_known)


def asleep(*cells: Cell, **changes: Any) -> Plan:
    return plan(cells or None, jobs=None, **changes)


def seconds(one: Trial) -> float:
    return predicted_s(asleep(), one.cell, 1.0)


def test_more_requests_per_second_need_more() -> None:
    """No more than the slots allow, and each of an event loop's workers a little."""
    scheduler = jobs(asleep())
    four, eight, sixteen = (scheduler.cores(one) for one in trials(asleep()))
    assert four == eight == sixteen  # four slots
    loops = asleep(*product((LOOPS,), ("ab",), (4, 8, 16)))
    needed = [jobs(loops).cores(one) or 0.0 for one in trials(loops)]
    assert needed == sorted(set(needed))
    assert needed[0] > (four or 0.0)
    quick = replace(APP, sleep_s=0.1)
    (short,) = trials(asleep(Cell(replace(SERVER, app=quick), "ab", 4)))
    assert (scheduler.cores(short) or 0.0) > (four or 0.0)


@pytest.mark.parametrize(
    ("app", "known"),
    [
        (APP, True),
        (replace(APP, target="apps.imported_sleep:app"), True),
        (replace(APP, sleep_s=0.0), False),
        (replace(APP, sleep_s=None), False),  # of a mix
        (replace(APP, path="/?sleep=1&cpu=20"), False),
        (replace(APP, env=(("WORKERLAB_CPU", "5"),)), False),
        (replace(APP, target="apps.blog.wsgi:app"), False),
        (OWN, False),
    ],
)
def test_what_is_known_to_sleep(app: App, known: bool) -> None:
    assert only_sleeps(app) == known


def test_what_computes_or_is_not_known_runs_alone() -> None:
    cell = trials(asleep())[0].cell
    for other in (
        replace(cell, server=replace(SERVER, app=OWN)),
        replace(cell, tool="locust"),
        replace(cell, inside="needs"),
        replace(cell, server=replace(LOOPS, app=replace(APP, sleep_s=0.001)), concurrency=1000),
    ):
        assert not jobs(asleep(other)).can_share(Trial(other, 1))
    assert jobs(asleep()).can_share(Trial(cell, 1))
    assert not jobs(plan()).can_share(Trial(cell, 1))  # jobs=1
    assert not jobs(asleep(load_hosts=("a",))).can_share(Trial(cell, 1))


def test_where_drops_cannot_be_told_apart_a_trial_that_may_drop_runs_alone() -> None:
    """More connections than the accept queue takes."""
    cell = Cell(replace(SERVER, backlog=4), "ab", 16)
    few = replace(cell, concurrency=4)
    assert jobs(asleep(cell)).can_share(Trial(cell, 1))
    assert not jobs(asleep(cell), drops_known=False).can_share(Trial(cell, 1))
    assert jobs(asleep(few), drops_known=False).can_share(Trial(few, 1))


def samples(server_s: float) -> Observations:
    return Observations(processes=(ProcessSample(1, 0.0, 0.0, 0.0, 1, 1),
                                   ProcessSample(2, server_s, 0.0, 0.0, 1, 1)))  # fmt: skip


@pytest.mark.parametrize(("cpu_s", "together"), [(0.002, True), (0.5, False)])
def test_an_app_of_the_users_runs_beside_others_once_it_was_seen_to_wait(
    cpu_s: float, together: bool
) -> None:
    cells = product((replace(SERVER, app=OWN),), ("ab",), (4, 8, 16))
    asked = plan(cells, jobs=3)
    scheduler, (first, *others) = jobs(asked), trials(asked)
    assert scheduler.next_batch([first, *others], lambda _: None) == ([first], others)
    record = Record(first.key, None, lone_s=(1.0,), planned_requests=20, tool_cpu_s=0.0)
    scheduler.store_cost(first, record, samples(20 * cpu_s))
    batch, left = scheduler.next_batch(others, lambda _: 1.0)
    assert batch == (others if together else others[:1])
    assert len(batch) + len(left) == len(others)


def test_the_longest_begin_first() -> None:
    made = asleep()
    batch, left = jobs(made).next_batch(trials(made), seconds)
    assert [one.cell.concurrency for one in batch] == [16, 8, 4]
    assert not left


def test_repeated_trials_keep_their_random_order() -> None:
    made = asleep(trials=3, seed=5)
    todo = trials(made)
    assert jobs(made).next_batch(todo, seconds) == (todo, [])


def test_what_must_run_alone_keeps_its_place_among_repeated_ones() -> None:
    alone = replace(LOOPS, app=replace(APP, sleep_s=0.001))
    made = asleep(*product((SERVER, alone), ("ab",), (4, 8, 16)), trials=2, seed=3)
    scheduler, todo = jobs(made), trials(made)
    run, left = list[Trial](), todo
    while left:
        batch, left = scheduler.next_batch(left, seconds)
        assert len(batch) == 1 or all(map(scheduler.can_share, batch))
        run += batch
    assert run == todo


def test_those_at_a_rate_come_after_all_others() -> None:
    cells = product((SERVER,), ("fast",), (4, 8), rates=(Rate(rps=2.0), Rate(share=0.5)))
    made = asleep(*cells)
    scheduler = jobs(made)
    batch, left = scheduler.next_batch(trials(made), seconds)
    assert {one.cell.rate for one in batch} == {None}
    assert {one.cell.rate for one in left} == {Rate(rps=2.0), Rate(share=0.5)}
    assert scheduler.next_batch(left, seconds)[1] == []


def test_without_jobs_one_runs_after_the_other() -> None:
    todo = trials(plan())
    assert jobs(plan()).next_batch(todo, seconds) == (todo[:1], todo[1:])


# --- room -----------------------------------------------------------------------------------------


def test_no_more_than_the_cores_allow() -> None:
    room = CpuBudget(1.0, None)
    for number in range(5):
        assert room.fits(0.2, 0.0, loaded=False)
        room.enter(str(number), 0.2, 0.0, loaded=False)
    assert not room.fits(0.2, 0.0, loaded=False)
    room.leave("3")
    assert room.fits(0.2, 0.0, loaded=False)


def test_no_more_than_were_asked_for() -> None:
    room = CpuBudget(1.0, 1)
    room.enter("a", 0.1, 0.0, loaded=False)
    assert not room.fits(0.1, 0.0, loaded=False)


def test_beside_a_load_servers_start_at_a_distance() -> None:
    """To start takes CPU, of which a load would feel the more the more do it at once."""
    room = CpuBudget(0.5, None)
    room.enter("a", 0.1, 0.0, loaded=False)
    room.enter("b", 0.01, 0.0, loaded=True)
    started = 0
    while room.fits(0.01, 0.0, loaded=True):
        room.enter(f"c{started}", 0.01, 0.0, loaded=True)
        started += 1
    assert started < 3
    assert room.fits(0.01, 60.0, loaded=True)


def test_how_long_they_take_together() -> None:
    six = [(str(n), 10.0, 0.1) for n in range(6)]
    # The last one's turn to start
    assert batch_duration_s(CpuBudget(1.0, None), six) == 10.0 + 5 * START_INTERVAL_S
    assert batch_duration_s(CpuBudget(1.0, 1), six) == 60.0
    assert batch_duration_s(CpuBudget(0.35, None), six) == 2 * (10.0 + 2 * START_INTERVAL_S)
    # When the second ends, the third starts, and the last one no sooner than a while after that
    more = [("a", 20.0, 0.1), ("b", 1.0, 0.25), ("c", 1.0, 0.1), ("d", 20.0, 0.1)]
    expected_s = 1.0 + START_INTERVAL_S + START_SPREAD_S + 20.0
    assert batch_duration_s(CpuBudget(0.35, None), more) == pytest.approx(expected_s)
    seven = [("a", 30.0, 0.1), *six]
    assert batch_duration_s(CpuBudget(1.0, None), seven) == 30.0 + 6 * START_INTERVAL_S
    assert batch_duration_s(CpuBudget(1.0, None), []) == 0.0


@pytest.mark.parametrize("app", [APP, OWN])
def test_what_is_left_is_less_the_more_has_run(app: App) -> None:
    made = asleep(*product((replace(SERVER, app=app),), ("ab",), (4, 8, 16)))
    scheduler, todo = jobs(made), trials(made)
    whole_s = scheduler.left_s(seconds, todo, {})
    assert whole_s is not None
    longest_s, sum_s = max(map(seconds, todo)), sum(map(seconds, todo))
    assert whole_s == (longest_s + 2 * START_INTERVAL_S if app is APP else sum_s)
    later_s = scheduler.left_s(seconds, todo, {one.key: 2.0 for one in todo})
    assert later_s == (longest_s - 2.0 if app is APP else sum_s - 6.0)
    assert scheduler.left_s(lambda _: None, todo, {}) is None


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "words", "expected"),
    [(APP, (), None), (OWN, (), 1), (OWN, ("--jobs", "auto"), None), (APP, ("--jobs", "1"), 1),
     (OWN, ("--jobs", "3"), 3)],
)  # fmt: skip
def test_unasked_an_app_of_the_users_has_the_machine_for_itself(
    app: App, words: tuple[str, ...], expected: int | None
) -> None:
    options = parse(["sweep", "sync", "4", *words])
    made = plan(product((replace(SERVER, app=app),), ("ab",), (4,)))
    assert jobs_of(options.jobs, made) == expected


def test_a_third_of_the_cores() -> None:
    assert jobs(asleep(), 6).max_cores == pytest.approx(6 * USABLE_SHARE) == pytest.approx(2.0)
