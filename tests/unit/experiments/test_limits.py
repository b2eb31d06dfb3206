"""What a run of `limits` concludes, from constructed steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import with_measurement, with_observations, with_record
from tests.builders.document import answer, rows
from tests.builders.null import null_trial
from workerlab import codec
from workerlab.analysis.facts import TrialData
from workerlab.durations import predicted_s
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments import planning
from workerlab.experiments.limits import findings
from workerlab.experiments.limits.command import Extent, left_out, plan_of, setup, steps
from workerlab.experiments.limits.document import study
from workerlab.experiments.limits.options import LimitsOptions
from workerlab.experiments.limits.results import FilesRanOut, PortsRanOut, StepResult, results_of
from workerlab.finding import Answer, stored
from workerlab.model.evidence import (
    ConnectionSample,
    Fault,
    Measurement,
    NullCounts,
    Observations,
    ProcessSample,
    Record,
    Summary,
)
from workerlab.model.plan import Load, NullServer, Plan
from workerlab.model.result import Document
from workerlab.notes import NotMeasured, ToolLeftOut
from workerlab.plan import null_cell, null_plan
from workerlab.report import text
from workerlab.run_store import Run

NULL = NullServer(delay_s=(0.0, 3.0))


def step(
    name: str,
    requests: int = 100,
    connections: int = 100,
    *,
    wall_s: float = 3.1,
    delays_s: float = 150.0,
    longest_s: float = 3.0,
    errors: Mapping[str, int] | None = None,
    memory_bytes: int = 20 << 20,
    why_not: str | None = None,
    **load: Any,
) -> TrialData:
    failed = sum((errors or {}).values())
    fault = Fault("tool", why_not) if why_not else None
    measurement = Measurement(
        requests - failed, failed, errors or {}, wall_s, requests / wall_s, Summary(), sent=requests
    )
    service = Summary(mean=delays_s / requests, max=longest_s)
    memory = ((1, None), (2, memory_bytes), (3, memory_bytes // 2))
    samples = tuple(ProcessSample(at, 0.0, 0.0, 0.0, 1, size) for at, size in memory)
    return null_trial(
        name,
        "fast",
        Load(connections, requests, 1.0, 60.0, keepalive=True, **load),
        measurement,
        null=NULL,
        record=Record(f"{name}-1", fault, load_start_ns=1, load_end_ns=2, tool_cpu_s=1.5),
        counts=NullCounts(requests, requests, connections, connections, 0.1, delays_s, service),
        observations=Observations(processes=samples),
    )


def mistake(name: str, form: str, *, duration_s: float = 0.5, **values: Any) -> TrialData:
    """`values`: details of its document, and `requests`, `connections` at the server."""
    details = {"mistake": name, "form": form, "code": "", "returned": {}, "complaints": {},
               "time_wait": None, **values}  # fmt: skip
    requests, connections = values.get("requests", 0), values.get("connections", 0)
    counts = NullCounts(requests, requests, connections, connections, 0.1, 0.0, Summary())
    measurement = Measurement(requests, 0, {}, duration_s, None, Summary(), details=details)
    key = f"{name}-{form}".replace("_", "-")
    return null_trial(key, f"{name}-{form}", Load(20, 100, 1.0, 60.0), measurement, counts=counts)


CHAPTER = {"sync": "clients", "async": "clients", "kept": "far", "bodies": "far", "new": "far",
           "ports": "ports", "time": "ports", "all": "memory", "dropped": "far",
           "aiohttp": "far", "missing": "mistakes", "session": "mistakes"}  # fmt: skip


def step_details(*trials: TrialData) -> dict[str, dict[str, str]]:
    """The details of these steps in a plan."""
    details = {}
    for name in (data.trial.cell.name for data in trials):
        chapter = CHAPTER.get(name.partition("-")[0], "unbounded")
        what = name.rpartition("-")[2] if chapter == "mistakes" else "bounded"
        details[name] = {"chapter": chapter, "what": what}
    return details


def results(*trials: TrialData) -> list[StepResult]:
    return results_of(trials, step_details(*trials))


LEFT_OUT = stored(ToolLeftOut("the moon"))


def document_of(*trials: TrialData) -> Document:
    plan = null_plan("limits", (), (LEFT_OUT,), {"steps": step_details(*trials)})
    document = study(Run(Path("run"), plan, {}, {}), trials)
    assert text.render(document)
    return document


def has_answer(document: Document, kind: type[Answer]) -> bool:
    return any(isinstance(finding, kind) for finding in document.findings)


def test_asynchronous_requests_gain_time() -> None:
    at_once = step("async-100-coroutines")
    document = document_of(step("sync-100", connections=1, wall_s=155.0), at_once)
    gain = answer(document, findings.AsynchronousGain)
    assert (gain.at_once.took_s, gain.longest_answer_s, gain.delays_s) == (3.1, 3.0, None)
    assert (gain.one_by_one and gain.one_by_one.took_s) == 155.0
    assert gain.times == pytest.approx(50.0)
    assert len(gain.evidence) == 2
    assert gain.trials == ("sync-100-1", "async-100-coroutines-1")
    assert document.valid
    # Without the slow step, the server's delays show the gain
    gain = answer(document_of(at_once), findings.AsynchronousGain)
    assert (gain.longest_answer_s, gain.one_by_one, gain.delays_s) == (3.0, None, 150.0)
    # Failed requests take no time
    failing = step("sync-100", connections=1, wall_s=1.0, errors={"refused": 99})
    gain = answer(document_of(failing, at_once), findings.AsynchronousGain)
    assert (gain.one_by_one, gain.delays_s) == (None, 150.0)
    failing = step("async-100-fast", wall_s=0.1, errors={"refused": 99})
    assert not has_answer(document_of(failing), findings.AsynchronousGain)


def test_ideal_time_is_limited_by_connections_or_by_the_longest_delay() -> None:
    many = step("kept-1", 1000, 10, delays_s=500.0, longest_s=1.0, wall_s=55.0)
    single = step("kept-2", 10, 10, delays_s=5.0, longest_s=1.0, wall_s=1.1)
    ideal = [(result.ideal_s, result.ratio) for result in results(many, single)]
    assert ideal == [(50.0, pytest.approx(1.1)), (1.0, pytest.approx(1.1))]
    failing = step("unbounded-1", 1000, 1000, errors={"no_files": 10}, open_files=990)
    document = document_of(failing)
    row = rows(document.tables[0])[0]
    assert (row["ideal_s"], row["wall_to_ideal"]) == (None, None)
    assert (row["failed"], row["errors"]) == (10, {"no_files": 10})
    assert document.charts == ()


def test_too_few_files_are_a_limit_that_a_bound_avoids() -> None:
    errors = {"no_files": 8980, "reset": 1}
    unbounded = step("unbounded-10000", 10_000, 10_000, errors=errors, open_files=1024)
    document = document_of(unbounded, step("bounded-10000", 10_000, 900))
    reached = answer(document, findings.LimitReached)
    assert reached.limit == "files"
    assert reached.causes == (FilesRanOut(8980, 10_000, 1024, needed=10_064),)
    assert answer(document, findings.WaysOut).worked == ("at most 900 at once",)
    assert document.valid  # the step is meant to fail


@pytest.mark.parametrize(
    ("raised", "bounded", "sentence"),
    [
        (0, 0, "Without failures: at most 1000 at once; at most 1 at once. 1000 connections took"
         " 2.00 s, 1 took 9.00 s."),
        (3, 0, "Without failures: at most 1 at once. With failures: at most 1000 at once (3"
         " failed)."),
        (3, 2, "With failures: at most 1000 at once (3 failed); at most 1 at once (2 failed)."),
    ],
)  # fmt: skip
def test_ways_out_are_listed_with_their_failures(raised: int, bounded: int, sentence: str) -> None:
    steps = (
        step("raised-1", 1000, 1000, wall_s=2.0, errors={"reset": raised}),
        step("bounded-1", 1000, 1, wall_s=9.0, errors={"reset": bounded}),
    )
    assert str(answer(document_of(*steps), findings.WaysOut)) == sentence


def test_limits_that_were_not_reached_are_named() -> None:
    names = ("unbounded-10000", "ports-used-up", "time-wait-0")
    answers = document_of(*map(step, names)).findings
    limits = [answer.limit for answer in answers if isinstance(answer, findings.LimitNotReached)]
    assert limits == ["files", "ports", "time_wait"]


def test_too_few_ports_are_a_limit_with_ways_out() -> None:
    used_up = step("ports-used-up", 800, 300, errors={"no_address": 570}, ports=(40_000, 40_199))
    reuse = step("ports-reuse", errors={"no_address": 1})
    reached = answer(document_of(used_up, step("ports-sources"), reuse), findings.LimitReached)
    assert reached.limit == "ports"
    assert reached.causes == (PortsRanOut(570, 300, ports=200),)
    assert reached.worked == ("at most 100 at once",)


def test_only_limits_of_the_machine_are_causes() -> None:
    none, both = results(
        step("a-1", errors={"reset": 3, "timeout": 2}),
        step("a-2", errors={"no_files": 1, "no_address": 2}),
    )
    assert none.causes == ()
    assert list(map(type, both.causes)) == [FilesRanOut, PortsRanOut]


def test_ports_in_time_wait_run_out_in_a_long_run() -> None:
    data = step("time-wait-0", 30_000, 1000, errors={"no_address": 1768})
    sample = ConnectionSample(1, {}, {"TIME_WAIT": 28_232}, {}, 0)
    counts = NullCounts(28_232, 28_232, 28_232, 1000, 0.1, 1.0, Summary())
    data = replace(with_observations(data, connections=(sample,)), null=counts)
    document = document_of(data, step("time-wait-2", 30_000, 1000))
    in_time_wait = answer(document, findings.PortsInTimeWait)
    assert (in_time_wait.failed, in_time_wait.connections) == (1768, 28_232)
    assert (in_time_wait.time_wait, len(in_time_wait.worked)) == (28_232, 1)
    assert document.valid
    uncounted = answer(document_of(replace(data, null=None)), findings.PortsInTimeWait)
    assert uncounted.connections is None


def test_the_largest_load_without_a_failure_is_reported() -> None:
    document = document_of(
        step("kept-100000", 100_000, 10_000, delays_s=50_000, longest_s=1.0, wall_s=5.5),
        step("kept-1000000", 1_000_000, 10_000, delays_s=500_000, longest_s=1.0, wall_s=53.0),
        step("new-1", 2_000_000, 10_000, errors={"no_address": 1}),
    )
    reached = answer(document, findings.Farthest)
    assert (reached.step.requests, reached.step.connections) == (1_000_000, 10_000)
    assert (reached.ratio, reached.step.ideal_s) == (pytest.approx(1.06), 50.0)
    assert reached.verdict == findings.CLOSE_TO_IDEAL
    memory = answer(document, findings.PeakMemory)
    assert (memory.step.memory_bytes, memory.step.requests) == (20 << 20, 1_000_000)
    chart, _ = document.charts
    assert [series.name for series in chart.series] == ["10,000 connections", "ideal"]
    slow = step("kept-100000", 100_000, 10_000, delays_s=50_000, longest_s=1.0, wall_s=9.0)
    assert answer(document_of(slow), findings.Farthest).verdict == findings.SLOWER_THAN_SERVER


def test_the_memory_of_the_client_is_drawn_over_time() -> None:
    data = step("kept-100000", 100_000, 10_000, delays_s=50_000)
    *_, chart = document_of(data, step("ports-reuse")).charts
    (line,) = chart.series  # only of steps that reach no limit
    # Samples at 1, 2 and 3 ns; at the first one the load tool had not begun
    assert line.points == ((1e-9, 20.0), (2e-9, 10.0))
    samples = tuple(ProcessSample(at, 0.0, 0.0, 0.0, 1, at) for at in range(1, 1000))
    *_, chart = document_of(with_observations(data, processes=samples)).charts
    assert 20 <= len(chart.series[0].points) <= 40


def test_the_cpu_of_client_and_server_is_shown() -> None:
    data = with_record(step("kept-1"), load_start_ns=0, load_end_ns=2 * 10**9, tool_cpu_s=1.8)
    samples = (ProcessSample(0, 0.0, None, 0.0, 1, None), ProcessSample(10**9, 0.5, 1.0, 0.0, 1, 9))
    data = with_observations(data, processes=samples)
    row = rows(document_of(data).tables[0])[0]
    assert (row["cpu_s"], row["client_cores"], row["server_cores"]) == (1.8, 0.9, 0.5)


def test_the_largest_load_of_aiohttp_is_reported() -> None:
    document = document_of(
        step("aiohttp-100000", 100_000, 1000, delays_s=50_000, longest_s=1.0, wall_s=61.0),
        step("aiohttp-1000000", 1_000_000, 1000, delays_s=500_000, longest_s=1.0, wall_s=640.0),
    )
    reached = answer(document, findings.FarthestByAiohttp)
    assert (reached.step.requests, reached.step.took_s) == (1_000_000, 640.0)
    failed = step("aiohttp-100000", 100_000, 1000, errors={"reset": 1})
    assert not has_answer(document_of(failed), findings.FarthestByAiohttp)


def test_large_bodies_are_extrapolated_to_a_million() -> None:
    document = document_of(
        step("bodies-10000", 10_000, 100, wall_s=2.0), step("dropped-5000", 5000, 1000, wall_s=8.0)
    )
    bodies = answer(document, findings.LargeBodies)
    assert bodies.total_bytes == 10_000 * NULL.body_bytes
    assert bodies.bytes_per_s == bodies.total_bytes / 2.0
    million = answer(document, findings.MillionLargeBodies)
    assert (million.million_s, million.million_delays_s) == (1600.0, 1500.0)  # 1.5 s each here
    assert million.body_bytes == NULL.body_bytes


MB = 1 << 20


def memory_document(
    tasks_mb: int = 40, bodies_mb: int = 58, errors: Mapping[str, int] | None = None
) -> Document:
    """Steps of clients that keep everything, and of one that does not. `tasks_mb`, `bodies_mb`:
    peaks of the larger steps; `errors`: of the one with bodies."""
    return document_of(
        step("all-tasks-10", 10, memory_bytes=30 * MB),
        step("all-tasks-20", 20, memory_bytes=tasks_mb * MB),
        step("all-bodies-5", 5, memory_bytes=50 * MB),
        step("all-bodies-9", 9, memory_bytes=bodies_mb * MB, errors=errors),
        step("aiohttp-100", 100, memory_bytes=33 * MB),
    )


def test_each_request_of_a_client_that_keeps_everything_takes_memory() -> None:
    memory = answer(memory_document(), findings.KeptMemory)
    assert (memory.task_bytes, memory.million_tasks_bytes) == (MB, 1_000_000 * MB)
    assert (memory.kept_bytes, memory.million_kept_bytes) == (2 * MB, 2_000_000 * MB)
    assert (memory.bounded.memory_bytes, memory.bounded.requests) == (33 * MB, 100)
    for document in (
        memory_document(tasks_mb=29),  # they did not grow
        memory_document(bodies_mb=50),
        memory_document(bodies_mb=0),
        memory_document(errors={"reset": 3}),
    ):
        assert not has_answer(document, findings.KeptMemory)


def test_a_peak_reported_by_the_client_is_used() -> None:
    data = step("all-tasks-1", memory_bytes=20 * MB)
    sampled, reported = results(data, with_measurement(data, details={"peak_bytes": 25 * MB}))
    assert (sampled.memory_bytes, reported.memory_bytes) == (20 * MB, 25 * MB)


def test_a_step_that_was_not_measured_is_noted() -> None:
    document = document_of(step("kept-100000", why_not="the load tool was ended by signal 9"))
    assert not document.valid
    not_measured, *notes = document.notes
    assert (type(not_measured), not_measured.values["what"]) == (NotMeasured, "kept-100000")
    assert notes == [LEFT_OUT]
    assert any(str(value).startswith("not measured: ") for value in document.tables[0].rows[0])


# --- the classic mistakes -----------------------------------------------------------------------


def test_mistakes_are_shown_by_their_symptoms() -> None:
    document = document_of(
        mistake("missing_await", "mistake", returned={"coroutine": 100},
                complaints={"never awaited": 100}),
        mistake("missing_await", "cure", returned={"int": 100}, requests=100),
        mistake("session_per_request", "mistake", requests=100, connections=100,
                duration_s=2.0, time_wait=100),
        mistake("session_per_request", "cure", requests=100, connections=20, time_wait=20),
    )  # fmt: skip
    missing = answer(document, findings.MissingAwait)
    assert missing.mistake.returned == {"coroutine": 100}
    assert (missing.mistake.requests, missing.cure.requests) == (0, 100)
    assert missing.evidence[0].values["complaints"] == {"never awaited": 100}
    session = answer(document, findings.SessionPerRequest)
    assert (session.mistake.connections, session.cure.connections) == (100, 20)
    assert session.times == pytest.approx(4.0)
    assert (session.mistake.time_wait, session.cure.time_wait) == (100, 20)
    assert document.valid
    assert document.charts == ()


def test_a_server_that_counted_nothing_shows_no_mistake() -> None:
    forms = [mistake("missing_await", form, returned={"int": 9}) for form in ("mistake", "cure")]
    document = document_of(*(replace(form, null=None) for form in forms))
    assert not has_answer(document, findings.MissingAwait)


def test_a_mistake_without_a_measurement_is_noted() -> None:
    data = mistake("missing_await", "cure")
    document = document_of(replace(data, measurement=None, parse_error="aiohttp is missing"))
    assert not document.valid
    assert document.tables == ()
    assert [note.code for note in document.notes] == ["NotMeasured", "ToolLeftOut"]


# --- the plan -------------------------------------------------------------------------------


@given(
    files=st.none() | st.integers(400, 1 << 20),
    tools=st.sets(st.sampled_from(["threads", "coroutines", "missing_await-mistake"])),
    ports=st.none() | st.just((32768, 60999)),
    quick=st.booleans(),
    no_network=st.sampled_from(["", "Operation not permitted"]),
)
def test_steps_keep_to_the_machine(
    files: int | None, tools: set[str], ports: tuple[int, int] | None, quick: bool, no_network: str
) -> None:
    available = {"fast", *tools}
    extent = Extent(lambda tool: tool in available, files, ports, None, no_network, quick=quick)
    plan = plan_of(extent)
    assert len({cell.name for cell in plan.cells}) == len(plan.cells)
    assert plan.details["steps"].keys() == {cell.name for cell in plan.cells}
    for step in steps(extent):
        load = step.cell.load
        mistaken = step.cell.tool.startswith(("missing", "session", "everything"))
        assert extent.mistakes if mistaken else extent.has(step.cell.tool)
        assert load.concurrency <= extent.connections
        assert load.open_files is None or files is None or load.open_files <= files
        null = step.cell.server.null
        assert null.tw_reuse is None or not no_network
        if step.chapter != "mistakes":
            assert load.deadline_s > 3 * predicted_s(plan, step.cell, 0.0)
        if load.ports is not None and ports is not None:
            assert ports[0] <= load.ports[0] <= load.ports[1] <= ports[1]
    assert codec.decode(codec.encode(plan), Plan) == plan
    millions = [cell for cell in plan.cells if cell.load and cell.load.requests == 1_000_000]
    assert quick is not bool(millions)


RICH = Extent(lambda _: True, files=None, ports=(32768, 60999), core=1)


def test_steps_that_are_left_out_are_noted() -> None:
    poor = Extent(lambda tool: tool == "fast", 1100, None, None, "not permitted", quick=True)
    parts = ("errno 99", "network namespace", "--quick", "1036 connections", "pip install")
    notes = left_out(poor)
    assert all(part in note.text for part, note in zip(parts, notes, strict=True))
    cells = [step.cell for step in steps(poor)]
    assert max(cell.concurrency for cell in cells) == 1100 - 64
    assert not [cell for cell in cells if cell.name.startswith(("ports", "time-wait"))]
    assert left_out(RICH) == []
    for synchronous in (False, True):
        extent = replace(RICH, quick=True, synchronous=synchronous)
        (note,), planned = left_out(extent), steps(extent)
        assert ("synchronous" in note.text) is not synchronous
        assert any(step.what == "synchronous" for step in planned) is synchronous


def test_a_million_requests_come_last_and_their_duration_is_noted() -> None:
    short, long = plan_of(RICH), plan_of(replace(RICH, long=True))
    assert long.cells[:-1] == short.cells
    million = long.cells[-1]
    assert (million.tool, million.load.requests) == ("coroutines", 1_000_000)
    (note,) = [note for note in long.notes if "A million requests" in note.text]
    assert "at least 8m 21s" in note.text
    assert not [note for note in short.notes if "A million requests" in note.text]


def test_a_million_by_aiohttp_needs_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "why_unavailable", lambda tool: f"{tool} needs aiohttp")
    options = LimitsOptions(long=True)
    with pytest.raises(EnvironmentProblem, match="coroutines needs aiohttp"), setup(options, None):
        pytest.fail("nothing is started")


def test_open_files_fit_a_bound_and_too_few_are_refused() -> None:
    loads = {step.cell.name: step.cell.load for step in steps(replace(RICH, quick=True))}
    fits = loads["unbounded-1000"]
    assert (fits.concurrency, fits.open_files) == (1000, 1024)
    with pytest.raises(UsageError, match="at least 364 open files"):
        plan_of(replace(RICH, files=300))


@pytest.mark.parametrize(
    ("requests", "connections", "at_least_s", "at_most_s"),
    [(100, 1, 150, 155), (100, 100, 3, 6), (100_000, 1000, 150, 155)],
)
def test_the_duration_of_a_cell_is_predicted(
    requests: int, connections: int, at_least_s: float, at_most_s: float
) -> None:
    cell = null_cell("a", NULL, "fast", Load(connections, requests, 1.0, 60.0))
    assert at_least_s <= predicted_s(null_plan("limits", ()), cell, 0.0) <= at_most_s
