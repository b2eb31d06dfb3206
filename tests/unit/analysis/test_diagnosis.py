"""The diagnosis and advice for each way in which a cell can be limited."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    SYNC,
    bare,
    cell_of,
    derived,
    diagnosis_of,
    diagnosis_types,
    evidence,
    gthread,
    keepalive_trial,
    server,
    with_measurement,
    with_observations,
    with_record,
    with_spans,
)
from tests.builders.noise import noisy
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis import cpu, drift, failing, loop, shared, slots
from workerlab.analysis.diagnosis.base import Advised, Diagnosis
from workerlab.finding import Finding
from workerlab.model.evidence import ProcessSample
from workerlab.model.plan import Server
from workerlab.model.result import Invalid, Report
from workerlab.report.values import text
from workerlab.server.worker_classes import class_named


def cause(trial: TrialData) -> Diagnosis:
    diagnosis = diagnosis_of(Diagnosis, trial)
    assert text(diagnosis).endswith(".")
    return diagnosis


def values(finding: Finding, *names: str) -> tuple[Any, ...]:
    return tuple(finding.values[name] for name in names)


def advice(trial: TrialData) -> tuple[str, ...]:
    return cause(trial).advice


def using(
    trial: TrialData, server: float, *, tool: float = 0.0, others: float = 0.0, cores: int = 2
) -> TrialData:
    """The same trial on a machine with so many cores, some of them in use."""
    usage = server, tool, server + tool + others
    first, samples = trial.observations.processes[0], list[ProcessSample]()
    for sample in trial.observations.processes:
        cpu_s = (used * (sample.at_ns - first.at_ns) / NS for used in usage)
        samples.append(ProcessSample(sample.at_ns, *cpu_s, None, None))
    return with_observations(trial, processes=tuple(samples), cores=cores)


def serial(settings: Server, **changes: Any) -> TrialData:
    """8 connections, evenly dealt to workers that each serve one request at a time."""
    workers = settings.workers
    return evidence(settings, 8, slots=[1] * workers, deal=lambda n: n % workers, **changes)


def test_sync_waits_in_the_accept_queue() -> None:
    assert text(diagnosis_of(slots.WaitingForSlots, evidence(SYNC, 8))) == (
        "8 connections share 4 slots; the other 4 wait 1.00 s in the accept queue, connect stays at"
        " 0 ms; more workers, threads (gthread) or an asynchronous class serve more at once."
    )


def test_gthread_waits_inside_its_workers() -> None:
    trial = evidence(server("gthread", 2, 2), 16, slots=[2, 2], deal=lambda n: n % 2)
    diagnosis = diagnosis_of(slots.WaitingForSlots, trial)
    waiting = "the other 12 wait 3.00 s inside the workers, accepted but not started"
    assert diagnosis.waiting == waiting
    assert diagnosis.advice == (class_named("gthread").advice,)


def test_uneven_dealing_advises_fewer_worker_connections() -> None:
    diagnosis = diagnosis_of(slots.UnevenDealing, gthread(16))
    assert cell_of(gthread(16)).throughput_rps == pytest.approx(5.9, abs=0.05)
    assert diagnosis.dealing.idle == pytest.approx(2.1, abs=0.05)
    assert (diagnosis.dealt, diagnosis.per_worker) == ("requests", (33, 24, 16, 8))
    (fewer_connections,) = diagnosis.advice
    assert fewer_connections.startswith("--worker-connections 2, as many as threads")
    limited = Server("gthread", 4, 2, 64, 2)  # as many worker_connections as threads
    assert advice(evidence(limited, 16, slots=[2] * 4, deal=lambda n: (0, 0, 1, 2)[n % 4])) == ()


def test_uneven_keepalive_connections_are_recognised_by_their_number() -> None:
    diagnosis = diagnosis_of(slots.UnevenDealing, keepalive_trial(7, 1))
    assert (diagnosis.dealt, diagnosis.per_worker) == ("connections", (7, 1))
    assert diagnosis.predicted_rps == pytest.approx(5.0)
    assert slots.DISABLES_KEEPALIVE in diagnosis.advice
    assert not isinstance(cause(keepalive_trial(4, 4)), slots.UnevenDealing)


def test_uneven_dealing_of_tornado_advises_another_class() -> None:
    pattern = (0, 1, 1, 2, 0, 3)
    trial = evidence(server("tornado"), 16, slots=[1] * 4, deal=lambda n: pattern[n % 6])
    assert advice(trial) == (slots.USE_EVEN_CLASS,)


@pytest.mark.parametrize(
    ("worker_class", "calls"),
    [
        ("asgi", loop.ASYNC_CALLS_OR_THREADS),
        ("uvicorn", loop.ASYNC_CALLS_OR_THREADS),
        ("gevent", loop.PATCHABLE_CALLS),
        ("eventlet", loop.PATCHABLE_CALLS),
    ],
)
def test_a_blocked_event_loop_is_recognised(worker_class: str, calls: str) -> None:
    trial = serial(server(worker_class))
    diagnosis = diagnosis_of(loop.BlockedLoop, using(trial, 0.01))
    assert "(8 connections on 4 workers, and no worker ever had two requests" in diagnosis.how
    (replace_calls,) = diagnosis.advice
    assert "blocks, using hardly any CPU (" in replace_calls
    assert replace_calls.endswith(f"use {calls}")
    (computing,) = advice(using(trial, 1.9))
    assert computing.startswith("it computes (1.9 cores for 4 workers)")
    one_core = using(serial(replace(server(worker_class), cores=1)), 0.9, cores=8)
    assert advice(one_core)[0].startswith("it computes (0.9 cores for 4 workers)")
    (unknown,) = advice(bare(trial))
    assert "blocks (" in unknown
    assert unknown.endswith(calls)


def test_a_preloaded_gevent_app_is_advised_to_patch_first() -> None:
    trial = serial(server("gevent"))
    proof = {"preload_app": True, "patched": "gevent"}
    assert advice(with_record(trial, proof=proof)) == (loop.PATCH_BEFORE_PRELOAD,)
    assert advice(trial)[0].endswith(loop.PATCHABLE_CALLS)


def test_a_loop_that_serves_two_at_once_is_not_blocked() -> None:
    trial = evidence(server("uvicorn", 2), 8, slots=[2, 2], deal=lambda n: n % 2)
    assert not isinstance(cause(trial), loop.BlockedLoop)
    hello = serial(server("uvicorn"), delay_s=0.004)
    # Requests spend four fifths of their time in the app; the loop is free for the rest
    spans = (
        replace(s, start_ns=(s.end_ns or 0) - 3_200_000, accept_ns=s.start_ns)
        for s in hello.spans.spans
    )
    assert not isinstance(cause(with_spans(hello, spans)), loop.BlockedLoop)


def slowed(settings: Server, connections: int, parallel: int) -> TrialData:
    """Requests whose service time grows with the connections, without waiting for slots."""
    trial = evidence(settings, connections, delay_s=connections / parallel, slots=[connections])
    return with_record(with_measurement(trial, lone_s=None), lone_s=(1.0,) * 9)


def test_a_machine_without_a_free_core_is_the_limit() -> None:
    trial = slowed(server("asgi"), 8, 2)
    diagnosis = diagnosis_of(cpu.BusyMachine, using(trial, 1.9, tool=0.05))
    assert (diagnosis.connections, diagnosis.rps) == (8, pytest.approx(2))
    how = "its 2 cores were 98 % busy (the server 1.9 cores, the load tool 0.1 cores)"
    assert diagnosis.how == how
    busy_tool = diagnosis_of(cpu.BusyMachine, using(trial, 1.2, tool=0.7))
    assert "the load tool 0.7 cores" in busy_tool.how
    usage = "(the server 1.7 cores, the load tool 0.1 cores, other programs 0.2 cores)"
    shared_machine = noisy(trial, server_cores=1.7, tool_cores=0.05, others=0.2)
    assert diagnosis_of(cpu.BusyMachine, shared_machine).how.endswith(usage)
    # Other programs use the cores
    assert cpu.BusyMachine not in diagnosis_types(using(trial, 0.6, others=1.4))


def test_a_busy_machine_does_not_limit_a_sleeping_server() -> None:
    for trial in (using(gthread(16), 0.01, others=1.99), using(evidence(SYNC, 8), 0.8, others=1.2)):
        assert not isinstance(cause(trial), cpu.BusyMachine)


TWO_WORKERS = server("asgi", 2)
TWO_INSTANCES = replace(TWO_WORKERS, instances=2)


@pytest.mark.parametrize(
    ("settings", "server_cores", "how"),
    [
        (server("asgi", 1), 0.98, "1 worker computed all the time (1.0 cores of 8)"),
        (TWO_WORKERS, 1.9, "2 workers computed all the time (1.9 cores of 8)"),
        (replace(TWO_WORKERS, cores=1), 0.98, "2 workers computed all the time (1.0 cores of 1)"),
        (TWO_INSTANCES, 3.8, "4 workers computed all the time (3.8 cores of 8)"),
        (TWO_INSTANCES, 1.9, None),
    ],
)
def test_workers_that_always_compute_are_the_limit(
    settings: Server, server_cores: float, how: str | None
) -> None:
    cell = cell_of(using(slowed(settings, 8, 1), server_cores, cores=8))
    assert cell.usage.server_cores == pytest.approx(server_cores)
    busy = cell.diagnosis if isinstance(cell.diagnosis, cpu.BusyWorkers) else None
    assert (busy and busy.how) == how
    assert not busy or (busy.advice == (cpu.MORE_CORES,)) == (settings.cores == 1)


def test_a_cpu_limit_while_other_programs_run_is_explained_by_cpu_per_request() -> None:
    """The throughput is no evidence, because the other programs limit it too."""
    need = "each request takes 739 us of CPU time, and a worker computes for one request at a time"
    for kind, name in ((cpu.BusyWorkers, "The workers' CPU"), (cpu.BusyMachine, "The machine")):
        diagnosis = kind(connections=4, rps=1155.0, how="", need=need, advice=())
        end = f"even with all cores free for the server: {need}."
        assert text(diagnosis) == f"{name} is the limit, {end}"


def test_requests_that_slow_each_other_down_share_something() -> None:
    diagnosis = diagnosis_of(shared.Shared, using(slowed(server("asgi"), 8, 2), 0.2))
    assert (diagnosis.service_s, diagnosis.lone_s) == pytest.approx((4, 1))
    assert (diagnosis.used, diagnosis.cores) == pytest.approx((0.2, 2))
    assert diagnosis.advice == (shared.LOOK_FOR_WHAT_IS_SHARED,)


def test_without_waiting_requests_the_used_slots_are_reported() -> None:
    assert text(cause(evidence(server("eventlet"), 16))) == (
        "16 connections used 16 of 4000 slots and nothing waited."
    )
    assert isinstance(cause(evidence(SYNC, 4)), slots.AllSlotsBusy)
    unlimited = cause(evidence(server("asgi"), 4))
    assert values(unlimited, "slots", "limit") == (None, "no limit configured")
    assert values(cause(evidence(SYNC, 1)), "connections", "used", "slots") == (1, 1, 4)


def ending_earlier(trial: TrialData) -> TrialData:
    """Each slot is idle for 0.3 s before its next request."""
    return with_spans(
        trial, (replace(span, end_ns=span.end_ns - 3 * NS // 10) for span in trial.spans.spans)
    )


def test_filled_slots_may_be_idle_between_requests() -> None:
    cell = cell_of(ending_earlier(evidence(SYNC, 4)))
    assert (cell.verdict, cell.reason.code) == ("at capacity", "SlotsFilled")
    assert "busy" not in text(cell.reason)
    (diagnosis,) = cell.findings
    assert isinstance(diagnosis, slots.AllSlotsBusy)
    assert diagnosis.busy == cell.occupancy
    assert f"({100 * (cell.occupancy or 0):.0f} % busy)" in text(diagnosis)
    full = cell_of(evidence(SYNC, 4))
    assert full.reason.code == "SlotsFilled"
    assert full.findings[0].values["busy"] is None


def test_without_slots_the_reason_compares_with_the_bound() -> None:
    cell = cell_of(serial(server("asgi", 2)))
    assert cell.reason.code == "BelowPossible"
    assert values(cell.reason, "possible_rps") == (pytest.approx(cell.bound_rps),)
    assert values(cell.reason.values["why"], "used") == (2,)
    assert "slots" not in text(cell.reason)


def test_an_unexplained_response_names_the_time_inside_the_app() -> None:
    diagnosis = slots.Unexplained(
        connections=32, response_s=0.164, lone_s=0.103, service_s=0.161, waiting=None, busy=None
    )
    start = "With 32 connections a response takes 164 ms, 161 ms of it inside the app, a lone one"
    assert text(diagnosis) == f"{start} 103 ms; the cause is unknown."
    why = "requests wait 9.0 ms, although slots were only 75 % busy"
    idle = replace(diagnosis, waiting="requests wait 9.0 ms", busy=0.75)
    assert text(idle) == f"{start} 103 ms: {why}; the cause is unknown."


def test_slots_that_idle_as_workers_lack_a_core_are_explained() -> None:
    """8 connections on 4 slots; 4 workers that compute or wait for a core all the time."""
    trial = evidence(SYNC, 8)
    waiting = noisy(ending_earlier(trial), server_cores=1.3, server_wait=2.7)
    facts, cell = derived(waiting), cell_of(waiting)
    diagnosis = slots.no_limit(facts, cell, slower=True)
    assert isinstance(diagnosis, slots.Unexplained)
    assert diagnosis.busy == cell.occupancy
    assert diagnosis.cause.startswith("the workers computed or waited for a core for 100 %")
    assert "unknown" in text(slots.no_limit(derived(noisy(trial)), cell, slower=True))


def test_the_cpu_time_of_a_request_is_compared_with_a_lone_one_if_known() -> None:
    need = "each request takes 65.4 ms of CPU time"
    assert str(cpu.CpuNeed(0.0654, lone_s=None)) == need
    lone = " (the fastest lone one 70.0 ms in total)"
    assert str(cpu.CpuNeed(0.0654, lone_s=0.07)) == f"{need}{lone}"


def test_the_place_of_waiting_is_unknown_without_observations() -> None:
    diagnosis = diagnosis_of(slots.WaitingForSlots, bare(evidence(SYNC, 8)))
    assert diagnosis.waiting == "the other 4 wait 1.00 s in a place that was not measured"


def test_failures_are_diagnosed_in_addition() -> None:
    trial = with_measurement(evidence(SYNC, 8), failed=2, errors={"reset": 2})
    assert diagnosis_types(trial) == [slots.WaitingForSlots, failing.Failing]
    many = with_measurement(evidence(SYNC, 8), failed=4, errors={"reset": 4})
    assert diagnosis_types(many) == [failing.Failing, slots.WaitingForSlots]


def test_an_invalid_cell_has_no_diagnosis_and_does_not_represent_its_class() -> None:
    broken = replace(evidence(SYNC, 32), parse_error="x")
    report: Report = analyse("r", {}, [evidence(SYNC, 4), evidence(SYNC, 8), broken])
    assert isinstance(report.cells[2], Invalid)
    assert report.classes[0].diagnosis == report.cells[1].diagnosis
    assert analyse("r", {}, [broken]).classes[0].diagnosis is None


def test_a_class_is_represented_by_the_cell_that_lost_most() -> None:
    """16 connections dealt unevenly lose throughput; 64 keep every worker busy."""
    settings = server("gthread", 2, 4)
    uneven = evidence(settings, 16, slots=[4, 4], deal=lambda n: int(n % 8 == 0))
    even = evidence(settings, 64, slots=[4, 4], deal=lambda n: n % 2)
    (group,) = analyse("r", {}, [uneven, even]).classes
    assert group.diagnosed_trial == uneven.trial.key
    assert isinstance(group.diagnosis, slots.UnevenDealing)
    assert group.diagnosis.advice[0].startswith("--worker-connections 4, as many as threads")
    (group,) = analyse("r", {}, [even]).classes
    assert group.diagnosed_trial == even.trial.key


def test_time_inside_the_app_is_not_waiting_for_slots() -> None:
    """Of a response of 2 s, either most of the extra second is before the app, or inside it."""
    for begins_ns, code in ((7 * NS // 10, "BelowPossible"), (NS // 5, "SlowedDown")):
        trial = slowed(server("asgi"), 8, 4)
        first, *others = trial.spans.spans
        late = (replace(span, start_ns=span.start_ns + begins_ns) for span in others)
        assert cell_of(with_spans(trial, [first, *late])).reason.code == code


# --- the base ---------------------------------------------------------------------------------


def test_a_diagnosis_without_rank_or_advice_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="no rank"):

        class Unranked(Diagnosis):
            """{seconds:duration}"""

            advice = ()
            seconds: float

    with pytest.raises(TypeError, match="no advice"):

        class Helpless(Diagnosis):
            """{seconds:duration}"""

            rank = 1
            seconds: float

    class Complete(Advised):
        """It takes {seconds:duration}"""

        rank = 1
        seconds: float

    diagnosis = Complete(seconds=1.0, advice=("wait", "or go"))
    assert str(diagnosis) == "It takes 1.00 s; wait; or go."
    assert diagnosis.values == {"seconds": 1.0, "advice": ("wait", "or go")}


def test_diagnoses_are_ranked_by_importance() -> None:
    """Limits of the load tool and idle slots come before what the server lacks, then failures and
    disturbances."""
    ordered = (
        cpu.LoadToolIsLimit, slots.IdleWhileClientsWait, slots.FullAcceptQueue, loop.BlockedLoop,
        cpu.BusyMachine, cpu.BusyWorkers, shared.Shared, slots.UnevenDealing, drift.Drift,
        drift.SlowFirst, slots.WaitingForSlots, failing.Shedding, failing.Failing,
        cpu.CoresTaken, cpu.CoresStolen,
    )  # fmt: skip
    ranks = [kind.rank for kind in ordered]
    assert ranks == sorted(set(ranks))
    by_rule = [[kind for kind in ordered if issubclass(kind, rule)] for rule in Diagnosis.rules]
    assert all(by_rule)
    assert {*chain(*by_rule)} == {*ordered}
