"""A trial as it is played, compared with the files of the trial."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import groupby

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

EVERYTHING = 10**9
RUNS = ("lesson", "good", "keepalive", "overflow", "rates", "trials")


@cache
def trials(name: str) -> list[Facts]:
    data = trial_data(run_store.load(recorded(name)))
    results = [trial.facts for trial in data if trial.record is not None]
    return [facts for facts in results if isinstance(facts, Facts)]


def played(facts: Facts, most: int = EVERYTHING) -> Trace:
    return trace(facts, most)


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
            good = sum(timing.cause is None for timing in facts.measurement.timings)
            assert ends[ANSWERED] == good
            assert all(places[0] == CONNECTING for places in paths.values())
        else:
            assert set(ends) <= {ANSWERED}
            assert {CONNECTING, QUEUED}.isdisjoint(p for places in paths.values() for p in places)


@pytest.mark.parametrize("name", RUNS)
def test_requests_in_the_app_are_at_most_the_open_spans(name: str) -> None:
    for facts in trials(name):
        trial_trace, inside = played(facts), dict[int, int | None]()
        most = 0
        for number, place, worker, _ in trial_trace.moves:
            if place == IN_APP:
                inside[number] = worker
            else:
                inside.pop(number, None)
            most = max(most, len(inside))
        ends = [(span.start_ns, 1) for span in facts.spans]
        ends += [(span.end_ns, -1) for span in facts.spans if span.end_ns is not None]
        open_spans = most_spans = 0
        for _, change in sorted(ends):
            open_spans += change
            most_spans = max(most_spans, open_spans)
        assert most_spans > 0
        # A request leaves the app in the trace one step later, when it is answered or sampled
        assert most <= most_spans + len(facts.requests_per_worker)


@pytest.mark.parametrize("name", RUNS)
def test_waits_in_a_worker_are_those_of_the_probe(name: str) -> None:
    """To the tenth of a millisecond, and for no other requests."""
    for facts in trials(name):
        trial_trace = played(facts)
        if not trial_trace.named:
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
        recorded_moves = [move for move in whole.moves if move[1] in (CONNECTING, IN_APP)]
        assert [move for move in part.moves if move[1] in (CONNECTING, IN_APP)] == [
            move for move in recorded_moves if move[0] <= 5 and move[3] <= part.length_ms
        ]


def test_a_full_queue_shows_requests_that_cannot_connect() -> None:
    waits_ms = []
    for facts in trials("overflow"):
        moves = played(facts).moves
        began = {number: at_ms for number, place, _, at_ms in moves if place == CONNECTING}
        up = {number: at_ms for number, place, _, at_ms in moves if place == QUEUED}
        waits_ms += [up[number] - began[number] for number in up]
    assert max(waits_ms) > 900  # the kernel repeats a SYN after a second


@pytest.mark.parametrize("name", RUNS)
def test_the_played_queue_never_exceeds_the_kernels_limit(name: str) -> None:
    for facts in trials(name):
        place_of, max_queued = dict[int, int](), facts.data.observations.queue[0].limit + 1
        for _, moves in groupby(played(facts).moves, key=lambda move: move[3]):
            place_of |= {number: place for number, place, *_ in moves}
            assert list(place_of.values()).count(QUEUED) <= max_queued
