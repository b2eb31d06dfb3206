"""Whether the load tool is the limit: each rule on its own, and the effect on a report."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    SYNC,
    bare,
    cell_of,
    derived,
    evidence,
    findings_by_code,
    gthread,
    launched,
    ns,
    report_of,
    server,
    with_cell,
    with_measurement,
    with_observations,
    with_record,
    with_spans,
)
from tests.builders.noise import noisy
from workerlab.analysis import TrialData
from workerlab.analysis.diagnosis.cpu import LoadToolIsLimit, more_load
from workerlab.analysis.knee import KneeAtLeast, KneeNote, ToolLimitFrom
from workerlab.analysis.load_tool import (
    LACKS,
    Ceiling,
    TooFewEstablished,
    ToolComparison,
    ToolOutOf,
    ceilings,
    tool_limit_reasons,
)
from workerlab.analysis.series import Reasons
from workerlab.analysis.trials import by_cell
from workerlab.analysis.verdict import GeneratorBound
from workerlab.load.registry import faster_tools
from workerlab.model.evidence import ConnectionSample, ProcessSample
from workerlab.model.plan import Rate

FAST = server("gthread", 1, 8)
SHORT_S = 0.002


def slow_tool(connections: int, rps: float, *, tool: str = "ab", **cores: Any) -> TrialData:
    """A server with free slots and a tool that sends at most `rps`: as if each request held a
    single slot before the server for 1/rps; the spans are those of the server."""
    rounds = max(2, math.ceil(90 / connections))
    trial = evidence(FAST, connections, slots=[1], delay_s=1 / rps, rounds=rounds, tool=tool)
    starts = (span.end_ns - round(SHORT_S * NS) for span in trial.spans.spans)
    spans = (
        replace(span, start_ns=start_ns, accept_ns=start_ns)
        for span, start_ns in zip(trial.spans.spans, starts, strict=True)
    )
    trial = with_record(with_measurement(trial, lone_s=SHORT_S), lone_s=(SHORT_S,) * 3)
    return with_cores(with_spans(trial, spans), **cores)


def with_cores(
    trial: TrialData, *, tool_cores: float = 0.1, server_cores: float = 0.1, host: float = 0.5
) -> TrialData:
    """The same trial with constant use of 2 cores (`host`: a share of both), and no request waiting
    in the kernel or inside the workers."""
    load_s = (trial.record.load_end_ns - ns(0)) / NS
    processes = tuple(
        ProcessSample(ns(at), at * server_cores, at * tool_cores, at * 2 * host, None, None)
        for at in (load_s * step / 40 for step in range(41))
    )
    queue = tuple(replace(sample, length=0) for sample in trial.observations.queue)
    return with_observations(trial, processes=processes, queue=queue, cores=2)


def why(trial: TrialData, lone_s: float = SHORT_S, **comparison: Any) -> Reasons:
    """Why the load tool is the limit; (): it is not; None: unknown."""
    return tool_limit_reasons(derived(trial), ToolComparison(lone_s, **comparison))


def codes(trial: TrialData, lone_s: float = SHORT_S, **comparison: Any) -> list[str] | None:
    reasons = why(trial, lone_s, **comparison)
    return None if reasons is None else [reason.code for reason in reasons]


# --- other programs -----------------------------------------------------------------------------


def test_the_limit_is_unknown_while_other_programs_use_the_cores() -> None:
    """The same CPU time, alone on the machine and while server and tool wait for cores."""
    trial = slow_tool(8, 100)
    assert codes(noisy(trial, tool_cores=0.9)) == ["ToolBusy"]
    assert why(noisy(trial, tool_cores=0.9, tool_wait=0.3, others=0.8)) is None
    assert why(noisy(trial, tool_cores=0.47, tool_wait=0.3, others=1.2), levels={4: 100.0}) is None
    assert why(noisy(trial, tool_cores=0.9, tool_wait=0.3, steal=0.8)) is None
    assert codes(noisy(trial, tool_cores=0.9, others=1.0)) == ["ToolBusy"]  # nothing waits
    failing = with_measurement(trial, failed=3, errors={"no_address": 3})
    assert codes(noisy(failing, tool_cores=0.9, tool_wait=0.3, others=0.8)) == ["ToolOutOf"]


# --- each rule ----------------------------------------------------------------------------------


def test_a_tool_that_uses_a_whole_core_is_the_limit() -> None:
    (reason,) = why(slow_tool(8, 100, tool_cores=0.93)) or ()
    assert reason.code == "ToolBusy"
    assert reason.values == pytest.approx({"cores": 0.93, "share": 0.93, "of_cores": 1})
    assert why(slow_tool(8, 100, tool_cores=0.7)) == ()
    assert why(replace(slow_tool(8, 100, tool_cores=1.2), tool_units=2)) == ()  # one per process
    (reason,) = why(replace(slow_tool(8, 100, tool_cores=1.7), tool_units=4)) or ()  # on 2 cores
    assert reason.values == pytest.approx({"cores": 1.7, "share": 0.85, "of_cores": 2})


def test_the_cpu_of_a_short_load_is_inconclusive() -> None:
    trial = slow_tool(4, 1000, tool_cores=1.0)
    assert derived(trial).load_s < 0.5
    assert why(trial) is None


def test_without_samples_the_cpu_of_the_whole_load_decides() -> None:
    base = bare(slow_tool(8, 30))
    assert codes(with_record(base, tool_cpu_s=derived(base).load_s * 0.9)) == ["ToolBusy"]


def test_a_plateau_with_an_idle_server_is_the_tools_limit() -> None:
    trial = slow_tool(16, 100)
    (reason,) = why(trial, levels={8: 100.0, 16: 100.0}) or ()
    assert reason.code == "ServerIdleAtPlateau"
    assert (reason.values["below"], reason.values["connections"]) == (8, 16)
    assert reason.values["gain"] == pytest.approx(0, abs=0.01)
    assert reason.values["inside"] < 8


@pytest.mark.parametrize(
    ("levels", "cores"),
    [
        ({8: 60.0, 16: 100.0}, {}),  # still gains
        ({8: 100.0, 16: 100.0}, {"host": 0.95}),
        ({8: 100.0, 16: 100.0}, {"server_cores": 0.95}),
        ({15: 100.0, 16: 100.0}, {}),  # too close to show a plateau
    ],
)
def test_without_a_plateau_or_with_a_busy_server_the_tool_is_not_the_limit(
    levels: dict[int, float], cores: dict[str, float]
) -> None:
    assert why(slow_tool(16, 100, **cores), levels=levels) == ()


def test_requests_that_wait_inside_the_server_are_not_limited_by_the_tool() -> None:
    """A lock in the app: no core is busy, and all requests are in the app."""
    trial = with_cores(evidence(server("gthread", 1, 16), 16, rounds=6, delay_s=0.2))
    assert why(trial, 0.05, levels={8: 80.0, 16: 80.0}) == ()


CEILING = Ceiling("ab", keepalive=False, processes=1, connections=16, rps=250.0)


def test_a_ceiling_below_three_times_the_throughput_is_near() -> None:
    trial = slow_tool(8, 100)
    (reason,) = why(trial, ceilings=[CEILING]) or ()
    assert reason.code == "NearCeiling"
    expected = {"ceiling_rps": 250.0, "connections": 16, "times": 3.0, "rps": 100.0}
    assert reason.values == pytest.approx(expected, rel=0.01)
    assert why(trial, ceilings=[replace(CEILING, rps=350.0)]) == ()
    assert why(trial, ceilings=[replace(CEILING, rps=80.0)]) == ()  # below the throughput
    low, high = replace(CEILING, rps=1000.0), replace(CEILING, connections=64)
    near = [bool(why(slow_tool(n, 100), ceilings=[high, low])) for n in (16, 32, 100)]
    assert near == [False, True, True]  # the ceiling of as many connections or more applies


@pytest.mark.parametrize(
    "other", [{"tool": "wrk"}, {"keepalive": True}, {"processes": 2}, {"at_least": True}]
)
def test_a_ceiling_of_other_settings_is_ignored(other: dict[str, Any]) -> None:
    assert why(bare(slow_tool(8, 100)), ceilings=[replace(CEILING, **other)]) is None


@pytest.mark.parametrize("cause", ["no_address", "no_files"])
def test_a_tool_out_of_system_resources_is_the_limit(cause: str) -> None:
    cell = cell_of(with_measurement(slow_tool(8, 100), failed=3, errors={cause: 3}))
    assert (cell.verdict, cell.generator_bound) == ("generator-bound", True)
    assert ToolOutOf(3, LACKS[cause]) in cell.bound_reasons


def test_a_remote_load_is_not_judged_by_local_samples() -> None:
    trial = replace(slow_tool(8, 100, tool_cores=0.95), remote_load=True)
    assert why(trial, ceilings=[CEILING]) is None


def test_a_faster_tool_shows_the_limit() -> None:
    trial = slow_tool(8, 100)
    others = {("wrk", 1): (139.0, 140.0, 141.0), ("fast", 1): (90.0, 90.0, 91.0)}
    (reason,) = why(trial, own_rps=(99.0, 100.0, 101.0), other_tools=others) or ()
    assert reason.code == "OtherToolFaster"
    assert (reason.values["tool"], reason.values["processes"]) == ("wrk", None)
    assert reason.values["rps"] == pytest.approx(140.0, rel=1e-3)
    assert reason.values["low"] < reason.values["more"] == pytest.approx(0.4, rel=1e-3)
    for own, other in (
        ((99.0, 100.0, 101.0), (103.0, 104.0, 105.0)),
        ((100.0,), (140.0,)),
        ((38.0, 60.0, 77.0), (77.0, 90.0, 50.0)),
    ):
        assert why(trial, own_rps=own, other_tools={("wrk", 1): other}) == ()


def test_uneven_dealing_explains_a_faster_tool() -> None:
    for trial in (gthread(16), bare(gthread(16))):
        rates = {"own_rps": (7.0, 7.0), "other_tools": {("wrk", 1): (8.0, 8.0)}}
        assert why(trial, 1.0, **rates) == ()


def keepalive_trial(connections: int, established: int, *, accepts: int = 4) -> TrialData:
    """Keep-alive connections, `established` of them according to the kernel."""
    base = slow_tool(connections, 100)
    spans = (
        replace(span, accept_ns=ns(0) + number % accepts)
        for number, span in enumerate(base.spans.spans)
    )
    states = {"ESTABLISHED": established}
    samples = tuple(
        ConnectionSample(sample.at_ns, states, states, sample.per_worker, 0)
        for sample in base.observations.connections
    )
    return with_spans(
        with_observations(with_cell(base, keepalive=True), connections=samples), spans
    )


def test_missing_connections_are_the_tools_limit() -> None:
    assert why(keepalive_trial(8, 6)) == (TooFewEstablished(established=6, connections=8),)
    assert why(keepalive_trial(8, 8)) == ()
    assert why(keepalive_trial(8, 6, accepts=10_000)) == ()  # the server closed them


def test_a_load_at_its_best_possible_rate_is_not_limited_by_the_tool() -> None:
    trial = with_cores(evidence(server("gevent"), 8, rounds=10, delay_s=0.1), tool_cores=0.95)
    others = {("wrk", 1): 200.0}
    assert why(trial, 0.1, ceilings=[CEILING], other_tools=others, levels={8: 80.0}) == ()


def test_only_ceiling_and_cpu_limit_a_tool_that_sends_at_a_rate() -> None:
    trial = bare(with_cell(keepalive_trial(8, 6), keepalive=False, rate=Rate(rps=100.0)))
    rates = {"levels": {4: 100.0, 8: 100.0}, "other_tools": {("wrk", 1): 200.0}}
    assert why(trial, **rates) is None
    assert codes(trial, ceilings=[CEILING], **rates) == ["NearCeiling"]


# --- in a report ------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "busy"), [(0.5, None), (0.97, 0.97)])
def test_a_generator_bound_cell_keeps_its_numbers_and_names_the_reason(
    host: float, busy: float | None
) -> None:
    cell = cell_of(slow_tool(8, 100, tool_cores=0.95, host=host))
    assert (cell.verdict, cell.generator_bound) == ("generator-bound", True)
    assert isinstance(cell.reason, GeneratorBound)
    assert (cell.reason.tool, cell.reason.certainty) == ("ab", "is")
    assert [cell.throughput_rps, cell.reason.rps] == pytest.approx([100, 100], rel=0.05)
    assert cell.reason.reasons == cell.bound_reasons
    assert [reason.code for reason in cell.bound_reasons] == ["ToolBusy"]
    assert isinstance(cell.diagnosis, LoadToolIsLimit)
    assert cell.diagnosis.advice == (more_load(faster_tools("ab"), busy),)


@pytest.mark.parametrize(
    ("tool", "busy", "advice"),
    [
        ("ab", None, "a faster load tool (fast, wrk) or more processes of fast (--tool-processes)"
         " or a second machine for the load tool would show what the server can do"),
        ("fast", 0.97, "a faster load tool (wrk) or a second machine for the load tool would show"
         " what the server can do: the cores of this machine are 97 % busy"),
        ("wrk", None, "a second machine for the load tool would show what the server can do"),
    ],
)  # fmt: skip
def test_the_tool_in_use_is_not_advised(tool: str, busy: float | None, advice: str) -> None:
    assert more_load(faster_tools(tool), busy) == advice


def test_generator_bound_cells_give_no_knee_and_no_capacity() -> None:
    report = report_of(*(slow_tool(level, 100, tool_cores=0.95) for level in (4, 8, 16, 32)))
    (group,) = report.classes
    assert (group.knee, group.capacity_rps) == (None, None)
    assert isinstance(group.knee_note, KneeAtLeast)
    assert group.knee_note.why == ToolLimitFrom(4, "ab")
    assert report.overhead is None


def test_a_knee_below_the_tools_limit_is_kept() -> None:
    trials = [with_cores(evidence(SYNC, level, rounds=10, delay_s=0.05)) for level in (4, 8)]
    high = with_cores(evidence(SYNC, 16, rounds=8, delay_s=0.05, slots=[3]), tool_cores=0.95)
    report = report_of(*trials, high)
    assert report.cells[-1].verdict == "generator-bound"
    assert report.classes[0].knee == pytest.approx(4.0, rel=0.05)
    note = report.classes[0].knee_note
    assert isinstance(note, KneeNote)
    assert note.tool_limit == ToolLimitFrom(16, "ab")


def test_the_tools_of_a_run_are_compared() -> None:
    report = report_of(
        *(launch for tool, rps in (("ab", 100), ("fast", 200))
          for launch in launched([slow_tool(8, rps, tool=tool)] * 3))
    )  # fmt: skip
    low, _, _, high, _, _ = report.cells
    assert (low.verdict, high.generator_bound) == ("generator-bound", False)
    (reason,) = low.bound_reasons
    assert (reason.code, reason.values["tool"]) == ("OtherToolFaster", "fast")
    assert reason.values["rps"] == pytest.approx(200, rel=0.05)
    assert isinstance(low.reason, GeneratorBound)
    assert low.reason.rps == reason.values["rps"]  # the least that the server can do


def test_each_number_of_tool_processes_is_a_series() -> None:
    slow, quick = slow_tool(8, 100), with_cell(slow_tool(8, 200), processes=2)
    report = report_of(*launched([slow] * 2), *launched([quick] * 2))
    assert [group.processes for group in report.classes] == [1, 2]
    (reason,) = report.cells[0].bound_reasons
    assert (reason.values["tool"], reason.values["processes"]) == ("ab", 2)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((True, False), True), ((True, False, False), False), ((None, True), True), ((None,), None)],
)
def test_a_cell_is_generator_bound_if_half_of_its_conclusive_trials_are(
    limits: tuple[bool | None, ...], expected: bool | None
) -> None:
    cell = cell_of(slow_tool(8, 100))
    (trials,) = by_cell(replace(cell, generator_bound=limit) for limit in limits).values()
    assert trials.generator_bound is expected


def test_ceilings_come_from_the_runs_environment() -> None:
    stored = [{"tool": "ab", "keepalive": False, "processes": 1, "connections": 16, "rps": 150.0}]
    (cell,) = report_of(slow_tool(8, 100), ceilings=stored).cells
    assert isinstance(cell.reason, GeneratorBound)
    assert cell.reason.certainty == "may be"  # measured in another run
    assert findings_by_code(cell.reason)["NearCeiling"].values["ceiling_rps"] == 150.0
    report = report_of(*(slow_tool(level, 100) for level in (8, 16)), ceilings=stored)
    note = report.classes[0].knee_note
    assert isinstance(note, KneeAtLeast)
    assert note.why == ToolLimitFrom(8, "ab", "may be")


@pytest.mark.parametrize("stored", [None, "x", [1], [{}], [{"tool": "ab"}], [None]])
def test_unreadable_ceilings_are_ignored(stored: object) -> None:
    assert ceilings({"ceilings": stored}) == ()


def test_the_limit_is_unknown_without_observations() -> None:
    assert cell_of(bare(slow_tool(8, 100))).generator_bound is None


def test_achieved_concurrency_comes_from_the_client() -> None:
    trial = evidence(SYNC, 8, rounds=10)
    assert cell_of(trial).achieved_concurrency == pytest.approx(8, rel=0.1)
    for changes, expected in (({"achieved_concurrency": 7.5}, 7.5), ({"exact_mean": False}, None)):
        cell = cell_of(with_measurement(trial, **changes))
        assert cell.achieved_concurrency == expected
