"""Where each request is, from events of the client and the probe, and the kernel's queue."""

from __future__ import annotations

import random
from itertools import groupby
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.report.player.places import (
    ANSWERED,
    CONNECTING,
    FAILED,
    IN_APP,
    IN_WORKER,
    MAX_ALL_DRAWN,
    QUEUED,
    Event,
    Places,
    as_rows,
)

MS = 1_000_000
SECOND = 1000 * MS


@pytest.fixture
def places() -> Places:
    return Places(accepts_first=False)


def new_moves(places: Places) -> list[tuple[int, int, int | None]]:
    """(request, place, worker) since the last call."""
    return [(move.number, move.place, move.worker) for move in places.take_moves()]


def place_by_request(places: Places) -> dict[int, int]:
    return {move.number: move.place for move in places.snapshot(99)}


def connect(places: Places, count: int) -> None:
    """Establish connections 1 to `count` in order."""
    places.process(Event(n, kind, n) for n in range(1, count + 1) for kind in "bc")
    places.take_moves()


def served(number: int, begun_ns: int, ended_ns: int) -> list[Event]:
    """The events of a request that is in the app from its beginning to its end."""
    return [Event(begun_ns, "b", number), Event(begun_ns, "s", number, 7),
            Event(ended_ns, "x", number, 7), Event(ended_ns, "e", number)]  # fmt: skip


def test_a_request_moves_through_all_places(places: Places) -> None:
    events = [
        Event(1, "b", 7), Event(2, "c", 7), Event(3, "s", 7, 100), Event(5, "x", 7, 100),
        Event(6, "e", 7),
    ]  # fmt: skip
    random.Random(1).shuffle(events)
    places.process(events)
    path = [CONNECTING, QUEUED, IN_APP, ANSWERED]
    assert new_moves(places) == [(7, place, 0 if place >= IN_APP else None) for place in path]
    assert (places.answered, places.failed, places.in_flight) == (1, 0, 0)


def test_a_failure_is_not_an_answer(places: Places) -> None:
    places.process([Event(1, "b", 1), Event(9, "f", 1)])
    assert new_moves(places)[-1] == (1, FAILED, None)
    assert (places.answered, places.failed) == (0, 1)
    assert places.sample(10).p50 is None


def test_a_request_whose_client_gave_up_stays_in_the_server(places: Places) -> None:
    places.process(Event(n, kind, n) for n in (1, 2, 3) for kind in "bc")
    places.process([Event(4, "s", 1, 100), Event(5, "b", 4)])
    places.process(Event(6, "f", n, cause="gave_up") for n in (1, 2, 4))
    assert (places.failed, places.in_flight) == (3, 1)
    assert places.counts == [0, 2, 0, 1]  # the fourth had no connection yet
    places.infer_queue(7, queue_length=2)
    assert places.oldest_s(10) == 7e-9  # the only one whose client still waits
    places.process([Event(8, "x", 1, 100), Event(9, "s", 2, 100), Event(12, "x", 2, 100)])
    assert (places.counts, places.failed) == ([0, 1, 0, 0], 3)
    assert [places.wasted_count(since) for since in (0, 9, 13)] == [2, 1, 0]
    assert [place for number, place, _ in new_moves(places) if number == 1][-2:] == [IN_APP, FAILED]
    assert places.sample(20).causes == {"gave_up": 3}


def test_no_mean_while_clients_give_up(places: Places) -> None:
    """Little's law would count their time as that of answered requests."""
    places.process(Event(start, kind, n) for start, n in ((1, 1), (SECOND, 2)) for kind in "bc")
    places.process([Event(3, "s", 1, 9), Event(SECOND, "x", 1, 9), Event(SECOND, "e", 1)])
    assert places.sample(2 * SECOND, 2.0).mean is not None
    places.process([Event(2 * SECOND + 1, "f", 2, cause="gave_up")])
    assert places.sample(2 * SECOND + 1, 2.0).mean is None
    assert places.sample(2 * SECOND + 1, 2.0).rps is not None


def test_no_mean_before_the_load_has_lasted_as_long(places: Places) -> None:
    """16 clients, four served at a time: after 2 s no response can have taken 4 s."""
    events = [Event(1, "b", number) for number in range(1, 17)]
    for number in range(1, 37):  # each client sends another one after its response
        ended_ns = 1 + ((number - 1) // 4 + 1) * SECOND
        events += [
            *served(number, ended_ns - SECOND, ended_ns)[1:],
            Event(ended_ns, "b", number + 16),
        ]
    means, processed_ns = [], 0
    for at_ns in (2 * SECOND, 39 * SECOND // 10, 17 * SECOND // 2):
        places.process(event for event in events if processed_ns < event.at_ns <= at_ns)
        processed_ns, sample = at_ns, places.sample(at_ns)
        assert sample.rps == pytest.approx(4, rel=0.01)
        means.append(sample.mean)
    assert means == [None, None, pytest.approx(4, rel=0.01)]


def test_giving_up_after_the_response_was_sent_is_not_wasted_work(places: Places) -> None:
    places.process([Event(1, "b", 1), Event(2, "c", 1), Event(3, "s", 1, 9), Event(4, "x", 1, 9)])
    places.process([Event(5, "f", 1, cause="gave_up")])
    assert (places.in_flight, places.counts, places.wasted_count(0)) == (0, [0, 0, 0, 0], 0)


def test_a_span_may_precede_the_start_of_its_request(places: Places) -> None:
    places.process([Event(3, "s", 4, 100)])
    assert new_moves(places) == []
    places.process([Event(1, "b", 4), Event(2, "c", 4)])
    assert [(move.place, move.worker) for move in places.snapshot(5)][1:] == [(IN_APP, 0)]
    places.process([Event(3, "s", 4, 100), Event(4, "x", 4, 100), Event(5, "e", 4)])  # repeated
    places.process([Event(3, "s", 4, 100)])  # already answered
    assert places.in_flight == 0
    assert [place for _, place, _ in new_moves(places)].count(IN_APP) == 1


def test_the_queue_length_decides_which_requests_are_accepted() -> None:
    places = Places(accepts_first=True)
    connect(places, 5)
    places.infer_queue(10, 2)
    assert new_moves(places) == [(1, IN_WORKER, None), (2, IN_WORKER, None), (3, IN_WORKER, None)]
    places.infer_queue(11, 4)  # a new sample
    assert new_moves(places) == [(2, QUEUED, None), (3, QUEUED, None)]
    places.infer_queue(12, None)  # unknown
    assert new_moves(places) == []


def test_without_early_accepts_requests_are_in_the_worker_only_briefly(places: Places) -> None:
    connect(places, 3)
    places.infer_queue(10, 2)
    assert new_moves(places) == []
    places.infer_queue(11, 2)  # still so in the next sample
    assert new_moves(places) == [(1, IN_WORKER, None)]


def test_requests_beyond_a_full_queue_are_still_connecting(places: Places) -> None:
    """The kernel dropped its last ACK, so only the client considers itself connected."""
    connect(places, 4)
    for at_ns in (10, 11):
        places.infer_queue(at_ns, 2, 2)
    assert new_moves(places) == [(4, CONNECTING, None), (3, CONNECTING, None)]
    places.infer_queue(12, 1, 2)  # one was accepted, but its span is not known yet
    places.process([Event(13, "s", 1, 9)])
    places.infer_queue(14, 2, 2)
    assert place_by_request(places) == {1: IN_APP, 2: QUEUED, 3: QUEUED, 4: CONNECTING}


def test_the_queue_holds_at_most_one_more_than_its_limit() -> None:
    places = Places(accepts_first=False, slots=1)
    places.infer_queue(1, 0, 4)
    for number in range(8):
        places.process([Event(2 + number, "b", number), Event(2 + number, "c", number)])
    assert places.counts[QUEUED] == 5
    places.infer_queue(20, 5, 4)
    assert places.counts[:IN_WORKER] == [3, 5]


@given(
    accepts_first=st.booleans(), slots=st.none() | st.integers(1, 4),
    steps=st.lists(st.tuples(
        st.lists(st.booleans(), max_size=6), st.integers(0, 3), st.none() | st.integers(0, 3)
    )),
)  # fmt: skip
def test_the_queue_never_exceeds_its_limit_in_any_sequence(
    accepts_first: bool, slots: int | None, steps: list[tuple[list[bool], int, int | None]]
) -> None:
    """Each step: new connections, and whether their accept will be timed; the number served; the
    queue length or None if unknown. The queue holds one more than its limit of 2."""
    timed_flags = [timed for connections, _, _ in steps for timed in connections]
    timed = {number for number, is_timed in enumerate(timed_flags, 1) if is_timed}
    places = Places(accepts_first=accepts_first, slots=slots, accept_timed=timed)
    places.infer_queue(0, 0, 2)
    newest, served, place_of = 0, 0, dict[int, int]()
    for at_ns, (connections, serves, queue) in enumerate(steps, 1):
        numbers = range(newest + 1, newest + 1 + len(connections))
        places.process(Event(at_ns, kind, number) for number in numbers for kind in "bc")
        newest += len(connections)
        for number in range(served + 1, min(served + serves, newest) + 1):
            places.process([Event(at_ns, kind, number, 9) for kind in "sxe"])
            served = number
        places.infer_queue(at_ns, queue, 2)
        for _, moves in groupby(places.take_moves(), key=attrgetter("at_ns")):
            place_of |= {move.number: move.place for move in moves}
            assert list(place_of.values()).count(QUEUED) <= 3
    assert [list(place_of.values()).count(place) for place in range(ANSWERED)] == places.counts


def test_figures_are_of_the_current_load_only(places: Places) -> None:
    places.process([Event(1, "b", 1), Event(1, "b", 2), Event(SECOND, "e", 1)])
    places.start_load(SECOND)
    places.process([Event(SECOND, "b", 3)])
    assert (places.sample(2 * SECOND).left, places.sample(2 * SECOND).settled) == (1, False)
    places.process([Event(2 * SECOND, "e", 2), Event(5 * SECOND // 2, "e", 3)])
    sample = places.sample(4 * SECOND + 1)
    assert (sample.left, sample.settled) == (0, True)
    assert sample.p50 == 1.5  # the response of the previous load took 2 s
    assert not places.sample(3 * SECOND).settled


def test_requests_on_their_way_to_a_slot_are_at_most_the_free_slots() -> None:
    """So the first sample already shows which connections did not fit in the queue."""
    places = Places(accepts_first=False, slots=2)
    connect(places, 6)
    places.process([Event(7, "s", 1, 9)])
    places.infer_queue(10, 2, 2)  # of five, two are in the queue and one is on its way to a slot
    unconnected = {5: CONNECTING, 6: CONNECTING}
    assert place_by_request(places) == {
        1: IN_APP,
        **dict.fromkeys((2, 3, 4), QUEUED),
        **unconnected,
    }
    for at_ns in (20, 30):  # there is room again, but the others consider themselves connected
        places.infer_queue(at_ns, 1, 2)
    assert place_by_request(places) == {
        1: IN_APP,
        2: IN_WORKER,
        3: QUEUED,
        4: CONNECTING,
        **unconnected,
    }


def test_a_snapshot_has_places_and_starts_of_all_requests(places: Places) -> None:
    connect(places, 2)
    places.process([Event(9, "s", 1, 7), Event(10, "b", 3)])
    assert [(move.number, move.place, move.worker, move.at_ns) for move in places.snapshot(20)] == [
        (1, CONNECTING, None, 1), (2, CONNECTING, None, 2), (3, CONNECTING, None, 10),
        (1, IN_APP, 0, 20), (2, QUEUED, None, 20),
    ]  # fmt: skip


def test_a_request_on_a_reused_connection_skips_the_accept_queue(places: Places) -> None:
    places.process([Event(1, "b", 1), Event(1, "k", 1)])
    places.infer_queue(2, 1)  # of other connections
    assert new_moves(places) == [(1, CONNECTING, None), (1, IN_WORKER, None)]


def test_an_accepted_request_waits_in_its_worker() -> None:
    """A request whose accept will be timed stays in the queue until then."""
    places = Places(accepts_first=True, accept_timed={1, 2})
    connect(places, 3)
    places.infer_queue(10, 0)
    assert new_moves(places) == [(3, IN_WORKER, None)]  # its accept is not timed
    places.process([Event(11, "a", 2, 8)])
    assert new_moves(places) == [(2, IN_WORKER, 0)]
    places.infer_queue(12, 5)  # the number of other connections does not move it back
    assert new_moves(places) == [(3, QUEUED, None)]
    places.process([Event(13, "s", 2, 8), Event(14, "a", 1, 9), Event(14, "s", 1, 9)])
    assert new_moves(places) == [(2, IN_APP, 0), (1, IN_WORKER, 1), (1, IN_APP, 1)]
    places.infer_queue(15, 0)
    assert new_moves(places) == [(3, IN_WORKER, None)]


def test_a_request_that_has_left_the_app_unanswered_is_in_its_worker() -> None:
    places = Places(accepts_first=True)
    places.process([Event(1, "b", 1), Event(2, "c", 1), Event(3, "s", 1, 9), Event(4, "x", 1, 9)])
    places.take_moves()
    places.infer_queue(5, 0)
    assert new_moves(places) == [(1, IN_WORKER, 0)]


def test_a_worker_of_one_slot_never_has_two_in_its_app() -> None:
    places = Places(accepts_first=False, slots=2)
    connect(places, 3)
    places.process([Event(4, "s", 1, 9), Event(5, "x", 1, 9), Event(5, "s", 2, 8)])
    places.take_moves()
    places.process([Event(6, "s", 3, 9), Event(7, "e", 1)])  # a client that is slow to read
    assert new_moves(places) == [(1, IN_WORKER, 0), (3, IN_APP, 0), (1, ANSWERED, 0)]


def test_many_requests_are_sampled_for_drawing_but_all_are_counted(places: Places) -> None:
    places.process(Event(n, "b", n) for n in range(1, 3 * MAX_ALL_DRAWN + 1))
    drawn = {number for number, _, _ in new_moves(places)}
    assert MAX_ALL_DRAWN < len(drawn) < 2 * MAX_ALL_DRAWN
    assert places.draw_interval == 3
    places.process(Event(9999, "e", n) for n in range(1, 3 * MAX_ALL_DRAWN + 1))
    assert {number for number, _, _ in new_moves(places)} == drawn
    assert places.answered == 3 * MAX_ALL_DRAWN


def test_all_are_drawn_again_once_the_sampled_requests_have_ended(places: Places) -> None:
    places.process(Event(n, "b", n) for n in range(1, MAX_ALL_DRAWN + 9))
    places.process(Event(9000, "e", n) for n in range(1, MAX_ALL_DRAWN))
    places.process([Event(9001, "b", 9001)])
    assert (places.draw_interval, places.drawn_one_in) == (1, 2)
    places.process(Event(9002, "e", n) for n in range(MAX_ALL_DRAWN, MAX_ALL_DRAWN + 9))
    assert places.drawn_one_in == 1


def test_all_requests_in_the_app_are_drawn(places: Places) -> None:
    count = 3 * MAX_ALL_DRAWN
    connect(places, count)
    last_hidden = [number for number in range(1, count + 1) if number % 3][-4:]
    places.process(Event(9000 + n, "s", number, 7) for n, number in enumerate(last_hidden))
    assert places.counts == [0, count - 4, 0, 4]
    assert [number for number, place, _ in new_moves(places) if place == IN_APP] == last_hidden
    answered, failed, *_ = last_hidden
    places.process([Event(9999, "e", answered), Event(9999, "f", failed, cause="closed")])
    assert places.counts == [0, count - 4, 0, 2]
    assert sum(places.counts) == places.in_flight
    assert places.sample(9999).causes == {"closed": 1}


def test_the_parts_of_an_answer_come_from_its_events(places: Places) -> None:
    places.process([
        Event(1, "b", 1), Event(4, "c", 1), Event(20, "s", 1, 9, accept_ns=14),
        Event(50, "x", 1, 9), Event(51, "e", 1),
        Event(1, "b", 2), Event(4, "c", 2), Event(20, "s", 2, 9), Event(51, "e", 2),
        Event(1, "b", 3), Event(4, "c", 3), Event(20, "s", 3, 9, accept_ns=3), Event(51, "e", 3),
        Event(1, "b", 4), Event(1, "k", 4), Event(9, "s", 4, 9, accept_ns=3), Event(51, "e", 4),
    ])  # fmt: skip
    parts = [answer.parts_ns for answer in reversed(places.answers_since(0))]
    assert parts == [(3, 10, 6, 30), None, (2, 0, 17, 31), None]


def test_figures_are_of_recent_answers(places: Places) -> None:
    places.recent_s = 2.0
    for n in range(40):  # ten a second, 0.3 s each
        places.process(served(n + 1, n * 100 * MS, n * 100 * MS + 300 * MS))
    sample = places.sample(4000 * MS)
    assert sample.rps == pytest.approx(10, rel=0.06)
    assert sample.p50 == sample.p95 == pytest.approx(0.3)
    assert sample.mean == pytest.approx(0.3, rel=0.06)
    assert (sample.answered, sample.failed, sample.under_way) == (40, 0, 0)
    assert places.sample(60_000 * MS).rps == 0
    assert Places(accepts_first=False).sample(1).rps is None


@pytest.mark.parametrize("at_ms", range(5000, 6100, 130))
def test_answers_in_batches_give_a_steady_rate(places: Places, at_ms: int) -> None:
    """Four at a time for 1 s each: the rate is 4 per second at any time."""
    for number in range(28):
        begun_ns = number // 4 * SECOND
        events = served(number + 1, begun_ns, begun_ns + SECOND)
        places.process(event for event in events if event.at_ns <= at_ms * MS)
    assert places.sample(at_ms * MS).rps == pytest.approx(4, rel=0.001)
    assert places.sample(at_ms * MS, 3.3).rps == pytest.approx(4, rel=0.001)


def test_the_mean_includes_requests_in_flight(places: Places) -> None:
    places.process([Event(0, "b", 1)])
    for n in range(30):
        places.process(served(n + 2, n // 3 * SECOND, n // 3 * SECOND + SECOND))
    sample = places.sample(10_000 * MS, 8.0)
    assert sample.rps == pytest.approx(3)
    assert sample.p95 == pytest.approx(1)
    assert sample.mean == pytest.approx(4 / 3)
    assert places.oldest_s(10_000 * MS) == pytest.approx(10)


def test_rows_have_times_in_milliseconds(places: Places) -> None:
    places.process([Event(5 * MS, "b", 1)])
    assert as_rows(places.take_moves(), 2 * MS) == ((1, CONNECTING, None, 3.0),)
