"""What was seen from outside: sums and maxima where they are known, None where they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from harness.analysis import analyse
from harness.analysis.samples import connections_per_worker, missing_notes, usage
from harness.analysis.window import Window
from harness.model import (
    CellResult,
    ConnectionSample,
    Finding,
    Observations,
    ProcessSample,
    Record,
    Server,
    Usage,
)
from harness.server.worker_classes import class_named, configured_slots
from tests.builders.analysis import SYNC, dealt, evidence, judged, kept, server

RECORD = Record(key="x", fault=None)
SECOND = 10**9


def process(at_s: float, *values: float | None, rss: int | None = None) -> ProcessSample:
    server_s, tool_s, host_s = values
    return ProcessSample(round(at_s * SECOND), server_s, tool_s, host_s, rss, None)


def test_cores_are_cpu_seconds_per_second() -> None:
    samples = (
        process(0, 0.0, 0.0, 10.0, rss=5),
        process(1, 0.5, 0.1, 11.5, rss=9),
        process(4, 2.0, 0.4, 16.0, rss=7),
    )
    seen = Observations(processes=samples, cores=2)
    assert usage(seen, RECORD, 4.0) == Usage(0.5, 0.1, pytest.approx(0.75), 9, None)
    exact = replace(RECORD, tool_cpu_s=2.0)
    assert usage(seen, exact, 4.0).generator_cores == 0.5
    assert usage(replace(seen, cores=None), RECORD, 4.0).host_busy is None


def test_one_sample_or_none_is_no_rate() -> None:
    one = Observations(processes=(process(0, 1.0, None, None),), cores=2)
    assert usage(one, RECORD, 1.0) == Usage()
    gaps = (process(0, None, 1.0, None), process(1, 1.0, None, None), process(2, 2.0, 3.0, None))
    found = usage(Observations(processes=gaps, cores=2), RECORD, 1.0)
    assert (found.server_cores, found.generator_cores) == (1.0, 1.0)


def test_a_sampler_that_died_sums_up_to_nothing() -> None:
    trial = evidence(SYNC, 8)
    for name, cleared in (
        ("queue", {"accept_queue_max": None, "accept_queue_limit": None}),
        ("processes", {"usage": Usage()}),
        ("counters", {"counters": CellResult.__dataclass_fields__["counters"].default}),
    ):
        seen = replace(trial.observations, missing={name: "it broke"})
        cell = judged(replace(trial, observations=seen))
        for field, value in cleared.items():
            assert getattr(cell, field) == value
        missing = {"samplers": (Finding(f"sampler.{name}"),), "why": "it broke"}
        assert cell.notes == (Finding("note.missing", missing),)
    assert judged(trial).accept_queue_max == 4


def test_samplers_that_are_missing_for_one_reason_share_a_note() -> None:
    seen = Observations(missing={"queue": "not Linux", "counters": "not Linux", "processes": "x"})
    assert [note.values for note in missing_notes(seen)] == [
        {"samplers": (Finding("sampler.queue"), Finding("sampler.counters")), "why": "not Linux"},
        {"samplers": (Finding("sampler.processes"),), "why": "x"},
    ]


# --- kept-alive connections ------------------------------------------------------------------


def held(at_s: float, **per_worker: int) -> ConnectionSample:
    counts = {int(pid[1:]): count for pid, count in per_worker.items()}
    return ConnectionSample(round(at_s * SECOND), {}, {}, counts, 0)


def test_connections_are_the_median_in_the_window_of_every_worker() -> None:
    samples = (held(0, p7=9), held(1, p7=3, p8=1), held(2, p7=4, p8=1), held(3, p7=4), held(9))
    seen = Observations(connections=samples)
    steady = Window(SECOND, 3 * SECOND, 1.0)
    assert connections_per_worker(seen, (9, 8, 7), steady) == {7: 4, 8: 1, 9: 0}
    assert connections_per_worker(seen, (7,), Window(4 * SECOND, 8 * SECOND, 1.0)) is None
    assert connections_per_worker(replace(seen, missing={"connections": "x"}), (7,), steady) is None


@pytest.mark.parametrize(
    ("counts", "predicted"), [((4, 4), 8.0), ((7, 1), 5.0), ((8, 0), 4.0), ((5, 3), 7.0)]
)
def test_the_split_bounds_the_throughput(counts: tuple[int, int], predicted: float) -> None:
    cell = judged(dealt(*counts))
    assert cell.connections_per_worker == {100: counts[0], 101: counts[1]}
    assert cell.split_prediction_rps == pytest.approx(predicted)
    assert cell.throughput_rps == pytest.approx(predicted, rel=0.05)
    assert cell.split_prediction_rps <= (cell.bound_rps or 0)


def test_more_connections_than_there_are_predict_no_more_than_the_bound() -> None:
    assert judged(dealt(6, 6, connections=4)).split_prediction_rps == pytest.approx(4.0)


def test_without_the_kernels_table_the_accepts_count() -> None:
    asked = server("gthread", 2, 4)
    trial = kept(evidence(asked, 8, slots=[8]))
    blind = replace(trial, observations=Observations(missing={"connections": "not Linux"}))
    assert judged(blind).connections_per_worker == {100: 1, 101: 1}
    spans = tuple(changed(span, accept_ns=None) for span in blind.spans.spans)
    untimed = judged(replace(blind, spans=replace(blind.spans, spans=spans)))
    assert (untimed.connections_per_worker, untimed.split_prediction_rps) == (None, None)


def test_connections_that_are_not_kept_have_no_split() -> None:
    cell = judged(evidence(server("gthread", 2, 4), 8))
    assert (cell.connections_per_worker, cell.split_prediction_rps) == (None, None)


def test_kept_alive_is_a_group_of_its_own() -> None:
    trial = evidence(SYNC, 8)
    report = analyse("r", {}, [trial, kept(trial)])
    assert [group.keepalive for group in report.classes] == [False, True]
    assert len(report.cells) == 2


def test_slots_of_a_worker_and_of_all() -> None:
    asked = Server("gthread", 2, 4, 64, 1000)
    row = class_named("gthread")
    assert (row.slots_per_worker(asked), configured_slots(asked)) == (4, 8)
    one = Server("uvicorn", 1, 4, 64, 1000)
    row = class_named("uvicorn")
    assert (row.slots_per_worker(one), configured_slots(one)) == (None, None)
    assert configured_slots(Server("gevent", 3, 4, 64, 10)) == 30
    assert configured_slots(Server("tornado", 3, 4, 64, 10)) == 3
