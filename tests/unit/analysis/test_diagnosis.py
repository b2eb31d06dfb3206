"""What a colleague would say, for every way in which a cell is held up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis import TrialData, analyse
from harness.model import Counters, ProcessSample, Report, Server
from tests.builders.analysis import SYNC, bare, evidence, gthread, server
from tests.unit.analysis.test_observed import split_of


def diagnosis(trial: TrialData) -> str:
    said = analyse("r", {}, [trial]).cells[0].diagnosis
    assert said is not None
    assert said.endswith(".")
    return said


def using(
    trial: TrialData, cores: float, *, tool: float = 0.0, others: float = 0.0, of: int = 2
) -> TrialData:
    """The same trial, its server using so many cores of `of`."""
    busy = cores + tool + others
    samples = []
    for sample in trial.observations.processes:
        at_s = (sample.at_ns - trial.observations.processes[0].at_ns) / 1e9
        samples.append(
            ProcessSample(sample.at_ns, at_s * cores, at_s * tool, at_s * busy, None, None)
        )
    seen = replace(trial.observations, processes=tuple(samples), cores=of)
    return replace(trial, observations=seen)


def test_sync_waits_in_the_accept_queue() -> None:
    assert diagnosis(evidence(SYNC, 8)) == (
        "sync, 4 workers: 8 connections share 4 slots; the other 4 wait 1.0 s in the accept queue,"
        " connect stays 0 ms. More workers, threads (gthread) or an asynchronous class serve more"
        " at once."
    )


def test_gthread_waits_inside_its_workers() -> None:
    asked = server("gthread", 2, 2)
    said = diagnosis(evidence(asked, 16, slots=[2, 2], deal=lambda number: number % 2))
    assert said == (
        "gthread, 2 workers x 2 threads: 16 connections share 4 slots; the other 12 wait 3.0 s"
        " inside the workers, accepted and not begun. More threads or workers, or an asynchronous"
        " class, serve more at once."
    )


def test_uneven_dealing_names_the_setting_that_ends_it() -> None:
    said = diagnosis(gthread(16))
    assert "16 connections got 5.9 of 8.0 requests/s: they are dealt unevenly" in said
    assert "(requests per worker: 33, 24, 16, 8)" in said
    assert "--worker-connections 2, as many as threads" in said
    assert "keep-alive" not in said
    already = evidence(
        Server("gthread", 4, 2, 64, 2), 16, slots=[2] * 4, deal=lambda n: (0, 0, 1, 2)[n % 4]
    )
    assert "--worker-connections" not in diagnosis(already)


def test_uneven_dealing_of_kept_connections_is_known_by_their_number() -> None:
    said = split_of(7, 1).diagnosis or ""
    assert "(connections per worker: 7, 1; that split allows 5.0)" in said
    assert "It also ends keep-alive" in said
    assert "unevenly" not in (split_of(4, 4).diagnosis or "")


def test_tornado_has_no_such_setting() -> None:
    pattern = (0, 1, 1, 2, 0, 3)
    trial = evidence(server("tornado"), 16, slots=[1] * 4, deal=lambda n: pattern[n % 6])
    assert "A class that accepts only what it can serve" in diagnosis(trial)


@pytest.mark.parametrize("worker_class", ["asgi", "uvicorn", "gevent", "eventlet"])
def test_a_blocked_event_loop_is_recognised(worker_class: str) -> None:
    trial = evidence(server(worker_class), 8, slots=[1] * 4, deal=lambda number: number % 4)
    said = diagnosis(using(trial, 0.01))
    assert "your workers serve one request at a time: something blocks the event loop" in said
    assert "waits in a call that blocks and uses hardly any CPU" in said
    computing = diagnosis(using(trial, 1.9))
    assert "It computes (1.9 cores for 4 workers)" in computing
    assert "uses" not in diagnosis(bare(trial))


def test_gevent_with_a_preloaded_app_is_told_what_came_too_late() -> None:
    trial = evidence(server("gevent"), 8, slots=[1] * 4, deal=lambda number: number % 4)
    assert trial.record is not None
    proven = replace(
        trial, record=replace(trial.record, proof={"preload_app": True, "patched": "gevent"})
    )
    assert "preload_app loads the app before gevent" in diagnosis(proven)
    assert "preload_app" not in diagnosis(trial)


def test_a_loop_that_serves_two_at_once_is_not_blocked() -> None:
    trial = evidence(server("uvicorn", 2), 8, slots=[2, 2], deal=lambda number: number % 2)
    assert "event loop" not in diagnosis(trial)
    hello = evidence(
        server("uvicorn"), 8, slots=[1] * 4, deal=lambda number: number % 4, delay_s=0.004
    )
    assert hello.record is not None
    # Requests that are in the app for four fifths of their time: the loop is free for the rest.
    spans = tuple(
        replace(s, start_ns=(s.end_ns or 0) - 3_200_000, accept_ns=s.start_ns)
        for s in hello.spans.spans
    )
    free = replace(hello, spans=replace(hello.spans, spans=spans))
    assert "event loop" not in diagnosis(free)


def slowed(asked: Server, connections: int, used: int) -> TrialData:
    """Requests that take as much longer as there are connections, and wait for no slot."""
    trial = evidence(asked, connections, delay_s=connections / used, slots=[connections])
    assert trial.record is not None
    assert trial.measurement is not None
    return replace(
        trial,
        record=replace(trial.record, lone_s=(1.0,) * 9),
        measurement=replace(trial.measurement, lone_s=None),
    )


def test_the_machine_is_the_limit_where_no_core_is_left() -> None:
    trial = slowed(server("asgi"), 8, 2)
    said = diagnosis(using(trial, 1.9, tool=0.05))
    assert "the machine is the limit: 8 connections get 2.0 requests/s" in said
    assert "its 2 cores are 98 % busy (the server 1.9 cores, the load tool 0.1 cores)" in said
    crowded = diagnosis(using(trial, 0.6, others=1.4))
    assert "other programs 1.4 cores). Close the other programs" in crowded


def test_a_busy_machine_is_no_excuse_for_a_server_that_sleeps() -> None:
    assert "machine" not in diagnosis(using(gthread(16), 0.01, others=1.99))
    assert "machine" not in diagnosis(using(evidence(SYNC, 8), 0.8, others=1.2))


def test_workers_that_compute_all_the_time() -> None:
    said = diagnosis(using(slowed(server("asgi", 1), 8, 1), 0.98, of=8))
    assert "1 worker computes all the time, 1.0 cores (of 8 cores)" in said


def test_requests_that_slow_each_other_down() -> None:
    said = diagnosis(using(slowed(server("asgi"), 8, 2), 0.2))
    assert "a request spends 4.0 s inside the app, a lone one 1.0 s" in said
    assert "The server uses 0.2 cores of 2: look for what they share" in said


def test_nothing_waits() -> None:
    assert diagnosis(evidence(server("eventlet"), 16)) == (
        "eventlet, 4 workers: 16 connections use 16 of 4000 slots and nothing waits."
    )
    assert "4 slots and nothing waits; more connections will." in diagnosis(evidence(SYNC, 4))
    assert "an unlimited number of slots" in diagnosis(evidence(server("asgi"), 4))
    assert "1 connection uses 1 of 4 slots" in diagnosis(evidence(SYNC, 1))


def test_where_it_waits_is_only_said_where_it_was_seen() -> None:
    said = diagnosis(bare(evidence(SYNC, 8)))
    assert "the other 4 wait 1.0 s where no witness saw" in said


def test_failures_are_said_by_cause() -> None:
    trial = evidence(SYNC, 8)
    assert trial.measurement is not None
    said = replace(trial.measurement, failed=4, errors={"non_2xx": 4})
    assert diagnosis(replace(trial, measurement=said)).endswith(" 4 requests failed (non_2xx: 4).")


def test_an_invalid_cell_has_none_and_the_class_speaks_of_its_most_loaded_believed_one() -> None:
    broken = replace(evidence(SYNC, 32), parse_error="x")
    report: Report = analyse("r", {}, [evidence(SYNC, 4), evidence(SYNC, 8), broken])
    assert report.cells[2].diagnosis is None
    assert report.classes[0].diagnosis == report.cells[1].diagnosis
    assert analyse("r", {}, [broken]).classes[0].diagnosis is None


def test_a_quiet_kernel_says_nothing_of_drops() -> None:
    seen = replace(evidence(SYNC, 8).observations, counters=Counters(7, 7, 0, 0))
    assert "Listen" not in diagnosis(replace(evidence(SYNC, 8), observations=seen))


def test_a_class_speaks_of_the_cell_that_lost_most() -> None:
    """16 dealt unevenly lose what 64, enough for every worker, do not."""
    uneven = evidence(
        server("gthread", 2, 4), 16, slots=[4, 4], deal=lambda number: int(number % 8 == 0)
    )
    even = evidence(server("gthread", 2, 4), 64, slots=[4, 4], deal=lambda number: number % 2)
    report = analyse("r", {}, [uneven, even])
    (group,) = report.classes
    assert group.telling == uneven.trial.key
    assert "--worker-connections 4" in (group.diagnosis or "")
    (group,) = analyse("r", {}, [even]).classes
    assert group.telling == even.trial.key
