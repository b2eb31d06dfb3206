"""When the load tool is the limit: each rule on its own, and what it does to a report."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as changed

from tests.builders.analysis import (
    SYNC,
    asking,
    bare,
    derived,
    every,
    evidence,
    gthread,
    ns,
    recording,
    saying,
    seeing,
    server,
    with_spans,
)
from tests.builders.noise import noisy
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.cpu import FASTER_TOOL, LoadToolIsLimit
from workerlab.analysis.knee import KneeAtLeast, KneeNote, ToolLimitFrom
from workerlab.analysis.load_tool import (
    LACKS,
    Ceiling,
    TooFewEstablished,
    ToolComparison,
    ToolOutOf,
    ceilings,
    tool_limit_reasons,
    with_tool_limits,
)
from workerlab.analysis.series import Reasons
from workerlab.analysis.verdict import GeneratorBound
from workerlab.model import ConnectionSample, ProcessSample, Rate, Report

FAST = server("gthread", 1, 8)
SHORT_S = 0.002


def slow_tool(connections: int, rps: float, *, tool: str = "ab", **kept: Any) -> TrialData:
    """A server with slots to spare, and a tool that hands it no more than `rps`: as if one more
    slot, before the server, were taken by each request for 1/rps; the spans are the server's."""
    rounds = max(2, math.ceil(90 / connections))
    lasting = evidence(FAST, connections, slots=[1], delay_s=1 / rps, rounds=rounds, tool=tool)
    starts = [(span.end_ns or 0) - ns(SHORT_S) + ns(0) for span in lasting.spans.spans]
    spans = (
        changed(span, start_ns=start, accept_ns=start)
        for span, start in zip(lasting.spans.spans, starts, strict=True)
    )
    found = recording(saying(lasting, lone_s=SHORT_S), lone_s=(SHORT_S,) * 3)
    return seen_by(with_spans(found, spans), **kept)


def again(trial: TrialData, number: int) -> TrialData:
    """Another trial of the same cell."""
    return replace(trial, trial=replace(trial.trial, number=number))


def seen_by(
    trial: TrialData, *, tool_cores: float = 0.1, server_cores: float = 0.1, host: float = 0.5
) -> TrialData:
    """The same trial where so many cores were used all the time, of 2, and nothing waited in the
    kernel or inside the workers."""
    assert trial.record is not None
    assert trial.record.load_end_ns is not None
    load_s = (trial.record.load_end_ns - ns(0)) / 1e9
    moments = [load_s * step / 40 for step in range(41)]
    processes = tuple(
        ProcessSample(ns(at), at * server_cores, at * tool_cores, at * 2 * host, None, None)
        for at in moments
    )
    queue = tuple(replace(one, length=0) for one in trial.observations.queue)
    return seeing(trial, processes=processes, queue=queue, cores=2)


def why(trial: TrialData, lone_s: float = SHORT_S, **known: Any) -> Reasons:
    """Why the load tool was the limit: () it was not, None unknown."""
    return tool_limit_reasons(derived(trial), ToolComparison(lone_s, **known))


def codes(trial: TrialData, lone_s: float = SHORT_S, **known: Any) -> list[str] | None:
    found = why(trial, lone_s, **known)
    return None if found is None else [one.code for one in found]


def report_of(*trials: TrialData, **environment: object) -> Report:
    return analyse("run", environment, trials)


# --- whose cores --------------------------------------------------------------------------------


def test_nobody_is_the_limit_while_others_have_the_cores() -> None:
    """The same CPU, alone on the machine and beside programs that kept both waiting."""
    trial = slow_tool(8, 100)
    assert codes(noisy(trial, tool_cores=0.9)) == ["ToolBusy"]
    taken = noisy(trial, tool_cores=0.9, tool_wait=0.3, others=0.8)
    assert why(taken) is None
    assert why(noisy(trial, tool_cores=0.47, tool_wait=0.3, others=1.2), levels={4: 100.0}) is None
    stolen = noisy(trial, tool_cores=0.9, tool_wait=0.3, steal=0.8)
    assert why(stolen) is None


def test_cores_that_nobody_waited_for_change_nothing() -> None:
    assert codes(noisy(slow_tool(8, 100), tool_cores=0.9, others=1.0)) == ["ToolBusy"]


def test_a_limit_of_its_own_is_the_tools_however_busy_others_are() -> None:
    trial = noisy(slow_tool(8, 100), tool_cores=0.9, tool_wait=0.3, others=0.8)
    failing = saying(trial, failed=3, errors={"no_address": 3})
    assert codes(failing) == ["ToolOutOf"]


# --- each rule ----------------------------------------------------------------------------------


def test_a_tool_that_uses_its_core_is_the_limit() -> None:
    (found,) = why(slow_tool(8, 100, tool_cores=0.93)) or ()
    assert found.code == "ToolBusy"
    assert found.values == pytest.approx({"cores": 0.93, "share": 0.93, "of_cores": 1})
    assert why(slow_tool(8, 100, tool_cores=0.7)) == ()


def test_a_tool_of_several_processes_has_several_cores() -> None:
    trial = replace(slow_tool(8, 100, tool_cores=1.2), tool_units=2)
    assert why(trial) == ()
    full = replace(slow_tool(8, 100, tool_cores=1.7), tool_units=4)  # of which the machine has 2
    (found,) = why(full) or ()
    assert found.values == pytest.approx({"cores": 1.7, "share": 0.85, "of_cores": 2})


def test_a_short_load_is_not_judged_by_the_cpu_of_the_tools_own_start() -> None:
    trial = slow_tool(4, 1000, tool_cores=1.0)
    assert derived(trial).load_s < 0.5
    assert why(trial) is None


def test_the_whole_load_speaks_where_nobody_looked_at_the_tool() -> None:
    base = bare(slow_tool(8, 30))
    assert codes(recording(base, tool_cpu_s=derived(base).load_s * 0.9)) == ["ToolBusy"]


def test_a_plateau_without_a_busy_server_is_the_tools() -> None:
    trial = slow_tool(16, 100)
    (found,) = why(trial, levels={8: 100.0, 16: 100.0}) or ()
    assert found.code == "ServerIdleAtPlateau"
    assert (found.values["below"], found.values["connections"]) == (8, 16)
    assert found.values["gain"] == pytest.approx(0, abs=0.01)
    assert found.values["inside"] < 8


@pytest.mark.parametrize(
    ("levels", "kept"),
    [
        ({8: 60.0, 16: 100.0}, {}),  # still gains
        ({8: 100.0, 16: 100.0}, {"host": 0.95}),
        ({8: 100.0, 16: 100.0}, {"server_cores": 0.95}),
        ({15: 100.0, 16: 100.0}, {}),  # too close to show a plateau
    ],
)
def test_no_plateau_or_a_busy_server(levels: dict[int, float], kept: dict[str, float]) -> None:
    assert why(slow_tool(16, 100, **kept), levels=levels) == ()


def test_requests_that_wait_inside_the_server_are_not_the_tools() -> None:
    """A lock in the app: nothing is busy, all requests are in it."""
    trial = seen_by(evidence(server("gthread", 1, 16), 16, rounds=6, delay_s=0.2))
    assert why(trial, 0.05, levels={8: 80.0, 16: 80.0}) == ()


CEILING = Ceiling("ab", keepalive=False, processes=1, connections=16, rps=250.0)


def test_a_ceiling_below_three_times_the_rate() -> None:
    trial = slow_tool(8, 100)
    (found,) = why(trial, ceilings=[CEILING]) or ()
    assert found.code == "NearCeiling"
    reached = {"ceiling_rps": 250.0, "connections": 16, "times": 3.0, "rps": 100.0}
    assert found.values == pytest.approx(reached, rel=0.01)
    assert why(trial, ceilings=[replace(CEILING, rps=350.0)]) == ()


@pytest.mark.parametrize(
    "other",
    [
        {"tool": "wrk"},
        {"keepalive": True},
        {"processes": 2},
        {"at_least": True},
    ],
)
def test_a_ceiling_of_something_else_says_nothing(other: dict[str, Any]) -> None:
    trial = bare(slow_tool(8, 100))
    assert why(trial, ceilings=[replace(CEILING, **other)]) is None


@pytest.mark.parametrize("cause", ["no_address", "no_files"])
def test_what_its_own_machine_did_not_give_it_is_no_fault_of_the_server(cause: str) -> None:
    (cell,) = report_of(saying(slow_tool(8, 100), failed=3, errors={cause: 3})).cells
    assert (cell.verdict, cell.generator_bound) == ("generator-bound", True)
    assert ToolOutOf(3, LACKS[cause]) in cell.bound_reasons


def test_a_ceiling_below_what_came_out_is_not_used() -> None:
    assert not why(slow_tool(8, 100), ceilings=[Ceiling("ab", False, 1, 16, 80.0)])


def test_a_load_from_other_hosts_is_not_judged_by_what_is_seen_here() -> None:
    trial = replace(slow_tool(8, 100, tool_cores=0.95), remote_load=True)
    assert why(trial, ceilings=[CEILING]) is None


def test_the_ceiling_of_as_many_connections_or_more_counts() -> None:
    low, high = replace(CEILING, rps=1000.0), replace(CEILING, connections=64)
    assert why(slow_tool(16, 100), ceilings=[high, low]) == ()
    assert why(slow_tool(32, 100), ceilings=[high, low])
    assert why(slow_tool(100, 100), ceilings=[high, low])


def test_another_tool_that_gets_more() -> None:
    trial, own = slow_tool(8, 100), (99.0, 100.0, 101.0)
    others = {("wrk", 1): (139.0, 140.0, 141.0), ("fast", 1): (90.0, 90.0, 91.0)}
    (found,) = why(trial, own=own, others=others) or ()
    assert found.code == "OtherToolFaster"
    assert (found.values["tool"], found.values["processes"]) == ("wrk", None)
    assert found.values["rps"] == pytest.approx(140.0, rel=1e-3)
    assert found.values["low"] < found.values["more"] == pytest.approx(0.4, rel=1e-3)
    assert why(trial, own=own, others={("wrk", 1): (103.0, 104.0, 105.0)}) == ()


def test_a_trial_of_each_tool_shows_no_difference() -> None:
    assert not why(slow_tool(8, 100), own=(100.0,), others={("wrk", 1): (140.0,)})


def test_tools_whose_trials_scatter_show_no_difference() -> None:
    scattered = {"own": (38.0, 60.0, 77.0), "others": {("wrk", 1): (77.0, 90.0, 50.0)}}
    assert why(slow_tool(8, 100), **scattered) == ()


def test_another_tool_that_was_dealt_other_workers_proves_nothing() -> None:
    trial = gthread(16)
    known = {"own": (7.0, 7.0), "others": {("wrk", 1): (8.0, 8.0)}}
    assert why(trial, 1.0, **known) == ()
    assert why(bare(trial), 1.0, **known) == ()


def kept(connections: int, established: int, *, accepts: int = 4) -> TrialData:
    """Connections that carried many requests each, as the kernel saw them."""
    base = slow_tool(connections, 100)
    spans = (
        changed(span, accept_ns=ns(0) + number % accepts)
        for number, span in enumerate(base.spans.spans)
    )
    states = {"ESTABLISHED": established}
    seen = tuple(
        ConnectionSample(one.at_ns, states, states, one.per_worker, 0)
        for one in base.observations.connections
    )
    return with_spans(seeing(asking(base, keepalive=True), connections=seen), spans)


def test_connections_that_were_never_there() -> None:
    missing = TooFewEstablished(established=6, connections=8)
    assert why(kept(8, 6)) == (missing,)
    assert why(kept(8, 8)) == ()


def test_connections_that_the_server_does_not_keep_come_and_go() -> None:
    assert why(kept(8, 6, accepts=10_000)) == ()


def test_what_gives_all_it_can_is_not_held_up() -> None:
    """A tool at its limit is not the limit, where every connection is served as a lone one is."""
    trial = seen_by(evidence(server("gevent"), 8, rounds=10, delay_s=0.1), tool_cores=0.95)
    others = {("wrk", 1): 200.0}
    assert why(trial, 0.1, ceilings=[CEILING], others=others, levels={8: 80.0}) == ()


def test_a_rate_is_held_against_ceiling_and_cpu_alone() -> None:
    trial = bare(asking(kept(8, 6), keepalive=False, rate=Rate(rps=100.0)))
    known = {"levels": {4: 100.0, 8: 100.0}, "others": {("wrk", 1): 200.0}}
    assert why(trial, **known) is None
    assert codes(trial, ceilings=[CEILING], **known) == ["NearCeiling"]


# --- in a report ------------------------------------------------------------------------------


def test_a_bound_cell_says_what_its_figures_are() -> None:
    (cell,) = report_of(slow_tool(8, 100, tool_cores=0.95)).cells
    assert cell.verdict == "generator-bound"
    assert cell.generator_bound is True
    assert cell.throughput_rps == pytest.approx(100, rel=0.05)
    assert isinstance(cell.reason, GeneratorBound)
    assert (cell.reason.tool, cell.reason.certainty) == ("ab", "is")
    assert cell.reason.rps == pytest.approx(100, rel=0.05)
    assert cell.reason.reasons == cell.bound_reasons
    assert [reason.code for reason in cell.bound_reasons] == ["ToolBusy"]
    assert isinstance(cell.diagnosis, LoadToolIsLimit)
    assert cell.diagnosis.advice == (FASTER_TOOL,)


def test_on_a_busy_machine_more_processes_are_no_cure() -> None:
    (cell,) = report_of(slow_tool(8, 100, tool_cores=0.95, host=0.97)).cells
    assert isinstance(cell.diagnosis, LoadToolIsLimit)
    (advice,) = cell.diagnosis.advice
    assert advice.endswith("the cores of this one are 97 % busy")


def test_no_knee_and_no_capacity_from_bound_cells() -> None:
    report = report_of(*(slow_tool(level, 100, tool_cores=0.95) for level in (4, 8, 16, 32)))
    (found,) = report.classes
    assert (found.knee, found.capacity_rps) == (None, None)
    assert isinstance(found.knee_note, KneeAtLeast)
    assert found.knee_note.why == ToolLimitFrom(4, "ab")
    assert report.overhead is None


def test_a_knee_below_the_tools_limit_stays() -> None:
    trials = [seen_by(evidence(SYNC, level, rounds=10, delay_s=0.05)) for level in (4, 8)]
    high = seen_by(evidence(SYNC, 16, rounds=8, delay_s=0.05, slots=[3]), tool_cores=0.95)
    report = report_of(*trials, high)
    assert report.cells[-1].verdict == "generator-bound"
    assert report.classes[0].knee == pytest.approx(4.0, rel=0.05)
    note = report.classes[0].knee_note
    assert isinstance(note, KneeNote)
    assert note.tool_limit == ToolLimitFrom(16, "ab")


def test_the_lab_compares_the_tools_of_a_run_by_itself() -> None:
    report = report_of(
        *(again(slow_tool(8, rps, tool=tool), number)
          for tool, rps in (("ab", 100), ("fast", 200)) for number in (1, 2, 3))
    )  # fmt: skip
    low, _, _, high, _, _ = report.cells
    assert (low.verdict, high.generator_bound) == ("generator-bound", False)
    (reason,) = low.bound_reasons
    assert (reason.code, reason.values["tool"]) == ("OtherToolFaster", "fast")
    assert reason.values["rps"] == pytest.approx(200, rel=0.05)


def test_processes_of_a_tool_are_series_of_their_own() -> None:
    slow, quick = slow_tool(8, 100), asking(slow_tool(8, 200), processes=2)
    report = report_of(*(again(one, number) for one in (slow, quick) for number in (1, 2)))
    assert [group.processes for group in report.classes] == [1, 2]
    (reason,) = report.cells[0].bound_reasons
    assert (reason.values["tool"], reason.values["processes"]) == ("ab", 2)


def test_ceilings_come_from_the_runs_environment() -> None:
    kept_in = [{"tool": "ab", "keepalive": False, "processes": 1, "connections": 16, "rps": 150.0}]
    (cell,) = report_of(slow_tool(8, 100), ceilings=kept_in).cells
    assert isinstance(cell.reason, GeneratorBound)
    assert cell.reason.certainty == "may be"  # seen elsewhere
    assert every(cell.reason)["NearCeiling"].values["ceiling_rps"] == 150.0


@pytest.mark.parametrize("kept_in", [None, "x", [1], [{}], [{"tool": "ab"}], [None]])
def test_ceilings_that_cannot_be_read_are_none(kept_in: object) -> None:
    assert ceilings({"ceilings": kept_in}) == ()


def test_where_nothing_was_seen_nothing_is_cleared() -> None:
    trial = bare(slow_tool(8, 100))
    assert report_of(trial).cells[0].generator_bound is None


def test_sleeping_servers_are_not_held_up_by_their_tools() -> None:
    trials = [evidence(SYNC, level) for level in (4, 8, 16)]
    assert [cell.generator_bound for cell in report_of(*trials).cells] == [False] * 3


def test_requests_in_flight_by_the_clients_own_count() -> None:
    base = evidence(SYNC, 8, rounds=10)
    cell = report_of(base).cells[0]
    assert cell.achieved_concurrency == pytest.approx(8, rel=0.1)
    told = saying(base, achieved_concurrency=7.5)
    assert report_of(told).cells[0].achieved_concurrency == 7.5
    synthetic = saying(base, exact_mean=False)
    assert report_of(synthetic).cells[0].achieved_concurrency is None


def test_without_series_there_is_nothing_to_judge() -> None:
    assert with_tool_limits([], {}) == ()
