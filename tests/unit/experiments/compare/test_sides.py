"""The sides A and B, from the command line."""

import itertools
import re

import pytest

from workerlab.cli import parse
from workerlab.errors import UsageError
from workerlab.experiments.compare.command import first_plan, next_pairs, with_counterparts
from workerlab.experiments.compare.comparison import (
    CompareRequest,
    Group,
    GroupChanges,
    distinguishing_settings,
)
from workerlab.experiments.compare.options import side
from workerlab.model.plan import Cell, Server
from workerlab.report.values import text
from workerlab.server.worker_classes import SERVERS, class_named

BASE = ("compare", "sync,gthread", "4,8")


def test_a_side_changes_only_the_settings_it_names() -> None:
    options = parse([*BASE, "--workers", "3", "--b", "workers=5 threads=2 env=POOL=4 env=X=1"])
    a, b = side(options, "a"), side(options, "b")
    assert (a.workers, a.threads, a.env) == ((3,), None, ())
    assert (b.workers, b.threads, b.env) == ((5,), (2,), [("POOL", "4"), ("X", "1")])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("workers", "is not NAME=VALUE"),
        ("tool=wrk", "is not NAME=VALUE"),
        ("workers=0", "too small"),
        ("workers=2,4", "a side takes a single value"),
        ("gunicorn=new", "not a version"),
        ("class=sync,granian", "is not a single class"),
        ("class=snyc", "did you mean sync"),
        ("env='POOL=4", "No closing quotation"),
    ],
)
def test_an_invalid_side_is_refused(arguments: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"^--b: .*{re.escape(why)}"):
        side(parse([*BASE, "--b", arguments]), "b")


def test_all_classes_and_levels_are_paired() -> None:
    plan, _ = first_plan(parse([*BASE, "--b", "workers=5", "--sleep", "0.1"]))
    groups = CompareRequest.of(plan).groups
    levels = [(group.a.server.worker_class, group.a.concurrency) for group in groups]
    assert levels == list(itertools.product(("sync", "gthread"), (4, 8)))
    for group in groups:
        assert (group.a.server.workers, group.b.server.workers) == (4, 5)
        assert group.a.concurrency == group.b.concurrency
    names = ("A-sync", "A-gthread", "B-sync", "B-gthread")
    cells = {(cell.server.name, cell.concurrency) for cell in plan.cells}
    assert cells == set(itertools.product(names, (4, 8)))
    assert {cell.schedule for cell in plan.cells} == {1}


@pytest.mark.parametrize("name", ["tornado", *SERVERS])
def test_a_side_may_be_another_class_or_server(name: str) -> None:
    pytest.importorskip(class_named(name).packages[0])
    plan, _ = first_plan(parse(["compare", "gthread", "4,8", "--b", f"class={name}"]))
    groups = CompareRequest.of(plan).groups
    sides = [(group.a.server.worker_class, group.b.server.worker_class) for group in groups]
    assert sides == [("gthread", name)] * 2
    assert plan.unavailable == {}
    plan, _ = first_plan(parse(["compare", name, "4", "--b", "backlog=500"]))
    (group,) = CompareRequest.of(plan).groups
    assert (group.a.server.worker_class, group.b.server.backlog) == (name, 500)


def test_a_server_whose_other_side_is_unavailable_is_not_launched() -> None:
    sides = [
        [Server(name, 1, 1, 2048, 1000, gunicorn=version) for version in ("25.3.0", "27.0.1")]
        for name in ("eventlet", "sync")
    ]
    groups = [Group(*(Cell(server, "fast", 1) for server in servers)) for servers in sides]
    a, b = sides[0]
    why = "no such class"
    assert with_counterparts(groups, {b.variant: why}) == {a.variant: why, b.variant: why}
    assert with_counterparts(groups, {}) == {}


def test_the_order_within_a_pair_is_random() -> None:
    plan, _ = first_plan(parse([*BASE, "--b", "workers=5", "--seed", "1"]))
    groups = CompareRequest.of(plan).groups

    def first_sides() -> list[str]:
        return [next_pairs(plan, groups, number)[0].server.name[0] for number in range(1, 41)]

    assert 10 <= first_sides().count("A") <= 30
    assert first_sides() == first_sides()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((*BASE, "--b", "workers=5", "--budget", "60s"),
         "--budget is too short: the first result needs 4 pairs"),
        ((*BASE, "--a", "workers=4", "--b", "workers=4"), "A and B are the same"),
        ((*BASE, "--b", "class=tornado"), "must then be a single class"),
        (BASE, "compare needs CLASSES, LEVELS and a difference"),
        (("compare", "snyc", "8", "--b", "workers=5"), "did you mean sync"),
        (("compare", "sync", "eight", "--b", "workers=5"), "'eight' is not a whole number"),
    ],
)  # fmt: skip
def test_an_invalid_comparison_is_refused(arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        first_plan(parse([*arguments]))


def test_no_two_groups_have_the_same_name() -> None:
    arguments = ("--workers", "2,4", "--keepalive", "off,on", "--sleep", "0.1", "--b", "threads=8")
    plan, _ = first_plan(parse([*BASE, *arguments]))
    groups = CompareRequest.of(plan).groups
    names = [
        text(GroupChanges(group, (), (), (), (), settings).name)
        for group, settings in zip(groups, distinguishing_settings(groups), strict=True)
    ]
    assert len(names) == len(set(names)) == 16
    assert "gthread (4 workers, keep-alive) at 8 connections" in names
    assert "sync (2 workers) at 4 connections" in names
