"""What the comparison of generators concludes, from constructed trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import launched, with_measurement, with_observations
from tests.builders.document import answer, names, rows
from tests.builders.null import null_trial
from workerlab.analysis.facts import TrialData
from workerlab.experiments.generators import findings
from workerlab.experiments.generators.command import ComparedGenerator, cells, generators_of
from workerlab.experiments.generators.document import (
    LoadsDisturbed,
    LoadsStoodStill,
    UnreliableCount,
    study,
)
from workerlab.experiments.generators.usage import GeneratorLoad, usage_of
from workerlab.finding import Answer, Finding, Inconclusive, stored
from workerlab.model.evidence import (
    Fault,
    Measurement,
    NullCounts,
    Observations,
    Pause,
    ProcessSample,
    Record,
    Summary,
)
from workerlab.model.plan import Load, NullServer
from workerlab.model.result import Document
from workerlab.notes import NotMeasured, ToolLeftOut
from workerlab.plan import null_plan
from workerlab.report import text
from workerlab.run_store import Run

NS = 1_000_000_000
STEP_S = 0.25
STARTUP_S = 1.5  # until a tool sends its first request


def trial(
    tool: str = "fast",
    connections: int = 10,
    *,
    rps: float = 1000.0,
    cores: float = 0.5,
    server: float = 0.1,
    others: float = 0.0,
    waits: float = 0.0,
    low: bool = False,
    processes: int = 1,
    start_cpu_s: float = 1.2,
    duration_s: float = 4.0,
    origin: bool = True,
    p50_s: float = 0.002,
    server_s: float = 0.00001,
    delay_s: float = 0.0,
) -> TrialData:
    """A tool that starts up for STARTUP_S with `start_cpu_s` of CPU, then loads steadily."""
    key = f"{'low' if low else 'full'}-{tool}-{connections}"
    load = Load(connections, 1, duration_s, 60.0, keepalive=True, processes=processes, timed=True)
    begin_ns = 50 * NS

    def sample(number: int) -> ProcessSample:
        at_s = number * STEP_S
        loaded_s = max(0.0, at_s - STARTUP_S)
        tool_s = start_cpu_s * min(1.0, at_s / STARTUP_S) + cores * loaded_s
        return ProcessSample(
            at_ns=begin_ns + round(at_s * NS),
            server_cpu_s=server * loaded_s,
            tool_cpu_s=tool_s,
            host_busy_s=tool_s + (server + others) * loaded_s,
            server_rss_bytes=1 << 20,
            tool_rss_bytes=(10 + number) << 20,
            host_memory_bytes=1 << 30,
            server_wait_s=0.0,
            tool_wait_s=waits * loaded_s,
        )

    samples = tuple(map(sample, range(int((STARTUP_S + duration_s) / STEP_S) + 1)))
    requests = round(rps * duration_s)
    response = Summary(mean=p50_s, p50=p50_s, p99=2 * p50_s)
    service = Summary(mean=server_s, p50=server_s, p99=server_s)
    cpu_s = server * duration_s
    return null_trial(
        key,
        tool,
        load,
        Measurement(requests, 0, {}, duration_s, rps, response,
                    origin_ns=begin_ns + round(STARTUP_S * NS) if origin else None),
        null=NullServer(delay_s=(0.05, 0.05) if low else (delay_s, delay_s), core=1),
        record=Record(
            f"{key}-1", None, load_start_ns=begin_ns,
            load_end_ns=begin_ns + round((STARTUP_S + duration_s) * NS),
            tool_cpu_s=start_cpu_s + cores * duration_s,
        ),
        counts=NullCounts(requests, requests, connections, connections, cpu_s, 0.0, service),
        observations=Observations(processes=samples, cores=2),
    )  # fmt: skip


def run(*notes: Finding, cores: int = 2, **details: object) -> Run:
    plan = null_plan("generators", (), notes, {"server_core": 1, "keepalive": True, **details})
    return Run(Path("a run"), plan, {"cores": cores}, {})


FOUR_TOOLS = (
    trial("threads", 1, rps=1000, cores=0.9),
    trial("threads", 10, rps=1050, cores=1.02),
    trial("processes", 1, rps=900, cores=0.9),
    trial("processes", 10, rps=1700, cores=1.7),
    trial("coroutines", 10, rps=4000, cores=1.0),
    trial("fast", 10, rps=60_000, cores=1.0, server=0.95),
    trial("coroutines", 25, low=True, rps=490, cores=0.15),
    trial("threads", 25, low=True, rps=480, cores=0.4),
    trial("fast", 25, low=True, rps=495, cores=0.01),
)
PROCESSES = trial("processes", 1), trial("processes", 10, rps=1800, cores=1.7)


def thrice(trials: tuple[TrialData, ...]) -> list[TrialData]:
    """Three launches of each, all alike."""
    return [launch for data in trials for launch in launched([data] * 3)]


def launches(tool: str, *rates: float) -> list[TrialData]:
    """A launch with 10 connections at each of these rates."""
    return launched(trial(tool, 10, rps=rps) for rps in rates)


def test_single_trials_are_not_compared() -> None:
    first_three = study(run(), FOUR_TOOLS).findings[:3]
    assert [finding.values for finding in first_three] == [{"reason": findings.TOO_FEW_TRIALS}] * 3


def test_generators_whose_launches_scatter_are_tied() -> None:
    scattered = (*launches("fast", 900, 1500, 1200), *launches("wrk", 1000, 1300, 1050))
    assert answer(study(run(), scattered), findings.MostRequests).tied == ("wrk",)


def concluded(
    kind: type[Answer], trials: tuple[TrialData, ...] = FOUR_TOOLS, cores: int = 2
) -> Any:
    return answer(document_of(trials, cores), kind)


def reasons(*trials: TrialData) -> list[str]:
    """The reasons of the inconclusive answers."""
    answers = document_of(trials).findings
    return [answer.reason for answer in answers if isinstance(answer, Inconclusive)]


def document_of(trials: tuple[TrialData, ...], cores: int = 2) -> Document:
    document = study(run(cores=cores), thrice(trials))
    assert text.render(document)
    return document


# --- one generator at one load --------------------------------------------------------------------


@given(
    cores=st.floats(0.01, 1.9),
    rps=st.floats(10, 90_000),
    start_cpu_s=st.floats(0, 3),
    origin=st.booleans(),
)
def test_cpu_per_request_is_that_of_the_load_alone(
    cores: float, rps: float, start_cpu_s: float, origin: bool
) -> None:
    """Whatever its startup costs, and whether or not it reports when the load began."""
    result = usage_of(trial(rps=rps, cores=cores, start_cpu_s=start_cpu_s, origin=origin))
    sent_rps = round(rps * 4.0) / 4.0
    assert result.cores == pytest.approx(cores, abs=1e-6)
    assert result.cpu_per_request_s == pytest.approx(cores / sent_rps, rel=1e-6)
    assert result.cpu_s == pytest.approx(start_cpu_s + 4 * cores)


def test_cpu_of_other_programs_is_measured() -> None:
    busy, alone = usage_of(trial(others=0.7)).core_wait, usage_of(trial()).core_wait
    assert busy.others_cores == pytest.approx(0.7)
    assert alone.others_cores == pytest.approx(0.0, abs=1e-9)
    assert not busy.disturbed  # neither the tool nor the server waited for them


def test_values_that_were_not_observed_are_missing() -> None:
    data = trial()
    result = usage_of(with_observations(data, processes=data.observations.processes[:2]))
    assert (result.cores, result.cpu_per_request_s, result.rps) == (None, None, 1000.0)
    result = usage_of(with_observations(data, missing={"processes": "it died"}))
    assert (result.cores, result.memory_bytes, result.host_busy) == (None, None, None)


def test_client_overhead_is_the_reported_time_minus_the_servers() -> None:
    measured = usage_of(trial(p50_s=0.052, server_s=0.050))
    load = GeneratorLoad(valid=(measured,), cell=measured.cell)
    assert load.overhead_s("p50") == pytest.approx(0.002)
    assert load.overhead_s("p99") == pytest.approx(0.054)


def test_a_count_that_differs_from_the_servers_is_unreliable() -> None:
    data = trial()
    result = usage_of(replace(data, null=replace(data.null, answers=3000)))
    assert result.doubt == "it counted 4000 responses, but the server sent 3000; one is wrong"
    uncounted = study(run(), (replace(data, null=None),))
    assert not uncounted.valid
    assert any(isinstance(note, UnreliableCount) for note in uncounted.notes)


def test_a_load_whose_requests_fail_is_not_compared() -> None:
    """Ports may run out with a new connection for each request."""
    few, many = (with_measurement(trial(rps=9000), failed=failed) for failed in (9, 900))
    assert usage_of(few).doubt is None
    failing = document_of((many, trial("wrk", rps=5000)))
    assert answer(failing, findings.MostRequests).best.name == "wrk"
    assert not failing.valid
    reason = "900 requests failed, with 36,000 responses"
    assert UnreliableCount("fast", 10, reason) in failing.notes


# --- conclusions ------------------------------------------------------------------------------


def test_the_least_cpu_at_a_low_rate_is_reported() -> None:
    least = concluded(findings.LeastCpu)
    assert (least.rps, least.names) == (495, ("fast",))
    assert (least.cpu_s, least.tied_cpu_s) == (pytest.approx(0.01 / 495), None)
    assert (least.python.name, least.second_python.name) == ("coroutines", "threads")
    assert least.python.cpu_s == pytest.approx(0.15 / 490)


def test_generators_within_the_clock_resolution_are_tied() -> None:
    fast, wrk = (
        trial(tool, 25, low=True, rps=495, cores=cores)
        for tool, cores in (("fast", 0.010), ("wrk", 0.011))
    )
    least = concluded(findings.LeastCpu, (fast, wrk))
    assert least.names == ("fast", "wrk")
    assert (least.cpu_s, least.tied_cpu_s) == (None, pytest.approx(0.011 / 495))


def test_a_generator_below_the_low_rate_is_slow_unless_the_machine_was_paused() -> None:
    slow = trial("ab", 25, low=True, rps=100, cores=0.0001)
    least = concluded(findings.LeastCpu, (*FOUR_TOOLS, slow))
    assert least.names == ("fast",)
    assert least.evidence[-1] == findings.SlowAtLowRate("ab", pytest.approx(100))
    pause = Pause(slow.record.load_end_ns - 2 * NS, slow.record.load_end_ns)
    trials = (*FOUR_TOOLS, with_observations(slow, pauses=(pause,)))
    evidence = concluded(findings.LeastCpu, trials).evidence
    assert not any(isinstance(finding, findings.SlowAtLowRate) for finding in evidence)
    assert LoadsStoodStill(1, len(trials)) in study(run(), trials).notes


def test_the_highest_rate_is_a_lower_bound_if_the_server_was_busy() -> None:
    most = concluded(findings.MostRequests)
    best, python = most.best, most.python
    assert (best.name, best.rps, best.connections) == ("fast", pytest.approx(60_000), 10)
    assert best.cores == pytest.approx(1.0)
    assert best.server_busy == pytest.approx(0.95)
    assert (python.name, python.rps) == ("coroutines", pytest.approx(4000))
    assert python.server_busy is None
    machine = concluded(findings.MachineCeiling)
    assert machine.lower_bound_because == findings.SERVER_WAS_BUSY
    assert machine.ceiling.reliable_rps == pytest.approx(20_000)


def test_the_gil_shows_in_threads_that_do_not_grow() -> None:
    growth = concluded(findings.ThreadGrowth)
    assert growth.gil == findings.IN_THREADS
    assert (growth.fewer_threads, growth.threads) == (1, 10)
    assert growth.growth.value == pytest.approx(1.05)
    assert growth.thread_cores == pytest.approx(1.02)
    assert growth.process_cores == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("threads", "processes", "cores", "gil", "remark"),
    [
        ((1900, 1.0), (1800, 1.7), 2, findings.NOT_HERE, ""),
        ((1050, 1.8), (1800, 1.7), 2, findings.NOT_HERE,
         "; threads that share a GIL do not use that many"),
        ((1000, 0.8), (1000, 0.8), 1, findings.INCONCLUSIVE, ", but processes used no more than"
         " 0.80 either; this machine has 1 core, and the server needs one"),
    ],
)  # fmt: skip
def test_the_gil_is_not_blamed_without_evidence(
    threads: tuple[float, float], processes: tuple[float, float], cores: int, gil: str, remark: str
) -> None:
    """`threads`, `processes`: rate and cores of ten of them."""
    many = (
        trial(tool, 10, rps=rps, cores=used)
        for tool, (rps, used) in (("threads", threads), ("processes", processes))
    )
    growth = concluded(findings.ThreadGrowth, (trial("threads", 1), *many), cores)
    assert (growth.gil, growth.remark) == (gil, remark)


def test_disturbed_or_scattered_loads_show_nothing_about_the_gil() -> None:
    single = trial("threads", 1)
    waited = trial("threads", 10, others=0.6, waits=0.4)
    assert any("Other programs" in reason for reason in reasons(single, waited, *PROCESSES))
    assert findings.TOO_FEW_LEVELS in reasons(single, *PROCESSES)
    busy_server = trial("threads", 10, rps=1050, cores=1.02, server=0.95)
    assert findings.TOO_FEW_LEVELS in reasons(single, busy_server, *PROCESSES)
    assert findings.TOO_FEW_LEVELS in reasons(single, trial("threads", 10, rps=0), *PROCESSES)
    scattered = (*launches("threads", 900, 1300, 1700), *thrice((single, *PROCESSES)))
    growth = answer(study(run(), scattered), findings.ThreadGrowth)
    assert growth.gil == findings.INCONCLUSIVE
    assert "more --trials" in growth.remark


def test_a_rate_limited_by_the_delay_is_no_limit_of_the_generator() -> None:
    """20 threads on a server that takes 80 ms send 250 requests/s, as any tool would."""
    delayed = (
        trial("threads", 20, rps=248, delay_s=0.08),
        trial("threads", 80, rps=960, delay_s=0.08),
        trial("processes", 20, rps=249, delay_s=0.08),
    )
    assert usage_of(delayed[0]).delay_rps == pytest.approx(250)
    assert concluded(findings.MostRequests, delayed).best.delay_rps == pytest.approx(1000)
    machine = concluded(findings.MachineCeiling, delayed)
    assert machine.lower_bound_because == findings.DELAY_WAS_LIMIT
    assert findings.TOO_FEW_LEVELS in reasons(*delayed)
    beyond = [trial("threads", level, rps=1050, delay_s=0.08) for level in (160, 200)]
    beyond.append(trial("processes", 200, rps=1800, cores=1.7, delay_s=0.08))
    assert concluded(findings.ThreadGrowth, (*delayed, *beyond)).gil == findings.IN_THREADS


@pytest.mark.parametrize(
    ("delay_s", "phrase"),
    [((0.0, 0.0), "does nothing;"), ((0.08, 0.08), "responds after 80.0 ms;"),
     ((0.0, 0.16), "responds after 0.00 s to 160 ms;")],
)  # fmt: skip
def test_the_title_shows_the_delay_and_the_table_its_limit(
    delay_s: tuple[float, float], phrase: str
) -> None:
    document = study(run(delay_s=delay_s), FOUR_TOOLS)
    assert phrase in " ".join(text.render(document).split())
    assert ("delay_rps" in names(document.tables[0])) == any(delay_s)


def test_processes_and_coroutines_are_planned_as_a_grid() -> None:
    generators = tuple(generators_of(["coroutines", "processes-coroutines"], 2, (4, 6, 8)))
    planned = cells(generators, (80, 100, 120), 60.0, True, None, (0.08, 0.08), per_process=True)
    full = [cell for cell in planned if cell.name.startswith("full-")]
    grid = {(cell.processes, cell.concurrency) for cell in full if cell.processes > 1}
    assert grid == {(count, count * users) for count in (4, 6, 8) for users in (80, 100, 120)}
    assert {cell.server.null.delay_s for cell in full if cell.server.null} == {(0.08, 0.08)}
    assert {cell.concurrency for cell in full if cell.tool == "coroutines"} == {80, 100, 120}
    low = [cell for cell in planned if cell.name.startswith("low-")]
    loads = {(cell.concurrency, cell.server.null.delay_s) for cell in low if cell.server.null}
    assert loads == {(25, (0.05, 0.05))}


def test_a_tool_with_more_processes_than_low_rate_connections_is_planned_at_full_rate() -> None:
    generators = tuple(generators_of(["fast"], 40, ()))
    planned = cells(generators, (64,), 1.0, True, None)
    names = {(cell.name.partition("-")[0], cell.processes) for cell in planned}
    assert names == {("low", 1), ("full", 1), ("full", 40)}


def test_a_tool_that_only_counts_sends_no_more_than_the_delay_allows() -> None:
    (*_, cell) = cells([ComparedGenerator("ab")], (20,), 2.0, False, None, (0.0, 0.16))
    assert cell.load.requests == 500


def test_the_table_shows_the_sending_processes() -> None:
    grid = (trial("processes", 10), trial("processes-coroutines", 320, processes=4))
    senders = rows(study(run(), grid).tables[0])
    assert {(row["processes"], row["connections"]) for row in senders} == {(10, 10), (4, 320)}


def test_client_overhead_is_compared_by_generator() -> None:
    fast, threads = trial("fast", p50_s=0.052, server_s=0.050), trial("threads", p50_s=0.004)
    overhead = concluded(findings.ClientOverhead, (fast, threads))
    assert (overhead.affected, overhead.loads) == (1, 2)
    assert (overhead.most.name, overhead.least.name) == ("threads", "fast")
    assert len(overhead.evidence) == 2
    below_resolution = trial("fast", p50_s=0.05, server_s=0.0499)
    overhead = concluded(findings.ClientOverhead, (below_resolution, threads))
    assert (overhead.affected, overhead.loads, overhead.least.name) == (1, 2, "fast")
    assert overhead.least.overhead_s == 0.0
    rounded = trial("locust", p50_s=0.0, server_s=0.0004)  # to whole milliseconds
    overhead = concluded(findings.ClientOverhead, (rounded, threads))
    assert (overhead.loads, overhead.least.name) == (1, "threads")


def test_waiting_for_a_core_or_a_busy_server_is_not_client_overhead() -> None:
    disturbed = trial("fast", others=0.9, waits=0.6)
    assert findings.SERVER_BUSY_OR_DISTURBED in reasons(disturbed)
    assert any(isinstance(note, LoadsDisturbed) for note in study(run(), [disturbed]).notes)
    assert findings.SERVER_BUSY_OR_DISTURBED in reasons(trial("fast", rps=60_000, server=0.97))


def test_without_measurements_all_answers_are_inconclusive() -> None:
    assert [finding.values["reason"] for finding in findings.findings((), (), None)] == [
        findings.NO_CPU_AT_LOW_RATE,
        findings.NOT_MEASURED,
        findings.TOO_FEW_LEVELS,
        findings.NOT_MEASURED,
        findings.SERVER_BUSY_OR_DISTURBED,
    ]


# --- the document --------------------------------------------------------------------------------


def test_tables_show_every_load_and_notes_every_gap() -> None:
    record = Record("full-locust-10-1", Fault("tool", "it died"))
    broken = replace(trial("locust", 10), measurement=None, record=record)
    left_out = stored(ToolLeftOut("ab is not installed. Install it."))
    document = study(run(left_out), (*FOUR_TOOLS, broken))
    assert [len(table.rows) for table in document.tables] == [6, 6, 3, 3]
    for table in document.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert len({column.name for column in table.columns}) == len(table.columns)
    assert not document.valid
    assert left_out in document.notes
    missing = [note.values["what"] for note in document.notes if isinstance(note, NotMeasured)]
    assert missing == ["locust at 10 connections"]
    assert text.render(document)
    assert study(run(left_out), FOUR_TOOLS).valid
