"""The document of a comparison: where time changed, whether limits are met, how to continue."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import result_of
from tests.builders.document import answer as only_answer
from tests.builders.document import rows
from workerlab.analysis.facts import TrialFault
from workerlab.analysis.stall import MachinePause, PauseDuringLoad
from workerlab.analysis.verdict import TrialInvalid
from workerlab.experiments.compare import findings
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
from workerlab.experiments.compare.findings import BDiffers, InvalidSide, NoValidLaunches
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
SIDES = Group(CELL, CELL)
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
    group = GroupChanges(SIDES, pairs, changes, discarded, limits, pair_count=pair_count)
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
    words = ("inconclusive" if metric.name in inconclusive else "same" for metric in METRICS)
    changes = [
        Change(metric, 4, 1.0, 1.0, 1.0, word=word)
        for metric, word in zip(METRICS, words, strict=True)
    ]
    limit = Limit("response_p95_s", True, 0.1, "p95>+10%")
    limits = [(limit, outcome) for outcome in outcomes]
    assert GroupChanges(SIDES, (), changes, (), limits).is_decided is decided


def test_a_comparison_ends_after_three_invalid_pairs() -> None:
    """Three invalid launches are not enough, but one of an unavailable server is."""
    launches = [
        (side, replace(INVALID, trial=Trial(replace(CELL, schedule=number), 1)))
        for number in range(3)
        for side in ("A", "B")
    ]
    assert GroupChanges(SIDES, (), (), launches[:4]).needs_more_pairs
    assert not GroupChanges(SIDES, (), (), launches).needs_more_pairs
    unavailable = TrialInvalid((TrialFault("unavailable", "the server did not boot", None),))
    launch = ("B", replace(INVALID, reason=unavailable))
    assert not GroupChanges(SIDES, (), (), [launch]).needs_more_pairs


def difference(*changes: Change) -> BDiffers:
    """The first answer to these changes."""
    (first, *_) = document_of(changes).findings
    assert isinstance(first, BDiffers)
    return first


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
    growth_s = math.copysign(6.0, places.get("accept_queue_s", 1.0))
    response = replace(changed(RESPONSE, growth_s, 9.0), a=8.0)
    parts = [changed(PART[name], value) for name, value in places.items()]
    first = difference(changed(THROUGHPUT, 0.5), response, *parts)
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
def test_without_a_change_of_the_response_no_place_is_named(response: Change | None) -> None:
    changes = (changed(CPU, 2.0), changed(PART["service_s"], 6.0))
    assert difference(*changes, *filter(None, [response])).where == ""


def test_parts_that_add_up_to_more_than_the_response_name_no_place() -> None:
    changes = changed(THROUGHPUT, 0.5), replace(changed(RESPONSE, 0.5, 3.0), a=2.0)
    service, queue = changed(PART["service_s"], 0.5), changed(PART["accept_queue_s"], 0.1, 1.5)
    assert difference(*changes, service).where
    assert not difference(*changes, service, queue).where


def test_an_invalid_launch_exceeds_no_limit_that_the_others_meet() -> None:
    changes = [changed(THROUGHPUT, 1.5)]
    assert document_of(changes, ["met"], invalid=True).exit_code == 0
    assert document_of(changes, ["exceeded"], invalid=True).exit_code == 4
    assert document_of(changes, ["inconclusive"]).exit_code == 0
    assert document_of(changes, ["inconclusive"], strict=True).exit_code == 5
    # Nothing can pass without limits or without pairs
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


def test_limits_have_one_answer() -> None:
    document = document_of([changed(THROUGHPUT, 0.5)], ["exceeded", "met", "inconclusive"])
    limit = "rps<-5% (sync at 1 connection)"
    expected = f"No. Exceeded: {limit}. Inconclusive: {limit}. Met: {limit}."
    assert str(only_answer(document, findings.LimitsAnswer)) == expected
    document = document_of([changed(THROUGHPUT, 1.5)], ["met"])
    assert only_answer(document, findings.LimitsAnswer).answer == "Yes."


def reasons_of(group: GroupChanges) -> tuple[InvalidSide, ...]:
    answer = findings.answer_of(group, at_least=0.05, launches="", next_step="")
    assert isinstance(answer, NoValidLaunches)
    return answer.reasons


def test_each_side_of_the_same_cell_has_its_own_reason() -> None:
    paused = replace(INVALID, reason=PauseDuringLoad(MachinePause(1.0, 3.0, 1.0)))
    group = GroupChanges(SIDES, [], [], [("B", paused), ("B", INVALID)], launches=(3, 0))
    assert reasons_of(group) == (InvalidSide("B", paused.reason),)
    assert launches_text(group) == "3 launches of A and 0 of B"


def test_a_reason_common_to_both_sides_is_given_once() -> None:
    """Even though each launch has its own log."""
    faults = [TrialFault("server", "it did not boot", f"its log: {side}.log") for side in "AB"]
    a, b = (replace(INVALID, reason=TrialInvalid((fault,))) for fault in faults)
    group = GroupChanges(SIDES, [], [], [("B", b), ("A", a), ("A", INVALID)])
    assert reasons_of(group) == (InvalidSide("A and B", a.reason),)


def test_an_uninformative_interval_is_not_shown() -> None:
    start = next(metric for metric in METRICS if metric.name == "start_s")
    for low, high, interval in (
        (0.5, 2.0, "0.50 to 2.00"), (0.5, 1.0004, "0.50 to 1.0004"),
        (0.01, 100.0, None), (0.0, math.inf, None),
    ):  # fmt: skip
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
    assert "continue with --resume " in text(difference(changed(THROUGHPUT, 0.5), *inconclusive))
    for document in (document_of(inconclusive, pair_count=40), document_of(inconclusive, ["met"])):
        assert "--resume" not in text(document.findings[0])
