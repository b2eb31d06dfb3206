"""A trial as it is played, against what the same files say of it elsewhere."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import groupby

import pytest

from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.analysis.facts import Facts, facts_of
from workerlab.experiments.reading import trial_data
from workerlab.report.player.places import (
    ANSWERED,
    CONNECTING,
    IN_APP,
    IN_WORKER,
    QUEUED,
    Trace,
    trace,
)

EVERYTHING = 10**9
RUNS = ("lesson", "good", "keepalive", "overflow", "rates", "trials")


@cache
def trials(name: str) -> list[Facts]:
    found = [facts_of(one) for one in trial_data(run_store.load(recorded(name)))
             if one.record is not None]  # fmt: skip
    return [one for one in found if isinstance(one, Facts)]


def played(facts: Facts, most: int = EVERYTHING) -> Trace:
    found = trace(facts, most)
    assert found is not None
    return found


@pytest.mark.parametrize("name", RUNS)
def test_every_request_is_played_from_its_beginning_to_its_end(name: str) -> None:
    for facts in trials(name):
        one = played(facts)
        assert one.whole
        times = [at_ms for *_, at_ms in one.moves]
        assert times == sorted(times)
        ways = {
            number: [move[1] for move in moves]
            for number, moves in groupby(
                sorted(one.moves, key=lambda move: move[0]), key=lambda move: move[0]
            )
        }
        # Requests that a load was cut off in have no end
        ends = Counter(places[-1] for places in ways.values() if places[-1] >= ANSWERED)
        if one.named:
            good = sum(timing.cause is None for timing in facts.measurement.timings)
            assert ends[ANSWERED] == good
            assert all(places[0] == CONNECTING for places in ways.values())
        else:
            assert set(ends) <= {ANSWERED}
            assert {CONNECTING, QUEUED}.isdisjoint(p for places in ways.values() for p in places)


@pytest.mark.parametrize("name", RUNS)
def test_no_more_are_in_the_app_than_spans_were_open(name: str) -> None:
    """At any moment, and of a class with slots never more than it has."""
    for facts in trials(name):
        one, inside = played(facts), dict[int, int | None]()
        most = 0
        for number, place, worker, _ in one.moves:
            if place == IN_APP:
                inside[number] = worker
            else:
                inside.pop(number, None)
            most = max(most, len(inside))
        ends = [(span.start_ns, 1) for span in facts.spans]
        ends += [(span.end_ns, -1) for span in facts.spans if span.end_ns is not None]
        under_way = most_spans = 0
        for _, change in sorted(ends):
            under_way += change
            most_spans = max(most_spans, under_way)
        assert most_spans > 0
        # A request leaves the picture's app a step later, when it is answered or looked for
        assert most <= most_spans + len(facts.requests_per_worker)


@pytest.mark.parametrize("name", RUNS)
def test_who_waited_in_a_worker_is_told_by_the_probe(name: str) -> None:
    """To the tenth of a millisecond, and nobody else, but what was answered a little later."""
    for facts in trials(name):
        one = played(facts)
        if not one.named:
            continue
        numbers = {
            timing.request_id: number
            for number, timing in enumerate(
                sorted(facts.measurement.timings, key=lambda timing: timing.start_s), 1
            )
            if not timing.reused
        }
        workers = {pid: number for number, pid in enumerate(facts.requests_per_worker)}
        accepted = {
            (numbers[span.request_id], workers[span.pid]):
            (span.accept_ns - facts.started_ns) / 1e6
            for span in facts.spans
            if span.request_id in numbers and span.accept_ns is not None
            and span.start_ns - span.accept_ns >= 1_000_000
        }  # fmt: skip
        first: dict[int, tuple[int, int | None, float]] = {}
        for number, place, worker, at_ms in one.moves:
            if place in (IN_WORKER, IN_APP):
                first.setdefault(number, (place, worker, at_ms))
        waited = {
            (number, worker): at_ms
            for number, (place, worker, at_ms) in first.items()
            if place == IN_WORKER and number in numbers.values() and worker is not None
        }
        assert waited == pytest.approx(accepted, abs=0.1)


def test_who_served_what_is_told_by_the_workers_number() -> None:
    facts, *_ = trials("lesson")
    served = Counter(worker for _, place, worker, _ in played(facts).moves if place == IN_APP)
    requests = list(facts.requests_per_worker.values())
    assert [served[n] for n in range(len(requests))] == requests


@pytest.mark.parametrize("name", ["lesson", "good"])
def test_a_budget_ends_it_where_the_next_request_comes(name: str) -> None:
    for facts in trials(name):
        one, all_of_it = played(facts, 5), played(facts)
        assert not one.whole
        assert {number for number, *_ in one.moves} == {1, 2, 3, 4, 5}
        assert one.length_ms < all_of_it.length_ms
        facts_told = [move for move in all_of_it.moves if move[1] in (CONNECTING, IN_APP)]
        assert [move for move in one.moves if move[1] in (CONNECTING, IN_APP)] == [
            move for move in facts_told if move[0] <= 5 and move[3] <= one.length_ms
        ]


def test_what_is_played_of_a_full_queue_shows_who_cannot_connect() -> None:
    waits_ms = []
    for facts in trials("overflow"):
        moves = played(facts).moves
        began = {number: at_ms for number, place, _, at_ms in moves if place == CONNECTING}
        up = {number: at_ms for number, place, _, at_ms in moves if place == QUEUED}
        waits_ms += [up[number] - began[number] for number in up]
    assert max(waits_ms) > 900  # the kernel repeats a SYN after a second


@pytest.mark.parametrize("name", RUNS)
def test_what_is_played_never_has_more_in_the_queue_than_the_kernel_lets_in(name: str) -> None:
    for facts in trials(name):
        where, room = dict[int, int](), facts.data.observations.queue[0].limit + 1
        for _, moves in groupby(played(facts).moves, key=lambda move: move[3]):
            where |= {number: place for number, place, *_ in moves}
            assert list(where.values()).count(QUEUED) <= room
