"""What a run of limits concludes, on steps whose truth is known."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.null import null_trial
from workerlab import codec
from workerlab.analysis.facts import TrialData
from workerlab.experiments import planning
from workerlab.experiments.limits.command import Machine, left_out, plan_of, setup, steps
from workerlab.experiments.limits.document import study
from workerlab.experiments.limits.findings import (
    CLOSE_TO_IDEAL,
    SLOWER_THAN_SERVER,
    AsynchronousGain,
    Farthest,
    FarthestByAiohttp,
    KeptMemory,
    LargeBodies,
    LimitNotReached,
    LimitReached,
    MillionLargeBodies,
    MissingAwait,
    PeakMemory,
    PortsInTimeWait,
    SessionPerRequest,
    WaysOut,
)
from workerlab.experiments.limits.results import FilesRanOut, PortsRanOut, results_of
from workerlab.finding import Answer, stored
from workerlab.model import (
    ConnectionSample,
    Document,
    EnvironmentProblem,
    Fault,
    Load,
    Measurement,
    NullCounts,
    NullServer,
    Observations,
    Plan,
    ProcessSample,
    Record,
    Summary,
    UsageError,
)
from workerlab.notes import NotMeasured, ToolLeftOut
from workerlab.plan import null_cell, null_plan, predicted_s
from workerlab.report import text
from workerlab.run_store import Run

NULL = NullServer(delay_s=(0.0, 3.0))
A = TypeVar("A", bound=Answer)


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
    asked = Load(connections, requests, 1.0, 60.0, keepalive=True, **load)
    failed = sum((errors or {}).values())
    fault = Fault("tool", why_not) if why_not else None
    measured = Measurement(
        requests - failed, failed, errors or {}, wall_s, requests / wall_s, Summary(), sent=requests
    )
    served = Summary(mean=delays_s / requests, max=longest_s)
    return null_trial(
        name,
        "fast",
        asked,
        measured,
        null=NULL,
        record=Record(f"{name}-1", fault, load_start_ns=1, load_end_ns=2, tool_cpu_s=1.5),
        counts=NullCounts(requests, requests, connections, connections, 0.1, delays_s, served),
        observations=Observations(
            processes=tuple(
                ProcessSample(at, 0.0, 0.0, 0.0, 1, size)
                for at, size in ((1, None), (2, memory_bytes), (3, memory_bytes // 2))
            )
        ),
    )


def mistake(name: str, form: str, *, seconds: float = 0.5, **values: Any) -> TrialData:
    """`values`: details of its document, and `requests`, `connections` at the server."""
    details = {"mistake": name, "form": form, "code": "", "returned": {}, "complaints": {},
               "time_wait": None, **values}  # fmt: skip
    requests, connections = values.get("requests", 0), values.get("connections", 0)
    counts = NullCounts(requests, requests, connections, connections, 0.1, 0.0, Summary())
    measured = Measurement(requests, 0, {}, seconds, None, Summary(), details=details)
    key = f"{name}-{form}".replace("_", "-")
    return null_trial(key, f"{name}-{form}", Load(20, 100, 1.0, 60.0), measured, counts=counts)


CHAPTER = {"sync": "clients", "async": "clients", "kept": "far", "bodies": "far", "new": "far",
           "ports": "ports", "time": "ports", "all": "memory", "dropped": "far",
           "aiohttp": "far", "missing": "mistakes", "session": "mistakes"}  # fmt: skip


def meant(trials: tuple[TrialData, ...]) -> dict[str, dict[str, str]]:
    """What a plan says of these."""
    found = {}
    for name in (data.trial.cell.name for data in trials):
        chapter = CHAPTER.get(name.partition("-")[0], "unbounded")
        what = name.rpartition("-")[2] if chapter == "mistakes" else "bounded"
        found[name] = {"chapter": chapter, "what": what}
    return found


MOON = stored(ToolLeftOut("the moon"))


def of(*trials: TrialData) -> Document:
    plan = null_plan("limits", (), (MOON,), {"steps": meant(trials)})
    document = study(Run(Path("run"), plan, {}, {}), trials)
    assert text.render(document)  # every sentence of it can be said
    return document


def answer(document: Document, kind: type[A]) -> A:
    (answer,) = (finding for finding in document.findings if isinstance(finding, kind))
    return answer


def answered(document: Document, kind: type[Answer]) -> bool:
    return any(isinstance(finding, kind) for finding in document.findings)


def test_one_after_the_other_and_all_at_once() -> None:
    document = of(step("sync-100", connections=1, wall_s=155.0), step("async-100-coroutines"))
    gain = answer(document, AsynchronousGain)
    assert (gain.at_once.took_s, gain.longest_answer_s) == (3.1, 3.0)
    assert gain.one_by_one is not None
    assert gain.one_by_one.took_s == 155.0
    assert gain.times == pytest.approx(50.0)
    assert gain.delays_s is None
    assert len(gain.evidence) == 2
    assert gain.trials == ("sync-100-1", "async-100-coroutines-1")
    assert document.valid


def test_without_the_slow_step_the_server_knows_what_it_would_take() -> None:
    gain = answer(of(step("async-100-fast", wall_s=9.0)), AsynchronousGain)
    assert (gain.longest_answer_s, gain.one_by_one, gain.delays_s) == (3.0, None, 150.0)


def test_the_ideal_is_a_bound_of_both_kinds() -> None:
    shared = step("kept-1", 1000, 10, delays_s=500.0, longest_s=1.0, wall_s=55.0)
    alone = step("kept-2", 10, 10, delays_s=5.0, longest_s=1.0, wall_s=1.1)
    one, other = results_of((shared, alone), meant((shared, alone)))
    assert (one.ideal_s, one.ratio) == (50.0, pytest.approx(1.1))
    assert (other.ideal_s, other.ratio) == (1.0, pytest.approx(1.1))
    assert one.memory_bytes == 20 << 20


def test_where_some_failed_there_is_no_ideal() -> None:
    found = of(step("unbounded-1", 1000, 1000, errors={"no_files": 10}, open_files=990))
    (table,) = found.tables
    row = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert (row["ideal_s"], row["wall_to_ideal"]) == (None, None)
    assert (row["failed"], row["errors"]) == (10, {"no_files": 10})
    assert found.charts == ()


def test_errno_24() -> None:
    errors = {"no_files": 8980, "reset": 1}
    tried = step("unbounded-10000", 10_000, 10_000, errors=errors, open_files=1024)
    found = of(tried, step("bounded-10000", 10_000, 900))
    reached = answer(found, LimitReached)
    assert reached.limit == "files"
    assert reached.causes == (FilesRanOut(8980, 10_000, 1024, needed=10_064),)
    assert answer(found, WaysOut).worked == ("at most 900 at once",)
    assert found.valid  # it was meant to fail


def test_a_way_out_that_is_none() -> None:
    found = of(step("raised-10000", 10_000, 10_000, errors={"reset": 3}), step("bounded-10000"))
    ways_out = answer(found, WaysOut)
    assert ways_out.worked == ("at most 100 at once",)
    assert ways_out.failed == ("at most 10,000 at once (3 failed)",)
    assert str(ways_out) == (
        "Without a failure: at most 100 at once. With failures: at most 10,000 at once (3 failed)."
    )


def test_the_faster_of_two_ways_out() -> None:
    found = of(step("raised-1", 1000, 1000, wall_s=2.0), step("bounded-1", 1000, 1, wall_s=9.0))
    ways_out = answer(found, WaysOut)
    assert ways_out.faster is not None
    assert ways_out.slower is not None
    assert (ways_out.faster.connections, ways_out.faster.took_s) == (1000, 2.0)
    assert (ways_out.slower.connections, ways_out.slower.took_s) == (1, 9.0)


def test_nothing_avoids_it() -> None:
    found = of(step("raised-1", errors={"reset": 3}), step("bounded-1", errors={"reset": 2}))
    ways_out = answer(found, WaysOut)
    assert ways_out.worked == ()
    assert str(ways_out).startswith("With failures: ")


def test_a_machine_on_which_nothing_runs_out() -> None:
    found = of(step("unbounded-10000", 10_000, 10_000), step("ports-used-up"))
    limits = [each.limit for each in found.findings if isinstance(each, LimitNotReached)]
    assert limits == ["files", "ports"]


def test_errno_99_and_both_ways_out() -> None:
    used_up = step("ports-used-up", 800, 300, errors={"no_address": 570}, ports=(40_000, 40_199))
    found = of(used_up, step("ports-sources"), step("ports-reuse", errors={"no_address": 1}))
    reached = answer(found, LimitReached)
    assert reached.limit == "ports"
    assert reached.causes == (PortsRanOut(570, 300, ports=200),)
    assert reached.worked == ("at most 100 at once",)


def test_what_is_no_limit_of_the_machine_is_not_explained() -> None:
    trials = (step("a-1", errors={"reset": 3, "timeout": 2}),
              step("a-2", errors={"no_files": 1, "no_address": 2}))  # fmt: skip
    none, both = results_of(trials, meant(trials))
    assert none.causes == ()
    assert list(map(type, both.causes)) == [FilesRanOut, PortsRanOut]


def test_the_farthest_is_the_largest_without_a_failure() -> None:
    found = of(
        step("kept-100000", 100_000, 10_000, delays_s=50_000, longest_s=1.0, wall_s=5.5),
        step("kept-1000000", 1_000_000, 10_000, delays_s=500_000, longest_s=1.0, wall_s=53.0),
        step("new-1", 2_000_000, 10_000, errors={"no_address": 1}),
    )
    reached = answer(found, Farthest)
    assert (reached.step.requests, reached.step.connections) == (1_000_000, 10_000)
    assert (reached.ratio, reached.step.ideal_s) == (pytest.approx(1.06), 50.0)
    assert reached.verdict == CLOSE_TO_IDEAL
    memory = answer(found, PeakMemory)
    assert (memory.step.memory_bytes, memory.step.requests) == (20 << 20, 1_000_000)
    chart, _ = found.charts
    assert [series.name for series in chart.series] == ["10,000 connections", "ideal"]


def test_memory_of_the_client_over_time() -> None:
    found = of(step("kept-100000", 100_000, 10_000, delays_s=50_000), step("ports-reuse"))
    *_, chart = found.charts
    (line,) = chart.series  # those without a limit that is run into
    # Samples at 1, 2 and 3 ns; at the first one the load tool had not begun
    assert line.points == ((1e-9, 20.0), (2e-9, 10.0))


def test_a_long_line_has_few_points() -> None:
    data = step("kept-1")
    samples = [ProcessSample(at, 0.0, 0.0, 0.0, 1, at) for at in range(1, 1000)]
    data = replace(data, observations=Observations(processes=tuple(samples)))
    *_, chart = of(data).charts
    assert 20 <= len(chart.series[0].points) <= 40


def test_cpu_of_client_and_server() -> None:
    data = step("kept-1")
    assert data.record is not None
    samples = (ProcessSample(0, 0.0, None, 0.0, 1, None), ProcessSample(10**9, 0.5, 1.0, 0.0, 1, 9))
    record = replace(data.record, load_start_ns=0, load_end_ns=2 * 10**9, tool_cpu_s=1.8)
    data = replace(data, record=record, observations=Observations(processes=samples))
    (table,) = of(data).tables
    row = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert (row["cpu_s"], row["client_cores"], row["server_cores"]) == (1.8, 0.9, 0.5)


def test_how_far_aiohttp_goes() -> None:
    found = of(
        step("aiohttp-100000", 100_000, 1000, delays_s=50_000, longest_s=1.0, wall_s=61.0),
        step("aiohttp-1000000", 1_000_000, 1000, delays_s=500_000, longest_s=1.0, wall_s=640.0),
    )
    reached = answer(found, FarthestByAiohttp)
    assert (reached.step.requests, reached.step.took_s) == (1_000_000, 640.0)
    failed = step("aiohttp-100000", 100_000, 1000, errors={"reset": 1})
    assert not answered(of(failed), FarthestByAiohttp)


def test_a_million_large_bodies_is_an_extrapolation() -> None:
    million = answer(of(step("dropped-5000", 5000, 1000, wall_s=8.0)), MillionLargeBodies)
    assert (million.million_s, million.million_delays_s) == (1600.0, 1500.0)  # 1.5 s each here
    assert million.body_bytes == NULL.body_bytes


MB = 1 << 20


def kept(**peaks: int) -> Document:
    """Steps of these peaks of memory, by name."""
    sizes = {"tasks_10": 10, "tasks_20": 20, "bodies_5": 5, "bodies_9": 9, "bounded": 100}
    names = {"bounded": "aiohttp-100"}
    return of(*(
        step(names.get(name, f"all-{name.replace('_', '-')}"), sizes[name], memory_bytes=peak)
        for name, peak in peaks.items()
    ))  # fmt: skip


def test_what_is_kept_until_the_end_takes_memory_of_each_request() -> None:
    found = kept(tasks_10=30 * MB, tasks_20=40 * MB, bodies_5=50 * MB, bodies_9=58 * MB,
                 bounded=33 * MB)  # fmt: skip
    memory = answer(found, KeptMemory)
    assert (memory.task_bytes, memory.million_tasks_bytes) == (MB, 1_000_000 * MB)
    assert (memory.kept_bytes, memory.million_kept_bytes) == (2 * MB, 2_000_000 * MB)
    assert memory.bounded is not None
    assert (memory.bounded.memory_bytes, memory.bounded.requests) == (33 * MB, 100)


@pytest.mark.parametrize("peaks", [{"tasks_20": 29 * MB}, {"bodies_9": 50 * MB}, {"bodies_9": 0}])
def test_nothing_is_extrapolated_from_what_did_not_grow(peaks: dict[str, int]) -> None:
    grown = {"tasks_10": 30 * MB, "tasks_20": 40 * MB, "bodies_5": 50 * MB, "bodies_9": 58 * MB}
    assert not answered(kept(**grown | peaks), KeptMemory)


def test_the_peak_that_a_client_says_itself_counts() -> None:
    data = step("all-tasks-1", memory_bytes=20 * MB)
    assert data.measurement is not None
    measured = replace(data.measurement, details={"peak_bytes": 25 * MB})
    (result,) = results_of([replace(data, measurement=measured)], meant((data,)))
    assert result.memory_bytes == 25 * MB


def test_ports_in_time_wait_run_out_in_a_long_run() -> None:
    data = step("time-wait-0", 30_000, 1000, errors={"no_address": 1768})
    seen = (ConnectionSample(1, {}, {"TIME_WAIT": 28_232}, {}, 0),)
    counted = NullCounts(28_232, 28_232, 28_232, 1000, 0.1, 1.0, Summary())
    data = replace(data, observations=Observations(connections=seen), null=counted)
    found = of(data, step("time-wait-2", 30_000, 1000))
    in_time_wait = answer(found, PortsInTimeWait)
    assert (in_time_wait.failed, in_time_wait.connections) == (1768, 28_232)
    assert in_time_wait.time_wait == 28_232
    assert len(in_time_wait.worked) == 1
    assert found.valid


def test_a_client_too_slow_to_use_up_the_ports() -> None:
    assert answer(of(step("time-wait-0")), LimitNotReached).limit == "time_wait"


def test_a_slow_client_is_not_praised() -> None:
    slow = step("kept-100000", 100_000, 10_000, delays_s=50_000, longest_s=1.0, wall_s=9.0)
    assert answer(of(slow), Farthest).verdict == SLOWER_THAN_SERVER


def test_large_bodies() -> None:
    bodies = answer(of(step("bodies-10000", 10_000, 100, wall_s=2.0)), LargeBodies)
    assert bodies.total_bytes == 10_000 * NULL.body_bytes
    assert bodies.bytes_per_s == bodies.total_bytes / 2.0


def test_what_was_not_measured_is_said() -> None:
    found = of(step("kept-100000", why_not="the load tool was ended by signal 9"))
    assert not found.valid
    lost, *notes = found.notes
    assert (type(lost), lost.values["what"]) == (NotMeasured, "kept-100000")
    assert notes == [MOON]
    assert any(str(value).startswith("not measured: ") for value in found.tables[0].rows[0])


# --- the classic mistakes -----------------------------------------------------------------------


def test_mistakes_and_their_symptoms() -> None:
    found = of(
        mistake("missing_await", "mistake", returned={"coroutine": 100},
                complaints={"never awaited": 100}),
        mistake("missing_await", "cure", returned={"int": 100}, requests=100),
        mistake("session_per_request", "mistake", requests=100, connections=100,
                seconds=2.0, time_wait=100),
        mistake("session_per_request", "cure", requests=100, connections=20, time_wait=20),
    )  # fmt: skip
    missing = answer(found, MissingAwait)
    assert missing.mistake.returned == {"coroutine": 100}
    assert (missing.mistake.requests, missing.cure.requests) == (0, 100)
    assert missing.evidence[0].values["complaints"] == {"never awaited": 100}
    session = answer(found, SessionPerRequest)
    assert (session.mistake.connections, session.cure.connections) == (100, 20)
    assert session.times == pytest.approx(4.0)
    assert (session.mistake.time_wait, session.cure.time_wait) == (100, 20)
    assert found.valid
    assert found.charts == ()


def test_a_server_that_counted_nothing_shows_no_mistake() -> None:
    forms = [mistake("missing_await", form, returned={"int": 9}) for form in ("mistake", "cure")]
    found = of(*(replace(form, null=None) for form in forms))
    assert not answered(found, MissingAwait)
    ended = step("time-wait-0", 30_000, 1000, errors={"no_address": 1768})
    assert answer(of(replace(ended, null=None)), PortsInTimeWait).connections is None


def test_a_mistake_that_could_not_be_shown() -> None:
    data = mistake("missing_await", "cure")
    found = of(replace(data, measurement=None, parse_error="aiohttp is missing"))
    assert not found.valid
    assert found.tables == ()
    assert [note.code for note in found.notes] == ["NotMeasured", "ToolLeftOut"]


# --- the plan -------------------------------------------------------------------------------


@given(
    files=st.none() | st.integers(400, 1 << 20),
    tools=st.sets(st.sampled_from(["threads", "coroutines", "missing_await-mistake"])),
    ports=st.none() | st.just((32768, 60999)),
    quick=st.booleans(),
    no_network=st.sampled_from(["", "Operation not permitted"]),
)
def test_steps_keep_to_the_machine(
    files: int | None,
    tools: set[str],
    ports: tuple[int, int] | None,
    quick: bool,
    no_network: str,
) -> None:
    here = Machine(
        lambda tool: tool == "fast" or tool in tools, files, ports, core=None, no_network=no_network
    )
    plan = plan_of(here, quick)
    assert len({cell.name for cell in plan.cells}) == len(plan.cells)
    assert plan.details["steps"].keys() == {cell.name for cell in plan.cells}
    for one in steps(here, quick):
        load = one.cell.load
        assert load is not None
        mistaken = one.cell.tool.startswith(("missing", "session", "everything"))
        assert here.mistakes if mistaken else here.has(one.cell.tool)
        assert load.concurrency <= here.connections
        assert load.open_files is None or files is None or load.open_files <= files
        null = one.cell.server.null
        assert null is not None
        assert null.tw_reuse is None or not no_network
        if one.chapter != "mistakes":
            predicted = predicted_s(plan, one.cell, 0.0)
            assert load.deadline_s > 3 * predicted
        if load.ports is not None and ports is not None:
            assert ports[0] <= load.ports[0] <= load.ports[1] <= ports[1]
    assert codec.decode(codec.encode(plan), Plan) == plan
    millions = [cell for cell in plan.cells if cell.load and cell.load.requests == 1_000_000]
    assert quick is not bool(millions)


def test_what_is_left_out_is_said() -> None:
    poor = Machine(
        lambda tool: tool == "fast", files=1100, ports=None, core=None, no_network="not permitted"
    )
    parts = ("errno 99", "network namespace", "--quick", "1036 connections", "pip install")
    notes = left_out(poor, quick=True)
    assert all(part in note.text for part, note in zip(parts, notes, strict=True))
    cells = [one.cell for one in steps(poor, quick=True)]
    assert max(cell.concurrency for cell in cells) == 1100 - 64
    assert not [cell for cell in cells if cell.name.startswith(("ports", "time-wait"))]
    rich = Machine(lambda _: True, files=None, ports=(32768, 60999), core=1)
    assert left_out(rich, quick=False) == []


RICH = Machine(lambda _: True, files=None, ports=(32768, 60999), core=1)


def test_the_longest_comes_last_and_its_time_is_said_first() -> None:
    short, long = plan_of(RICH, quick=False), plan_of(RICH, quick=False, long=True)
    assert long.cells[:-1] == short.cells
    million = long.cells[-1]
    assert million.load is not None
    assert (million.tool, million.load.requests) == ("coroutines", 1_000_000)
    (note,) = [note for note in long.notes if "A million requests" in note.text]
    assert "at least 8m 21s" in note.text
    assert not [note for note in short.notes if "A million requests" in note.text]


def test_a_million_by_aiohttp_needs_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "why_unavailable", lambda tool: f"{tool} needs aiohttp")
    options = argparse.Namespace(quick=False, long=True)
    with pytest.raises(EnvironmentProblem, match="coroutines needs aiohttp"), setup(options, None):
        pytest.fail("nothing is started")


def test_an_unbounded_client_that_fits_into_the_usual_limit_of_files() -> None:
    loads = {step.cell.name: step.cell.load for step in steps(RICH, quick=True)}
    fits = loads["unbounded-1000"]
    assert fits is not None
    assert (fits.concurrency, fits.open_files) == (1000, 1024)


def test_too_few_files_for_anything() -> None:
    with pytest.raises(UsageError, match="at least 364 open files"):
        plan_of(Machine(lambda _: True, files=300, ports=None, core=None), quick=True)


def test_what_a_cell_will_take() -> None:
    plan = null_plan("limits", ())

    def predicted(requests: int, connections: int) -> float:
        cell = null_cell("a", NULL, "fast", Load(connections, requests, 1.0, 60.0))
        return predicted_s(plan, cell, 0.0)

    assert 150 <= predicted(100, 1) <= 155
    assert 3 <= predicted(100, 100) <= 6
    assert 150 <= predicted(100_000, 1000) <= 155
