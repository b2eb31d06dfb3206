"""The document of a comparison: where time changed, whether it passes, how to continue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import result_of
from tests.builders.document import rows
from workerlab.analysis.facts import TrialFault
from workerlab.analysis.stall import MachinePause, PauseDuringLoad
from workerlab.analysis.verdict import TrialInvalid
from workerlab.experiments.compare.comparison import (
    HOLD_AFTER_APP,
    METRICS,
    PARTS,
    RESPONSE,
    Change,
    Group,
    GroupChanges,
    Metric,
    Outcome,
)
from workerlab.experiments.compare.document import comparison, launches_text, title_of
from workerlab.experiments.compare.findings import (
    BDiffers,
    InvalidSide,
    LimitsAnswer,
    NoValidLaunches,
    answer_of,
)
from workerlab.finding import Note
from workerlab.model.evidence import Record
from workerlab.model.plan import App, Cell, Server, Trial
from workerlab.model.result import Document, Invalid
from workerlab.paths import BUNDLED_GUNICORN
from workerlab.report.values import text
from workerlab.slo import Limit

CELL = Cell(Server("sync", 1, 1, 2048, 1000), "fast", 1)
INVALID = Invalid(Trial(CELL, 1), "", None, Note("invalid"))
VALID = result_of(Trial(CELL, 1))
PART = {metric.name: metric for metric in (*PARTS, HOLD_AFTER_APP)}
THROUGHPUT, CPU = (metric for metric in METRICS if metric.name in ("throughput_rps", "cpu_s"))


def changed(metric: Metric, value: float, b: float = 2.0) -> Change:
    return Change(metric, 4, 1.0, b, value, value - 0.1, value + 0.1, "different")


def document_of(
    changes: Sequence[Change],
    outcomes: Sequence[Outcome] = (),
    *,
    pair_count: int = 4,
    invalid: bool = False,
    strict: bool = False,
) -> Document:
    limits = [(Limit("throughput_rps", False, -0.05, "rps<-5%"), outcome) for outcome in outcomes]
    pairs = [(VALID, VALID)] * pair_count
    discarded = [("A", INVALID)] if invalid else []
    sides = Group(CELL, CELL)
    group = GroupChanges(sides, pairs, changes, discarded, limits, pair_count=pair_count)
    # Launches of 10 s each
    records = {str(n): Record(str(n), None, start_s=9.5) for n in range(2 * pair_count)}
    plan = SimpleNamespace(notes=(), trials=1, cells=(), kind="compare")
    run: Any = SimpleNamespace(
        name="run", environment={}, records=records, plan=plan, directory=Path("results/run")
    )
    return comparison([group], "A: before; B: after", run, ({}, {}), 0.05, strict=strict)


@pytest.mark.parametrize(
    ("inconclusive", "outcomes", "decided"),
    [
        ((), (), True),
        (("start_s", "stop_s"), (), True),  # they vary too much
        (("start_s", "stop_s", "cpu_s"), (), False),
        (("cpu_s",), ("met", "exceeded"), True),  # with limits, only these count
        ((), ("met", "inconclusive"), False),
    ],
)
def test_when_a_comparison_ends(
    inconclusive: Sequence[str], outcomes: Sequence[Outcome], *, decided: bool
) -> None:
    changes = [
        Change(
            metric, 4, 1.0, 1.0, 1.0, word="inconclusive" if metric.name in inconclusive else "same"
        )
        for metric in METRICS
    ]
    limit = Limit("response_p95_s", True, 0.1, "p95>+10%")
    limits = [(limit, outcome) for outcome in outcomes]
    assert GroupChanges(Group(CELL, CELL), (), changes, (), limits).is_decided is decided


def test_three_pairs_and_not_three_launches_must_be_invalid_to_give_up() -> None:
    def launches(pairs: int) -> list[tuple[str, Invalid]]:
        cells = [replace(CELL, schedule=number) for number in range(pairs)]
        return [
            (side, replace(INVALID, trial=Trial(cell, 1))) for cell in cells for side in ("A", "B")
        ]

    group = Group(CELL, CELL)
    assert GroupChanges(group, (), (), launches(2)).needs_more_pairs
    assert not GroupChanges(group, (), (), launches(3)).needs_more_pairs
    absent = TrialInvalid((TrialFault("unavailable", "the server did not boot", None),))
    (launch,) = [(side, replace(cell, reason=absent)) for side, cell in launches(1) if side == "B"]
    assert not GroupChanges(group, (), (), [launch]).needs_more_pairs


@pytest.mark.parametrize(
    ("places", "where"),
    [
        ({"held_s": 2.0, "accept_queue_s": 6.0}, "in the worker: it holds a slot for 2.00 s"),
        ({"held_s": -2.0, "accept_queue_s": -6.0}, "in the worker: it holds a slot for 2.00 s"),
        ({"held_s": 0.1, "service_s": 3.0, "accept_queue_s": 6.0}, "in the accept queue: 2.00 s"),
        ({"accept_queue_s": 6.0}, "in the accept queue: 2.00 s"),
        ({"accept_queue_s": 6.0, "service_s": -7.0}, "in the accept queue: 2.00 s"),
        ({"service_s": -7.0}, ""),  # the response took longer
    ],
)
def test_the_change_is_where_the_slot_is_held_longer(places: dict[str, float], where: str) -> None:
    longer = math.copysign(6.0, places.get("accept_queue_s", 1.0))
    changes = [changed(PART[name], value) for name, value in places.items()]
    (first, *_) = document_of(
        [changed(THROUGHPUT, 0.5), replace(changed(RESPONSE, longer, 9.0), a=8.0), *changes]
    ).findings
    assert isinstance(first, BDiffers)
    assert first.where.startswith(f"The change is {where}" if where else "")
    assert bool(first.where) == bool(where)
    assert ("wait for the slot" in first.where) == (places.get("held_s") == 2.0)


@pytest.mark.parametrize(
    "response",
    [
        None,
        Change(RESPONSE, 4, 1.0, 1.0, 0.0, -0.1, 0.1, "inconclusive"),
        Change(RESPONSE, 4, 1.0, 1.0, 0.0, -0.01, 0.01, "same"),
        Change(RESPONSE, 6, 1.0, 1.5, 0.5, 0.4, 0.6, "different"),  # 2 launches have no such part
    ],
)
def test_without_a_change_of_the_response_it_is_nowhere(response: Change | None) -> None:
    changes = [changed(CPU, 2.0), changed(PART["service_s"], 6.0)]
    (first, *_) = document_of([*changes, *filter(None, [response])]).findings
    assert isinstance(first, BDiffers)
    assert first.where == ""


def test_parts_that_add_up_to_more_than_the_response_show_nothing() -> None:
    response = replace(changed(RESPONSE, 0.5, 3.0), a=2.0)
    service, queue = changed(PART["service_s"], 0.5), changed(PART["accept_queue_s"], 0.1, 1.5)
    for parts, shown in (((service,), True), ((service, queue), False)):
        (first, *_) = document_of([changed(THROUGHPUT, 0.5), response, *parts]).findings
        assert isinstance(first, BDiffers)
        assert bool(first.where) == shown


def test_an_invalid_launch_fails_no_limits_that_the_others_keep() -> None:
    changes = [changed(THROUGHPUT, 1.5)]
    assert document_of(changes, ["met"], invalid=True).exit_code == 0
    assert document_of(changes, ["exceeded"], invalid=True).exit_code == 4
    assert document_of(changes, ["inconclusive"]).exit_code == 0
    assert document_of(changes, ["inconclusive"], strict=True).exit_code == 5
    # Without limits or pairs nothing passes
    document = document_of(changes, invalid=True)
    assert (document.exit_code, document.valid) == (None, False)
    assert document_of([], ["inconclusive"], pair_count=0, invalid=True).exit_code is None


def test_the_bundled_gunicorn_is_not_named() -> None:
    cell = replace(CELL, server=replace(CELL.server, app=App("apps.sleep_wsgi:app")))
    group = GroupChanges(Group(cell, cell), [], [], [], [])
    plan: Any = SimpleNamespace(words=("workers=2", "workers=4"))
    run: Any = SimpleNamespace(environment={"gunicorn": BUNDLED_GUNICORN})
    title = title_of(plan, [group], run)
    assert title == "A: workers=2; B: workers=4; app @sleep_wsgi; load by fast"


def limits_answers(document: Document) -> list[LimitsAnswer]:
    return [finding for finding in document.findings if isinstance(finding, LimitsAnswer)]


def test_limits_have_one_answer() -> None:
    document = document_of([changed(THROUGHPUT, 0.5)], ["exceeded", "met", "inconclusive"])
    (answer,) = limits_answers(document)
    limit = "rps<-5% (sync at 1 connection)"
    assert str(answer) == f"No. Exceeded: {limit}. Inconclusive: {limit}. Met: {limit}."
    (answer,) = limits_answers(document_of([changed(THROUGHPUT, 1.5)], ["met"]))
    assert answer.answer == "Yes."


def test_each_side_of_the_same_cell_has_its_own_reason() -> None:
    still = replace(INVALID, reason=PauseDuringLoad(MachinePause(1.0, 3.0, 1.0)))
    group = GroupChanges(Group(CELL, CELL), [], [], [("B", still), ("B", INVALID)], launches=(3, 0))
    answer = answer_of(group, at_least=0.05, launches="", next_step="")
    assert isinstance(answer, NoValidLaunches)
    assert answer.reasons == (InvalidSide("B", still.reason),)
    assert launches_text(group) == "3 launches of A and 0 of B"


def test_a_reason_that_both_sides_share_is_given_once() -> None:
    """Though each launch has a log of its own."""
    faults = [TrialFault("server", "it did not boot", f"its log: {side}.log") for side in "AB"]
    a, b = (replace(INVALID, reason=TrialInvalid((fault,))) for fault in faults)
    group = GroupChanges(Group(CELL, CELL), [], [], [("B", b), ("A", a), ("A", INVALID)])
    answer = answer_of(group, at_least=0.05, launches="", next_step="")
    assert isinstance(answer, NoValidLaunches)
    assert answer.reasons == (InvalidSide("A and B", a.reason),)


def test_an_uninformative_interval_is_not_shown() -> None:
    start = next(metric for metric in METRICS if metric.name == "start_s")
    ends = ((0.5, 2.0, "0.50 to 2.00"), (0.5, 1.0004, "0.50 to 1.0004"), (0.01, 100.0, None),
            (0.0, math.inf, None))  # fmt: skip
    for low, high, interval in ends:
        document = document_of([Change(start, 4, 1.0, 1.0, 1.0, low, high, "inconclusive")])
        sentence = text(document.findings[0].evidence[0])
        (cells,) = rows(document.tables[0])
        if interval:
            assert interval in sentence
            assert cells["low"] == "0.50"
        else:
            assert sentence == "start 1.00 s instead of 1.00 s (1.00 times)"
            assert (cells["low"], cells["high"]) == (None, None)


def test_the_budget_to_continue_with() -> None:
    inconclusive = [Change(CPU, 4, 1.0, 1.0, 1.0, 0.9, 1.1, "inconclusive")]
    (first, *_) = document_of(inconclusive).findings
    # 8 launches of 10 s were made; the next evaluation is after 6 pairs
    assert "needs more launches, which take about 40 s: continue with --resume " in text(first)
    assert " --budget 3m." in text(first)
    (first, *_) = document_of([changed(THROUGHPUT, 0.5), *inconclusive]).findings
    assert isinstance(first, BDiffers)
    assert "continue with --resume " in text(first)
    (first, *_) = document_of(inconclusive, pair_count=40).findings
    assert "--resume" not in text(first)
    (first, *_) = document_of(inconclusive, ["met"]).findings
    assert "--resume" not in text(first)
