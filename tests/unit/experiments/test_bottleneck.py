"""Whether the server or the load generator is the bottleneck, from constructed cells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from tests.builders.analysis import launched, result_of
from tests.builders.document import column, rows, table
from tests.builders.null import COUNTS, null_trial
from workerlab import codec
from workerlab.analysis.diagnosis.cpu import CoresTaken
from workerlab.analysis.facts import TrialData
from workerlab.analysis.load_tool import ToolBusy
from workerlab.experiments.bottleneck import findings
from workerlab.experiments.bottleneck.command import FULL_SCALE, QUICK_SCALE, SERVER, Scale, cells
from workerlab.experiments.bottleneck.document import (
    ClosedInMidLoad,
    InvalidTrial,
    NotClosedInMidLoad,
    study,
)
from workerlab.experiments.bottleneck.findings import Factor
from workerlab.finding import Answer, Finding, Note
from workerlab.model.evidence import (
    ConnectionSample,
    Fault,
    Measurement,
    Observations,
    Record,
    Summary,
)
from workerlab.model.plan import Cell, Load, NullServer, Plan, Trial
from workerlab.model.result import (
    Breakdown,
    CoreWait,
    Document,
    Invalid,
    Report,
    Result,
    TrialResult,
    Usage,
)
from workerlab.notes import NotMeasured
from workerlab.report import FORMATS

A = TypeVar("A", bound=Answer)


def answer(document: Document, question: str, kind: type[A]) -> A:
    """The only answer whose question contains `question`."""
    (match,) = (finding for finding in document.findings if question in finding.question)
    assert isinstance(match, kind)
    return match


def verdict(document: Document, kind: type[A]) -> A:
    assert document.findings[0].question == "Is it the server or the load generator?"
    return answer(document, "the server or the load generator", kind)


def change(document: Document, factor: Factor) -> findings.ThroughputChange:
    return answer(document, factor.question, findings.ThroughputChange)


def rates(throughputs: Finding) -> list[float]:
    assert isinstance(throughputs, findings.Throughputs)
    return [round(rps) for rps in throughputs.rps]


FAILED = Note("the trial did not run to its end")
BOUND_REASON = ToolBusy(cores=0.98, share=0.98, of_cores=1)


def cell(
    rps: float | None,
    users: int = 500,
    *,
    tool: str = "locust",
    threads: int = 6,
    servers: int = 1,
    processes: int = 1,
    cores: float = 0.98,
    server_cores: float = 0.27,
    bound: bool | None = True,
) -> TrialResult:
    server = replace(SERVER, threads=threads, instances=servers)
    trial = Trial(Cell(server, tool, users, keepalive=True, processes=processes), 1)
    if rps is None:
        return Invalid(trial, "app", 0.0, FAILED)
    return result_of(
        trial,
        sleep_s=0.0,
        reason=FAILED,
        verdict="generator-bound" if bound else "saturated",
        throughput_rps=rps,
        response=Summary(mean=users / rps, p95=1.7 * users / rps),
        service=Summary(mean=0.0001),
        breakdown=Breakdown(users / rps, accept_queue_s=0.0, in_worker_s=0.001, service_s=0.0001),
        usage=Usage(server_cores, cores, 0.7),
        generator_bound=bound,
        bound_reasons=(BOUND_REASON,) if bound else (),
    )


# Measured by hand on a machine of four cores
MEASURED = (
    cell(650, 200),
    cell(544, 500),
    cell(505, 1000),
    cell(500, 1000, threads=1),
    cell(502, 1000, threads=200),
    cell(530, 500, servers=2),
    cell(490, 1000, servers=2),
    cell(1900, 500, processes=4),
    cell(4690, 500, tool="wrk", cores=0.3, server_cores=0.98, bound=False),
    cell(4500, 500, tool="fast", cores=0.4, server_cores=0.98, bound=False),
)


def document_of(*results: TrialResult, cores: int | None = 8) -> Document:
    return document_of_trials(thrice(results), cores=cores)


def document_of_trials(
    results: Iterable[TrialResult], *closing: TrialData, cores: int | None = 8
) -> Document:
    return study(Report("run", {"cores": cores}, None, tuple(results), (), {}), (), closing)


def thrice(results: Iterable[TrialResult]) -> list[TrialResult]:
    """Three launches of each, one percent apart."""
    return [
        launch
        for result in results
        for launch in launched(
            replace(result, throughput_rps=result.throughput_rps * noise)
            if isinstance(result, Result)
            else result
            for noise in (0.99, 1.0, 1 / 0.99)
        )
    ]


def test_the_generator_is_detected() -> None:
    document = document_of(*MEASURED)
    assert document.valid
    conclusion = verdict(document, findings.GeneratorIsBottleneck)
    assert conclusion.generator == "locust"
    assert conclusion.gain.value == pytest.approx(4690 / 544)
    assert str(conclusion).startswith(
        "The generator, locust, is the bottleneck, so its figures are a lower bound for the server:"
        " another one gets 8.62 times"
    )
    used, reason, *throughputs = conclusion.evidence
    assert used == findings.CoresUsed(1000, "locust", generator_cores=0.98, server_cores=0.27)
    assert reason == BOUND_REASON
    threads, servers, generators = [500, 505, 502], [[544, 530], [505, 490]], [544, 4690, 4500]
    assert list(map(rates, throughputs)) == [threads, *servers, generators]


def test_a_disturbed_trial_shows_no_bottleneck() -> None:
    """Locust got only 0.47 cores of a machine that other programs kept busy."""
    wait = CoreWait(share=0.4, worker_s=0.001, tool_s=0.004, others_cores=1.4, cores=2)
    slow = replace(cell(90, 500, cores=0.47, bound=None), core_wait=wait)
    document = document_of(*(result for result in MEASURED if result.trial != slow.trial), slow)
    disturbed = verdict(document, findings.Disturbed)
    assert isinstance(disturbed.disturbance, CoresTaken)
    assert disturbed.evidence == ()
    for factor in (Factor.USERS, Factor.TOOL):
        also = answer(document, factor.question, findings.AlsoDisturbed)
        assert isinstance(also.disturbance, CoresTaken)
        assert "(for up to 40 % of the response time)" in str(also)
    assert change(document, Factor.THREADS).answer == "No"  # compares other cells


def test_other_programs_that_delay_nothing_are_no_disturbance() -> None:
    idle = CoreWait(share=0.01, worker_s=0.0, others_cores=1.9, cores=2)
    document = document_of(*(replace(result, core_wait=idle) for result in MEASURED))
    verdict(document, findings.GeneratorIsBottleneck)


INTERVAL = r" \(95 % interval \d\.\d\d to \d\.\d\d\)"


@pytest.mark.parametrize(
    ("factor", "ratio", "sentence"),
    [
        (Factor.USERS, 505 / 650, "No: with 1000 users instead of 200, throughput is 0.78 times as"
         f" high{INTERVAL}, and each waits 6.44 times as long."),
        (Factor.THREADS, 505 / 500, "No: with 6 threads instead of 1 at 1000 users, throughput is"
         f" 1.01 times as high{INTERVAL}; a change below 20 % does not count, so threads are not"
         " the limit."),
        (Factor.SERVERS, 530 / 544, "No: with 2 servers instead of 1 at 500 users, throughput is"
         f" 0.97 times as high{INTERVAL}; a change below 20 % does not count, so servers are not"
         " the limit."),
        (Factor.PROCESSES, 1900 / 544, "Yes: with 4 processes instead of 1 at 500 users,"
         f" throughput is 3.49 times as high{INTERVAL}; the host was 70 % busy."),
        (Factor.TOOL, 4690 / 544, "Yes: with wrk instead of locust at 500 users, throughput is"
         f" 8.62 times as high{INTERVAL}; the figures of locust are a lower bound."),
    ],
)  # fmt: skip
def test_each_factor_has_its_effect(factor: Factor, ratio: float, sentence: str) -> None:
    effect = change(document_of(*MEASURED), factor)
    assert effect.ratio.value == pytest.approx(ratio)
    assert re.fullmatch(sentence, str(effect))
    assert effect.evidence


@pytest.mark.parametrize(("rps", "outcome"), [(500, "No"), (1200, "Hardly"), (1300, "Yes")])
def test_the_answer_about_more_users_depends_on_their_effect(rps: float, outcome: str) -> None:
    document = document_of(cell(500, 200), cell(rps, 1000))
    assert change(document, Factor.USERS).answer == outcome


def test_the_time_in_the_server_is_that_of_the_most_users() -> None:
    time = answer(document_of(*MEASURED), "Where is a request", findings.TimeInServer)
    assert time.users == 1000
    assert time.response_s == pytest.approx(1000 / 505)
    assert time.inside_s == pytest.approx(0.0011)
    assert [load.values["users"] for load in time.evidence] == [200, 500]


@pytest.mark.parametrize(
    ("rps", "outcome", "missing"),
    [(400, "Inconclusive", findings.CoresMissing(needed=5, available=2)), (1900, "Yes", None)],
)
def test_more_processes_on_too_few_cores_show_only_a_gain(
    rps: float, outcome: str, missing: findings.CoresMissing | None
) -> None:
    results = [*MEASURED[:7], cell(rps, 500, processes=4), *MEASURED[8:]]
    effect = change(document_of(*results, cores=2), Factor.PROCESSES)
    assert effect.answer == outcome
    assert (effect.remark if isinstance(effect.remark, findings.CoresMissing) else None) == missing


def busy_server(rps: float, users: int = 500, tool: str = "locust") -> TrialResult:
    return cell(rps, users, tool=tool, cores=0.3, server_cores=0.99, bound=False)


SERVER_AT_2000_RPS = tuple(busy_server(2000, users) for users in (200, 500, 1000))


def test_a_slower_generator_does_not_decide_while_another_is_undecided() -> None:
    results = thrice([*SERVER_AT_2000_RPS, busy_server(900, tool="threads")])
    scattered = launched(busy_server(rps, tool="wrk") for rps in (1500, 2300, 3500))
    verdict(document_of_trials([*results, *scattered]), findings.NoBottleneckFound)


def test_the_server_is_detected_if_no_generator_gets_more() -> None:
    """The generators have CPU to spare."""
    document = document_of(*SERVER_AT_2000_RPS, busy_server(2050, tool="wrk"))
    conclusion = verdict(document, findings.ServerIsBottleneck)
    assert (conclusion.gain, conclusion.unbeaten) == (None, "locust")
    assert conclusion.evidence[0].values == pytest.approx(
        {"users": 1000, "generator": "locust", "generator_cores": 0.3, "server_cores": 0.99}
    )
    assert str(conclusion) == (
        "The server is the bottleneck: no other generator gets more out of it than locust."
    )


def test_the_server_is_detected_if_a_second_server_helps() -> None:
    single = (cell(500, users, bound=False, cores=0.2) for users in (500, 1000))
    document = document_of(*single, cell(990, 1000, bound=False, cores=0.4, servers=2))
    conclusion = verdict(document, findings.ServerIsBottleneck)
    assert (conclusion.gain and conclusion.gain.value) == pytest.approx(990 / 500)
    assert "with more threads or servers locust gets 1.98 times the throughput" in str(conclusion)
    assert rates(conclusion.evidence[-1]) == [500, 990]


def test_single_trials_are_not_compared() -> None:
    """The load tool's own CPU still shows that it is the bottleneck."""
    document = document_of_trials(MEASURED)
    for factor in Factor:
        assert answer(document, factor.question, findings.TooFewTrials).needed == 3
    assert verdict(document, findings.GeneratorIsBottleneck).gain is None
    unbound = (replace(result, generator_bound=None, bound_reasons=()) for result in MEASURED)
    verdict(document_of_trials(unbound), findings.TooFewTrials)


def test_scattered_launches_are_inconclusive() -> None:
    locust = launched(map(cell, (38, 77, 60)))
    wrk = launched(cell(rps, tool="wrk") for rps in (77, 50, 38))
    effect = change(document_of_trials([*locust, *wrk]), Factor.TOOL)
    assert effect.answer == "Inconclusive"
    assert effect.remark == "more --trials would show whether this is an effect"


def test_the_fastest_of_the_slower_generators_is_reported() -> None:
    document = document_of(cell(540), cell(100, tool="wrk"), cell(530, tool="fast"))
    effect = change(document, Factor.TOOL)
    assert (effect.answer, effect.level) == ("No", "fast")
    assert effect.ratio.value == pytest.approx(530 / 540)


def test_a_generator_with_a_single_valid_launch_is_not_quoted() -> None:
    """wrk was the fastest, but in a single launch."""
    steady = thrice([cell(540, 200), cell(540), cell(1500, tool="fast")])
    document = document_of_trials([*steady, cell(5000, tool="wrk")])
    assert change(document, Factor.TOOL).level == "fast"
    gain = verdict(document, findings.GeneratorIsBottleneck).gain
    assert (gain and gain.value) == pytest.approx(1500 / 540)


def test_generators_are_not_compared_without_a_valid_reference() -> None:
    document = document_of(cell(650, 200), cell(None), cell(505, 1000), *MEASURED[-2:])
    assert Factor.TOOL.question not in [finding.question for finding in document.findings]
    assert verdict(document, findings.GeneratorIsBottleneck).gain is None


@pytest.mark.parametrize("results", [(), (cell(None),), (cell(500, bound=None),)])
def test_the_verdict_is_inconclusive_without_comparisons(results: tuple[TrialResult, ...]) -> None:
    document = document_of(*results)
    verdict(document, findings.NoBottleneckFound)
    assert document.valid == (bool(results) and isinstance(results[0], Result))


def test_invalid_cells_are_named_and_left_out() -> None:
    document = document_of(*MEASURED[:-1], cell(None, 500, tool="fast"))
    assert not document.valid
    note, *others = document.notes
    assert [other.values["trial"] for other in others] == [2, 3]
    assert note == InvalidTrial(
        tool="fast", processes=None, users=500, threads=6, servers=None, trial=1, reason=FAILED
    )
    assert str(note).startswith("fast at 500 users, 6 threads, trial 1: ")
    assert str(note) in " ".join(FORMATS["table"](document).split())
    verdict(document, findings.GeneratorIsBottleneck)


def test_a_cell_without_a_success_shows_its_failed_requests() -> None:
    """Its verdict is that of all its trials."""
    without = replace(cell(1.0, tool="fast"), throughput_rps=0.0, failed=7, errors={"reset": 7})
    failed = launched([cell(None, tool="fast"), without, cell(None, tool="fast")])
    document = document_of_trials([*thrice(MEASURED[:2]), *failed])
    (row,) = [row for row in rows(table(document, Factor.TOOL.title)) if row["tool"] == "fast"]
    assert (row["trials"], row["throughput_rps"], row["verdict"]) == (None, 0.0, "invalid")
    assert (row["failed"], row["errors"]) == (7, {"reset": 7})


def test_each_table_is_about_one_factor() -> None:
    document = document_of(*MEASURED)
    by_threads = [row[:2] for row in table(document, Factor.THREADS.title).rows]
    assert by_threads == [(1000, 1), (1000, 6), (1000, 200)]
    assert table(document, Factor.TOOL.title).rows[0][0] == "locust"
    # Only on the usual server
    assert column(table(document, Factor.USERS.title), "users") == [200, 500, 1000]
    assert all(len(row) == len(table.columns) for table in document.tables for row in table.rows)


def test_each_load_configuration_has_a_chart_line() -> None:
    (chart,) = document_of(*MEASURED).charts
    assert {line.name: len(line.points) for line in chart.series} == {
        "locust": 3, "locust, 1 thread": 1, "locust, 200 threads": 1, "locust, 2 servers": 2,
        "locust, 4 processes": 1, "wrk": 1, "fast": 1,
    }  # fmt: skip


@pytest.mark.parametrize("scale", [FULL_SCALE, QUICK_SCALE])
def test_every_planned_cell_differs_from_another_in_one_factor(scale: Scale) -> None:
    planned = cells("locust", ("wrk", "fast"), scale)
    assert len(set(planned)) == len(planned)
    plan = Plan("bottleneck", planned, 1, 5, 1, "python", None, {}, (), duration_s=3.0)
    assert codec.decode(codec.encode(plan), Plan).cells == planned
    for cell in planned:
        differences = [
            sum(factor.level(cell) != factor.level(other) for factor in Factor) for other in planned
        ]
        assert 1 in differences


def test_a_second_server_that_reduces_throughput_shows_no_server_bottleneck() -> None:
    slower = (cell(250, users, servers=2) for users in (500, 1000))
    document = document_of(*MEASURED[:5], *slower, *MEASURED[7:])
    effect = change(document, Factor.SERVERS)
    assert (effect.answer, effect.remark) == ("No", None)
    assert effect.ratio.value == pytest.approx(250 / 544)
    verdict(document, findings.GeneratorIsBottleneck)


# --- both sides, and the phases --------------------------------------------------------------


def test_one_and_two_servers_get_up_to_1500_users() -> None:
    planned = cells("locust", ("wrk",), FULL_SCALE)
    users = {servers: {cell.concurrency for cell in planned
                       if cell.server.instances == servers and cell.tool == "locust"
                       and cell.processes == 1 and cell.server.threads == SERVER.threads}
             for servers in (1, 2)}  # fmt: skip
    assert users == {1: {200, 500, 1000, 1500}, 2: {500, 1000, 1500}}
    assert {cell.concurrency for cell in planned if cell.server.threads == 200} == {1000}


@pytest.mark.parametrize(("cores", "processes"), [(None, {1, 4}), (3, {1, 4}), (4, {1, 3, 4})])
def test_three_generator_processes_are_planned_on_four_cores(
    cores: int | None, processes: set[int]
) -> None:
    planned = cells("locust", (), FULL_SCALE, cores)
    assert {cell.processes for cell in planned} == processes
    assert {cell.concurrency for cell in planned if cell.processes == 3} <= {1500}


def test_a_table_shows_both_sides_of_each_load() -> None:
    usage = Usage(
        server_rss_bytes=30 << 20, generator_rss_bytes=90 << 20, received_bytes_per_s=317e3,
        connect_calls_s=0.0001, send_calls_s=0.001, receive_calls_s=0.9,
    )  # fmt: skip
    locust = replace(cell(505, 1000), usage=usage)
    first, *_, row = rows(table(document_of(*MEASURED[:2], locust), "Both sides of each load"))
    assert (row["users"], row["received_bytes_per_s"]) == (1000, 317e3)
    assert (row["generator_rss_bytes"], row["server_rss_bytes"]) == (90 << 20, 30 << 20)
    calls = ("connect_calls_s", "send_calls_s", "receive_calls_s", "service_mean_s")
    assert [row[name] for name in calls] == [0.0001, 0.001, 0.9, 0.0001]
    assert "tool" not in row  # it is the same in all of them
    assert first["received_bytes_per_s"] is None


def closing(*, churn_s: float | None) -> TrialData:
    """20 users for 8 s with responses of 0.1 s. From `churn_s` on, the server closes their
    connections one by one within 2 s, and each user reconnects."""
    load = Load(20, 20, 8.0, 68.0, keepalive=True, ramp_s=2.0, timed=True)
    samples = []
    for tenth in range(85):
        at_s = tenth / 10
        users = round(20 * min(1.0, at_s / 2)) if at_s <= 8 else 0
        closed = 0 if churn_s is None else round(20 * min(1.0, max(0.0, (at_s - churn_s) / 2)))
        closed = 20 if at_s > 8 else closed
        established = {"ESTABLISHED": users}
        samples.append(ConnectionSample(
            1 + round(at_s * 1e9), established | {"TIME_WAIT": closed},
            established | {"CLOSE_WAIT": closed // 9}, {}, 0,
        ))  # fmt: skip
    answers = [(1 + round(tenth * 1e8), 100_000_000) for tenth in range(1, 80) for _ in range(9)]
    measurement = Measurement(711, 0, {}, 8.0, 89.0, Summary(mean=0.1), origin_ns=1,
                              answers_ns=tuple(answers))  # fmt: skip
    return null_trial(
        "phases",
        "locust",
        load,
        measurement,
        record=Record("phases-1", None, load_start_ns=1, load_end_ns=8_500_000_001),
        null=NullServer(delay_s=(0.1, 0.1), requests_per_connection=40),
        counts=replace(COUNTS, connections=40 if churn_s else 20),
        observations=Observations(connections=tuple(samples)),
    )


def test_connections_that_close_are_a_phase_unless_they_close_at_the_end() -> None:
    document = document_of_trials(thrice(MEASURED), closing(churn_s=5))
    closed = answer(document, "Which phases", ClosedInMidLoad)
    phases = {phase.title: phase for phase in closed.phases}
    assert list(phases) == ["Ramp-up", "Steady", "Churn"]
    steady = phases["Steady"].why.values
    assert (steady["connections"], steady["established"]) == (20, 40)
    churn = phases["Churn"].why.values
    assert churn["states"] == {"TIME_WAIT": 20, "CLOSE_WAIT": 2}
    assert churn["p50_s"] == pytest.approx(0.1)
    assert 4.9 <= closed.at_s <= 5.3
    assert (closed.requests, closed.opened, closed.users) == (40, 40, 20)
    assert "1 LISTEN and 40 ESTABLISHED" in " ".join(FORMATS["table"](document).split())
    assert document.valid
    closed_at_the_end = document_of_trials(thrice(MEASURED), closing(churn_s=None))
    answer(closed_at_the_end, "Which phases", NotClosedInMidLoad)


def test_a_failed_load_for_the_phases_makes_the_document_invalid() -> None:
    data = closing(churn_s=5)
    broken = replace(data, record=replace(data.record, fault=Fault("tool", "it died")))
    document = document_of_trials(thrice(MEASURED), broken)
    assert not document.valid
    assert not any("phases" in finding.question for finding in document.findings)
    (note,) = document.notes
    assert isinstance(note, NotMeasured)
    assert "the load whose connections the server closes" in str(note)
