"""A trial as it is played, compared with the files of the trial."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import accumulate, groupby

import pytest

from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.analysis.facts import Facts
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

RUNS = ("lesson", "good", "keepalive", "overflow", "rates", "trials")


@cache
def trials(name: str) -> list[Facts]:
    data = trial_data(run_store.load(recorded(name)))
    results = [trial.facts for trial in data if trial.record is not None]
    return [facts for facts in results if isinstance(facts, Facts)]


def played(facts: Facts, max_requests: int = 10**9) -> Trace:
    return trace(facts, max_requests)


@pytest.mark.parametrize("name", RUNS)
def test_every_request_is_played_from_start_to_end(name: str) -> None:
    for facts in trials(name):
        trial_trace = played(facts)
        assert trial_trace.whole
        times = [at_ms for *_, at_ms in trial_trace.moves]
        assert times == sorted(times)
        paths: dict[int, list[int]] = {}
        for number, place, *_ in trial_trace.moves:
            paths.setdefault(number, []).append(place)
        # Requests in flight at the end of the load have no end
        ends = Counter(places[-1] for places in paths.values() if places[-1] >= ANSWERED)
        if trial_trace.named:
            timings = facts.measurement.timings
            assert ends[ANSWERED] == sum(timing.cause is None for timing in timings)
            assert all(places[0] == CONNECTING for places in paths.values())
        else:
            assert set(ends) <= {ANSWERED}
            assert {CONNECTING, QUEUED}.isdisjoint(p for places in paths.values() for p in places)


@pytest.mark.parametrize("name", RUNS)
def test_requests_in_the_app_are_at_most_the_open_spans(name: str) -> None:
    for facts in trials(name):
        in_app, max_in_app = set[int](), 0
        for number, place, *_ in played(facts).moves:
            if place == IN_APP:
                in_app.add(number)
            else:
                in_app.discard(number)
            max_in_app = max(max_in_app, len(in_app))
        changes = [(span.start_ns, 1) for span in facts.spans]
        changes += [(span.end_ns, -1) for span in facts.spans if span.end_ns is not None]
        max_spans = max(accumulate(change for _, change in sorted(changes)))
        assert max_spans > 0
        # A request leaves the app in the trace one step later, when it is answered or sampled
        assert max_in_app <= max_spans + len(facts.requests_per_worker)


@pytest.mark.parametrize("name", RUNS)
def test_waits_in_a_worker_are_those_of_the_probe(name: str) -> None:
    """To the tenth of a millisecond, and for no other requests."""
    for facts in trials(name):
        trial_trace = played(facts)
        if not trial_trace.named:
            continue
        timings = sorted(facts.measurement.timings, key=lambda timing: timing.start_s)
        numbers = {
            timing.request_id: number
            for number, timing in enumerate(timings, 1)
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
        for number, place, worker, at_ms in trial_trace.moves:
            if place in (IN_WORKER, IN_APP):
                first.setdefault(number, (place, worker, at_ms))
        waited = {
            (number, worker): at_ms
            for number, (place, worker, at_ms) in first.items()
            if place == IN_WORKER and number in numbers.values() and worker is not None
        }
        assert waited == pytest.approx(accepted, abs=0.1)


def test_requests_are_played_in_the_worker_that_served_them() -> None:
    facts, *_ = trials("lesson")
    served = Counter(worker for _, place, worker, _ in played(facts).moves if place == IN_APP)
    requests = list(facts.requests_per_worker.values())
    assert [served[n] for n in range(len(requests))] == requests


@pytest.mark.parametrize("name", ["lesson", "good"])
def test_a_budget_of_requests_ends_the_trace_at_the_next_one(name: str) -> None:
    for facts in trials(name):
        part, whole = played(facts, 5), played(facts)
        assert not part.whole
        assert {number for number, *_ in part.moves} == {1, 2, 3, 4, 5}
        assert part.length_ms < whole.length_ms
        begin_or_enter_app = [move for move in whole.moves if move[1] in (CONNECTING, IN_APP)]
        assert [move for move in part.moves if move[1] in (CONNECTING, IN_APP)] == [
            move for move in begin_or_enter_app if move[0] <= 5 and move[3] <= part.length_ms
        ]


def test_a_full_queue_shows_requests_that_cannot_connect() -> None:
    waits_ms = []
    for facts in trials("overflow"):
        moves = played(facts).moves
        began_ms = {number: at_ms for number, place, _, at_ms in moves if place == CONNECTING}
        queued_ms = {number: at_ms for number, place, _, at_ms in moves if place == QUEUED}
        waits_ms += [queued_ms[number] - began_ms[number] for number in queued_ms]
    assert max(waits_ms) > 900  # the kernel repeats a SYN after a second


@pytest.mark.parametrize("name", RUNS)
def test_the_played_queue_never_exceeds_the_kernels_limit(name: str) -> None:
    for facts in trials(name):
        place_of, max_queued = dict[int, int](), facts.data.observations.queue[0].limit + 1
        for _, moves in groupby(played(facts).moves, key=lambda move: move[3]):
            place_of |= {number: place for number, place, *_ in moves}
            assert list(place_of.values()).count(QUEUED) <= max_queued
