"""The timeline of a trial, for ideal trials with known times."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

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
from workerlab.model.evidence import ConnectionSample, QueueSample
from workerlab.report.html.timeline_data import (
    MAX_BARS,
    MAX_BARS_PER_PAGE,
    MAX_CONNECT_BARS,
    MAX_POINTS,
    MIN_BARS,
    Rows,
    Timeline,
    timeline,
    timelines,
)

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=60).map(
    lambda starts: sorted((start, start + length) for start, length in starts)
)


@given(INTERVALS)
def test_rows_never_overlap_and_are_as_many_as_intervals_open_at_once(
    intervals: list[tuple[int, int]],
) -> None:
    rows: dict[int, list[tuple[int, int]]] = {}
    allocated = Rows()
    for interval in intervals:
        rows.setdefault(allocated.take(*interval), []).append(interval)
    for row in rows.values():
        assert all(before[1] <= after[0] for before, after in pairwise(row))
    most = max((sum(s <= at < e for s, e in intervals) for at, _ in intervals), default=0)
    assert sorted(rows) == list(range(most))


def timeline_of(trial: TrialData) -> Timeline:
    return timeline(derived(trial))


# --- requests -------------------------------------------------------------------------------


def test_a_short_trial_is_drawn_completely() -> None:
    chart = timeline_of(evidence(SYNC, 8, rounds=3))
    assert (len(chart.bars), chart.notes) == (25, ())
    assert chart.bars[0].start_s == 0.0
    assert all(bar.end_s - bar.start_s == pytest.approx(1.0) for bar in chart.bars)
    assert {bar.row for bar in chart.bars} == {0}
    assert len(chart.workers) == 4
    assert chart.shown[1] >= max(bar.end_s for bar in chart.bars)
    assert 0 < chart.steady[0] < chart.steady[1] < chart.shown[1]


def test_a_worker_has_a_row_for_each_concurrent_request() -> None:
    chart = timeline_of(gthread(16))
    assert {bar.row for bar in chart.bars} == {0, 1}
    assert {bar.worker for bar in chart.bars} == set(chart.workers)


def test_arrivals_are_known_if_the_tool_sends_request_ids() -> None:
    bars = timeline_of(evidence(SYNC, 8, tool="fast")).bars
    waits_s = [bar.start_s - bar.arrived_s for bar in bars if bar.arrived_s is not None]
    assert len(waits_s) == len(bars)
    assert max(waits_s) == pytest.approx(1.0)
    assert sum(round(wait_s) == 1 for wait_s in waits_s) >= len(waits_s) - 9
    assert all(bar.arrived_s is None for bar in timeline_of(evidence(SYNC, 8, tool="ab")).bars)


def test_a_request_that_never_ended_is_drawn_to_the_end_and_noted() -> None:
    trial = evidence(SYNC, 8)
    *others, last = sorted(trial.spans.spans, key=lambda span: (span.start_ns, span.pid))
    chart = timeline_of(with_spans(trial, (*others, replace(last, end_ns=None))))
    assert chart.bars[-1].end_s == pytest.approx(chart.shown[1])
    assert chart.notes == (Note("1 request never ended, drawn to the end of the chart."),)


def test_a_long_trial_is_cut_after_its_first_requests_and_noted() -> None:
    facts = derived(evidence(SYNC, 8, rounds=20))
    chart = timeline(facts, max_requests=41)
    assert len(chart.bars) == 41
    # The lone request, and ten rounds of four
    assert chart.shown == (0.0, pytest.approx(11.0))
    starts_s = [bar.start_s for bar in chart.bars]
    assert starts_s == sorted(starts_s)
    assert chart.bars == timeline(facts).bars[:41]
    cut, peaks = chart.notes
    assert str(cut) == "Shows the first 11.0 s of 41.0 s: 41 of 161 requests."
    assert str(peaks).startswith("The accept queue is shown as its maximum in every ")


def test_the_number_of_bars_is_bounded() -> None:
    small, requests = evidence(SYNC, 8, rounds=150), 10**5
    spans, last = small.spans.spans, small.spans.spans[-1]
    many = derived(with_spans(small, spans + (last,) * (requests - len(spans))))
    (chart,) = timelines([many])
    assert len(chart.bars) == MAX_BARS
    assert str(chart.notes[0]).endswith(": 800 of 100,000 requests.")
    assert len(chart.queue) <= MAX_POINTS


def test_the_bars_of_a_page_are_shared_by_its_cells() -> None:
    unobserved = bare(evidence(SYNC, 8, rounds=30))
    cells = [derived(with_cell(unobserved, concurrency=n)) for n in range(1, 100)]
    assert sum(len(chart.bars) for chart in timelines(cells[:70])) == MAX_BARS_PER_PAGE
    assert {len(chart.bars) for chart in timelines(cells)} == {MIN_BARS}


def test_a_timeline_is_of_the_first_valid_trial() -> None:
    trials = [evidence(SYNC, 8, trial=n) for n in (3, 2, 5)]
    died = replace(evidence(SYNC, 8), parse_error="cut off", measurement=None)
    report = analyse("run", {}, [died, *trials])
    assert [chart.key[-1] for chart in timelines(report.facts)] == ["2"]


# --- series ---------------------------------------------------------------------------------


def test_the_queue_is_drawn_as_sampled() -> None:
    chart = timeline_of(evidence(SYNC, 8))
    assert max(length for _, length in chart.queue) == 4
    assert chart.queue_limit == 2048
    assert [at for at, _ in chart.queue[:3]] == pytest.approx([0, 0.05, 0.1])


def test_a_long_queue_keeps_its_peaks() -> None:
    trial = evidence(SYNC, 8)
    every_ns = 3_000_000
    samples = tuple(
        QueueSample(ns(0) + every_ns * i, 99 if i == 1717 else i % 3, 128) for i in range(3900)
    )
    chart = timeline_of(with_observations(trial, queue=samples))
    assert len(chart.queue) <= MAX_POINTS
    peaks = [at for at, length in chart.queue if length == 99]
    assert peaks == [pytest.approx(1717 * every_ns / 1e9)]
    (note,) = chart.notes
    assert str(note).startswith("The accept queue is shown as its maximum in every ")


def test_a_state_missing_from_a_sample_counts_0() -> None:
    trial = evidence(SYNC, 8)
    samples = (
        ConnectionSample(ns(1), {"ESTABLISHED": 8}, {"ESTABLISHED": 8}, {}, 0),
        ConnectionSample(ns(2), {"TIME_WAIT": 3}, {"ESTABLISHED": 5}, {}, 0),
    )
    assert set(timeline_of(with_observations(trial, connections=samples)).states) == {
        (1.0, "client ESTABLISHED", 8), (2.0, "client ESTABLISHED", 5),
        (1.0, "server ESTABLISHED", 8), (2.0, "server ESTABLISHED", 0),
        (1.0, "server TIME_WAIT", 0), (2.0, "server TIME_WAIT", 3),
    }  # fmt: skip


def test_usage_is_a_rate_between_samples() -> None:
    chart = timeline_of(evidence(SYNC, 8))
    assert 0 < len(chart.usage) <= MAX_POINTS
    for moment in chart.usage:
        assert moment.server_cores == pytest.approx(0.1)
        assert moment.generator_cores == pytest.approx(0.05)
        assert moment.host_busy == pytest.approx(0.125)
        assert moment.server_rss_bytes == 50 << 20


def test_falling_cpu_time_is_not_a_rate() -> None:
    trial = evidence(SYNC, 8)
    first, second, *rest = trial.observations.processes
    ended = replace(first, server_cpu_s=5.0)  # the CPU time of an ended worker is gone
    chart = timeline_of(with_observations(trial, processes=(ended, second, *rest)))
    assert chart.usage[0].server_cores is None
    assert chart.usage[0].generator_cores == pytest.approx(0.05)


def test_unobserved_series_are_empty() -> None:
    chart = timeline_of(bare(evidence(SYNC, 8)))
    assert chart.bars
    assert (chart.queue, chart.queue_limit) == ((), None)
    assert (chart.states, chart.usage, chart.notes) == ((), (), ())


def test_an_incomplete_series_is_noted_with_its_reason() -> None:
    chart = timeline_of(with_observations(evidence(SYNC, 8), missing={"queue": "netlink said no"}))
    assert chart.notes == (Note("Incomplete: accept queue (netlink said no)."),)


# --- connecting -----------------------------------------------------------------------------


@given(st.lists(st.floats(0, 0.9) | st.floats(0, 190), max_size=50))
def test_every_connection_is_in_a_bar(connects_s: list[float]) -> None:
    trial = evidence(server("gevent"), 4, rounds=2)
    bars = timeline_of(with_measurement(trial, connects_s=tuple(connects_s))).connects
    assert sum(count for _, _, count in bars) == len(connects_s)
    assert len(bars) <= MAX_CONNECT_BARS + 1
    for since, until, count in bars:
        assert count >= 1
        assert sum(since - 1e-9 <= time_s < until + 1e-9 for time_s in connects_s) >= count
    assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(bars))
