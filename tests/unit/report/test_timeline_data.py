"""What a page shows of one trial over time, against trials whose every moment is known."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as changed

from tests.builders.analysis import (
    SYNC,
    bare,
    derived,
    evidence,
    gthread,
    ns,
    server,
    with_cell,
    with_measurement,
    with_observations,
    with_spans,
)
from workerlab.analysis import TrialData, analyse
from workerlab.finding import Note
from workerlab.model import ConnectionSample, QueueSample
from workerlab.report.html.timeline_data import (
    MAX_BARS,
    MAX_BARS_PER_PAGE,
    MAX_CONNECT_BARS,
    MAX_POINTS,
    MIN_BARS,
    Timeline,
    row_numbers,
    timeline,
    timelines,
)

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=60).map(
    lambda drawn_timeline: sorted((start, start + length) for start, length in drawn_timeline)
)


@given(intervals)
def test_lanes_never_overlap_and_are_no_more_than_were_open_at_once(
    drawn_timeline: list[tuple[int, int]],
) -> None:
    placed: dict[int, list[tuple[int, int]]] = {}
    for lane, interval in zip(row_numbers(drawn_timeline), drawn_timeline, strict=True):
        placed.setdefault(lane, []).append(interval)
    for mine in placed.values():
        assert all(before[1] <= after[0] for before, after in pairwise(mine))
    most = max((sum(s <= at < e for s, e in drawn_timeline) for at, _ in drawn_timeline), default=0)
    assert sorted(placed) == list(range(most))


def seen(trial: TrialData, budget: int = MAX_BARS) -> Timeline:
    return timeline(derived(trial), budget)


# --- requests -------------------------------------------------------------------------------


def test_a_short_trial_is_shown_whole() -> None:
    drawn_timeline = seen(evidence(SYNC, 8, rounds=3))
    assert (len(drawn_timeline.bars), drawn_timeline.spans, drawn_timeline.notes) == (25, 25, ())
    assert drawn_timeline.bars[0].start_s == 0.0
    assert all(bar.end_s - bar.start_s == pytest.approx(1.0) for bar in drawn_timeline.bars)
    assert {bar.row for bar in drawn_timeline.bars} == {0}
    assert len(drawn_timeline.workers) == 4
    assert drawn_timeline.shown[1] >= max(bar.end_s for bar in drawn_timeline.bars)
    assert drawn_timeline.steady is not None
    assert 0 < drawn_timeline.steady[0] < drawn_timeline.steady[1] < drawn_timeline.shown[1]


def test_a_worker_has_as_many_lanes_as_it_had_requests_at_once() -> None:
    drawn_timeline = seen(gthread(16))
    assert {bar.row for bar in drawn_timeline.bars} == {0, 1}
    assert {bar.worker for bar in drawn_timeline.bars} == set(drawn_timeline.workers)


def test_arrivals_are_known_where_the_tool_names_its_requests() -> None:
    drawn_timeline = seen(evidence(SYNC, 8, tool="fast"))
    waits = [
        bar.start_s - bar.arrived_s for bar in drawn_timeline.bars if bar.arrived_s is not None
    ]
    assert len(waits) == len(drawn_timeline.bars)
    assert max(waits) == pytest.approx(1.0)
    assert Counter(round(wait) for wait in waits)[1] >= len(waits) - 9
    assert all(bar.arrived_s is None for bar in seen(evidence(SYNC, 8, tool="ab")).bars)


def test_a_request_that_never_ended_is_drawn_to_the_end_and_named() -> None:
    whole = evidence(SYNC, 8)
    *others, last = sorted(whole.spans.spans, key=lambda span: (span.start_ns, span.pid))
    drawn_timeline = seen(with_spans(whole, (*others, changed(last, end_ns=None))))
    assert drawn_timeline.bars[-1].end_s == pytest.approx(drawn_timeline.shown[1])
    assert drawn_timeline.notes == (Note("1 request never ended; drawn to the end of the chart."),)


def test_thinned_to_the_stretch_from_the_beginning_and_said_so() -> None:
    whole = derived(evidence(SYNC, 8, rounds=20))
    drawn_timeline = timeline(whole, max_requests=41)
    assert (len(drawn_timeline.bars), drawn_timeline.spans) == (41, 161)
    # The lone request, and ten rounds of four
    assert drawn_timeline.shown == (0.0, pytest.approx(11.0))
    assert [bar.start_s for bar in drawn_timeline.bars] == sorted(
        bar.start_s for bar in drawn_timeline.bars
    )
    assert drawn_timeline.bars == timeline(whole).bars[:41]
    cut, peaks = drawn_timeline.notes
    assert str(cut) == "Shows the first 11.0 s of 41.0 s, 41 of 161 requests."
    assert str(peaks).startswith("The accept queue is shown by its maximum in every ")


def test_however_many_requests_there_are_the_bars_are_bounded() -> None:
    small, requests = evidence(SYNC, 8, rounds=150), 10**5
    spans, last = small.spans.spans, small.spans.spans[-1]
    many = derived(with_spans(small, spans + (last,) * (requests - len(spans))))
    (drawn,) = timelines([many])
    assert (len(drawn.bars), drawn.spans) == (MAX_BARS, requests)
    assert str(drawn.notes[0]).endswith(", 800 of 100,000 requests.")
    assert len(drawn.queue) <= MAX_POINTS


def test_the_bars_of_a_page_are_shared_by_its_cells() -> None:
    measured = evidence(SYNC, 8, rounds=30)
    cells = [derived(with_cell(measured, concurrency=n)) for n in range(1, 100)]
    assert sum(len(drawn.bars) for drawn in timelines(cells[:70])) == MAX_BARS_PER_PAGE
    assert {len(drawn.bars) for drawn in timelines(cells)} == {MIN_BARS}


def test_a_timeline_is_of_the_first_valid_trial() -> None:
    trials = [evidence(SYNC, 8, trial=n) for n in (3, 2, 5)]
    died = replace(evidence(SYNC, 8), parse_error="cut off", measurement=None)
    report = analyse("run", {}, [died, *trials])
    assert [drawn.key[-1] for drawn in timelines(report.facts)] == ["2"]


# --- series ---------------------------------------------------------------------------------


def test_the_queue_is_shown_as_it_was_sampled() -> None:
    drawn_timeline = seen(evidence(SYNC, 8))
    assert max(length for _, length in drawn_timeline.queue) == 4
    assert drawn_timeline.queue_limit == 2048
    assert [at for at, _ in drawn_timeline.queue[:3]] == pytest.approx([0, 0.05, 0.1])


def test_a_long_queue_keeps_its_peaks() -> None:
    trial = evidence(SYNC, 8)
    end_ns = 12_000_000_000 // 4000
    samples = tuple(
        QueueSample(ns(0) + end_ns * i, 99 if i == 1717 else i % 3, 128) for i in range(3900)
    )
    drawn_timeline = seen(with_observations(trial, queue=samples))
    assert len(drawn_timeline.queue) <= MAX_POINTS
    peaks = [at for at, length in drawn_timeline.queue if length == 99]
    assert peaks == [pytest.approx(1717 * end_ns / 1e9)]
    (note,) = drawn_timeline.notes
    assert str(note).startswith("The accept queue is shown by its maximum in every ")


def test_a_state_that_a_sample_does_not_list_has_no_socket() -> None:
    trial = evidence(SYNC, 8)
    samples = (
        ConnectionSample(ns(1), {"ESTABLISHED": 8}, {"ESTABLISHED": 8}, {}, 0),
        ConnectionSample(ns(2), {"TIME_WAIT": 3}, {"ESTABLISHED": 5}, {}, 0),
    )
    assert set(seen(with_observations(trial, connections=samples)).states) == {
        (1.0, "client ESTABLISHED", 8),
        (2.0, "client ESTABLISHED", 5),
        (1.0, "server ESTABLISHED", 8),
        (2.0, "server ESTABLISHED", 0),
        (1.0, "server TIME_WAIT", 0),
        (2.0, "server TIME_WAIT", 3),
    }


def test_usage_is_a_rate_between_samples() -> None:
    drawn_timeline = seen(evidence(SYNC, 8))
    assert 0 < len(drawn_timeline.usage) <= MAX_POINTS
    for moment in drawn_timeline.usage:
        assert moment.server_cores == pytest.approx(0.1)
        assert moment.generator_cores == pytest.approx(0.05)
        assert moment.host_busy == pytest.approx(0.125)
        assert moment.server_rss_bytes == 50 << 20


def test_cpu_that_shrank_is_no_rate() -> None:
    trial = evidence(SYNC, 8)
    first, second, *rest = trial.observations.processes
    ended = replace(first, server_cpu_s=5.0)  # a worker has taken its seconds with it
    drawn_timeline = seen(with_observations(trial, processes=(ended, second, *rest)))
    assert drawn_timeline.usage[0].server_cores is None
    assert drawn_timeline.usage[0].generator_cores == pytest.approx(0.05)


def test_what_was_not_observed_is_empty() -> None:
    drawn_timeline = seen(bare(evidence(SYNC, 8)))
    assert drawn_timeline.bars
    assert (
        drawn_timeline.queue,
        drawn_timeline.queue_limit,
        drawn_timeline.states,
        drawn_timeline.usage,
    ) == ((), None, (), ())
    assert drawn_timeline.notes == ()


def test_a_series_that_breaks_off_says_why() -> None:
    drawn_timeline = seen(
        with_observations(evidence(SYNC, 8), missing={"queue": "netlink said no"})
    )
    assert drawn_timeline.notes == (Note("Incomplete: accept queue (netlink said no)."),)


# --- connecting -----------------------------------------------------------------------------


@given(st.lists(st.floats(0, 0.9) | st.floats(0, 190), max_size=50))
def test_every_connection_is_in_its_bar(connects_s: list[float]) -> None:
    trial = evidence(server("gevent"), 4, rounds=2)
    drawn_timeline = seen(with_measurement(trial, connects_s=tuple(connects_s))).connects
    assert sum(count for _, _, count in drawn_timeline) == len(connects_s)
    assert len(drawn_timeline) <= MAX_CONNECT_BARS + 1
    for since, until, count in drawn_timeline:
        assert count >= 1
        assert sum(since - 1e-9 <= one < until + 1e-9 for one in connects_s) >= count
    assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(drawn_timeline))
