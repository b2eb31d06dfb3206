"""When the load tool is the limit: each witness on its own, and what it does to a report."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from harness.analysis import TrialData, analyse
from harness.analysis.facts import Facts, look
from harness.analysis.load_tool import Ceiling, Suspect, ceilings, judge
from harness.analysis.suspects import judgements
from harness.model import ConnectionSample, ProcessSample, Rate, Report
from tests.builders.analysis import SYNC, bare, evidence, gthread, ns, server

FAST = server("gthread", 1, 8)
SHORT_S = 0.002


def facts_of(trial: TrialData) -> Facts:
    found = look(trial)
    assert isinstance(found, Facts), found
    return found


def slow_tool(connections: int, rps: float, *, tool: str = "ab", **kept: Any) -> TrialData:
    """A server with slots to spare, and a tool that hands it no more than `rps`: as if one more
    slot, before the server, were taken by each request for 1/rps; the spans are the server's."""
    rounds = max(2, math.ceil(90 / connections))
    lasting = evidence(FAST, connections, slots=[1], delay_s=1 / rps, rounds=rounds, tool=tool)
    spans = tuple(
        replace(span, start_ns=(span.end_ns or 0) - ns(SHORT_S) + ns(0), accept_ns=None)
        for span in lasting.spans.spans
    )
    spans = tuple(replace(span, accept_ns=span.start_ns) for span in spans)
    record = replace(lasting.record, lone_s=(SHORT_S,) * 3) if lasting.record else None
    said = lasting.measurement
    assert said is not None
    found = replace(
        lasting,
        record=record,
        measurement=replace(said, lone_s=SHORT_S),
        spans=replace(lasting.spans, spans=spans),
    )
    return seen_by(found, **kept)


def seen_by(
    trial: TrialData, *, tool_cores: float = 0.1, server_cores: float = 0.1, host: float = 0.5
) -> TrialData:
    """The same trial where so many cores were used all the time, of 2, and nothing waited in the
    kernel or inside the workers."""
    assert trial.record is not None
    assert trial.record.load_end_ns is not None
    load_s = (trial.record.load_end_ns - ns(0)) / 1e9
    moments = [load_s * step / 40 for step in range(41)]
    seen = replace(
        trial.observations,
        processes=tuple(
            ProcessSample(ns(at), at * server_cores, at * tool_cores, at * 2 * host, None, None)
            for at in moments
        ),
        queue=tuple(replace(one, length=0) for one in trial.observations.queue),
        cores=2,
    )
    return replace(trial, observations=seen)


def suspect(trial: TrialData, lone_s: float = SHORT_S, **known: Any) -> Suspect:
    return Suspect(facts_of(trial), lone_s, **known)


def report_of(*trials: TrialData, **environment: object) -> Report:
    return analyse("run", environment, trials)


# --- each witness -------------------------------------------------------------------------------


def test_a_tool_that_uses_its_core_is_the_limit() -> None:
    found = judge(suspect(slow_tool(8, 100, tool_cores=0.93)))
    assert found.bound is True
    assert found.reasons == ("it used 0.93 cores, 93 % of the one core it can use",)
    assert judge(suspect(slow_tool(8, 100, tool_cores=0.7))).bound is False


def test_a_tool_of_several_processes_has_several_cores() -> None:
    trial = replace(slow_tool(8, 100, tool_cores=1.2), units=2)
    assert judge(suspect(trial)).bound is False
    full = replace(slow_tool(8, 100, tool_cores=1.7), units=4)  # of which the machine has 2
    assert "85 % of the 2 cores" in judge(suspect(full)).reasons[0]


def test_a_short_load_is_not_judged_by_the_cpu_of_the_tools_own_start() -> None:
    trial = slow_tool(4, 1000, tool_cores=1.0)
    assert facts_of(trial).load_s < 0.5
    assert judge(suspect(trial)).bound is None


def test_the_whole_load_speaks_where_nobody_looked_at_the_tool() -> None:
    base = bare(slow_tool(8, 30))
    assert base.record is not None
    used = replace(base, record=replace(base.record, tool_cpu_s=facts_of(base).load_s * 0.9))
    assert judge(suspect(used)).bound is True


def test_a_plateau_without_a_busy_server_is_the_tools() -> None:
    trial = slow_tool(16, 100)
    found = judge(suspect(trial, levels={8: 100.0, 16: 100.0}))
    assert found.bound is True
    assert "from 8 to 16 connections requests/s changed by +0 %" in found.reasons[0]
    assert "of 16 requests were inside it" in found.reasons[0]


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
    assert judge(suspect(slow_tool(16, 100, **kept), levels=levels)).bound is False


def test_requests_that_wait_inside_the_server_are_not_the_tools() -> None:
    """A lock in the app: nothing is busy, all requests are in it."""
    trial = seen_by(evidence(server("gthread", 1, 16), 16, rounds=6, delay_s=0.2))
    found = judge(suspect(trial, 0.05, levels={8: 80.0, 16: 80.0}))
    assert found.bound is False


CEILING = Ceiling("ab", keepalive=False, processes=1, connections=16, rps=250.0)


def test_a_ceiling_below_three_times_the_rate() -> None:
    trial = slow_tool(8, 100)
    found = judge(suspect(trial, ceilings=[CEILING]))
    assert found.bound is True
    assert "it reaches 250 requests/s (16 connections), not 3 times the 100" in found.reasons[0]
    assert judge(suspect(trial, ceilings=[replace(CEILING, rps=350.0)])).bound is False


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
    assert judge(suspect(trial, ceilings=[replace(CEILING, **other)])).bound is None


@pytest.mark.parametrize("cause", ["no_address", "no_files"])
def test_what_its_own_machine_did_not_give_it_is_no_fault_of_the_server(cause: str) -> None:
    trial = slow_tool(8, 100)
    assert trial.measurement is not None
    said = replace(trial.measurement, failed=3, errors={cause: 3})
    (cell,) = report_of(replace(trial, measurement=said)).cells
    assert (cell.verdict, cell.generator_bound) == ("generator-bound", True)
    assert any(why.startswith("3 requests found no ") for why in cell.bound_reasons)


def test_a_ceiling_below_what_came_out_is_not_believed() -> None:
    trial = suspect(slow_tool(8, 100), ceilings=[Ceiling("ab", False, 1, 16, 80.0)])
    assert judge(trial).bound is not True


def test_a_load_from_other_hosts_is_not_judged_by_what_is_seen_here() -> None:
    trial = replace(slow_tool(8, 100, tool_cores=0.95), elsewhere=True)
    assert judge(suspect(trial, ceilings=[CEILING])).bound is None


def test_the_ceiling_of_as_many_connections_or_more_counts() -> None:
    low, high = replace(CEILING, rps=1000.0), replace(CEILING, connections=64)
    assert judge(suspect(slow_tool(16, 100), ceilings=[high, low])).bound is False
    assert judge(suspect(slow_tool(32, 100), ceilings=[high, low])).bound is True
    assert judge(suspect(slow_tool(100, 100), ceilings=[high, low])).bound is True


def test_another_tool_that_gets_more() -> None:
    trial, levels = slow_tool(8, 100), {8: 100.0}
    found = judge(suspect(trial, levels=levels, others={"wrk": 140.0, "fast": 90.0}))
    assert found.bound is True
    assert "wrk got 140 requests/s" in found.reasons[0]
    assert "40 % more" in found.reasons[0]
    assert judge(suspect(trial, levels=levels, others={"wrk": 104.0})).bound is False


def test_another_tool_that_was_dealt_other_workers_proves_nothing() -> None:
    trial = gthread(16)
    known = {"levels": {16: 7.0}, "others": {"wrk": 8.0}}
    assert judge(suspect(trial, 1.0, **known)).bound is False
    assert judge(suspect(bare(trial), 1.0, **known)).bound is False


def kept(connections: int, established: int, *, accepts: int = 4) -> TrialData:
    """Connections that bore many requests each, as the kernel saw them."""
    base = slow_tool(connections, 100)
    cell = replace(base.trial.cell, keepalive=True)
    spans = tuple(
        replace(span, accept_ns=ns(0) + number % accepts)
        for number, span in enumerate(base.spans.spans)
    )
    states = {"ESTABLISHED": established}
    seen = tuple(
        ConnectionSample(one.at_ns, states, states, one.per_worker, 0)
        for one in base.observations.connections
    )
    return replace(
        base,
        trial=replace(base.trial, cell=cell),
        spans=replace(base.spans, spans=spans),
        observations=replace(base.observations, connections=seen),
    )


def test_connections_that_were_never_there() -> None:
    found = judge(suspect(kept(8, 6)))
    assert found.reasons == ("only 6 of 8 connections were established",)
    assert judge(suspect(kept(8, 8))).bound is False


def test_connections_that_the_server_does_not_keep_come_and_go() -> None:
    assert judge(suspect(kept(8, 6, accepts=10_000))).bound is False


def test_what_gives_all_it_can_is_not_held_up() -> None:
    """A tool at its limit is not the limit, where every connection is served as a lone one is."""
    trial = seen_by(evidence(server("gevent"), 8, rounds=10, delay_s=0.1), tool_cores=0.95)
    found = judge(suspect(trial, 0.1, ceilings=[CEILING], others={"wrk": 200.0}, levels={8: 80.0}))
    assert (found.bound, found.reasons) == (False, ())


def test_a_rate_is_held_against_ceiling_and_cpu_alone() -> None:
    base = kept(8, 6)
    cell = replace(base.trial.cell, keepalive=False, rate=Rate(rps=100.0))
    trial = bare(replace(base, trial=replace(base.trial, cell=cell)))
    known = {"levels": {4: 100.0, 8: 100.0}, "others": {"wrk": 200.0}}
    assert judge(suspect(trial, **known)).bound is None
    assert judge(suspect(trial, ceilings=[CEILING], **known)).bound is True


# --- in a report ------------------------------------------------------------------------------


def test_a_bound_cell_says_what_its_figures_are() -> None:
    (cell,) = report_of(slow_tool(8, 100, tool_cores=0.95)).cells
    assert cell.verdict == "generator-bound"
    assert cell.generator_bound is True
    assert cell.throughput_rps == pytest.approx(100, rel=0.05)
    assert cell.reason.startswith("ab is the limit, not the server: it used 0.95 cores")
    assert cell.reason.endswith("the server can do at least 100 requests/s")
    assert cell.diagnosis is not None
    assert "A faster load tool" in cell.diagnosis


def test_on_a_busy_machine_more_processes_are_no_cure() -> None:
    (cell,) = report_of(slow_tool(8, 100, tool_cores=0.95, host=0.97)).cells
    assert cell.diagnosis is not None
    assert "--tool-processes" not in cell.diagnosis
    assert "97 % busy" in cell.diagnosis


def test_no_knee_and_no_capacity_from_bound_cells() -> None:
    report = report_of(*(slow_tool(level, 100, tool_cores=0.95) for level in (4, 8, 16, 32)))
    (found,) = report.classes
    assert (found.knee, found.capacity_rps) == (None, None)
    assert found.knee_note.startswith("at least")
    assert "from 4 connections on ab is the limit" in found.knee_note
    assert report.overhead is None


def test_a_knee_below_the_tools_limit_stays() -> None:
    trials = [seen_by(evidence(SYNC, level, rounds=10, delay_s=0.05)) for level in (4, 8)]
    high = seen_by(evidence(SYNC, 16, rounds=8, delay_s=0.05, slots=[3]), tool_cores=0.95)
    report = report_of(*trials, high)
    assert report.cells[-1].verdict == "generator-bound"
    assert report.classes[0].knee == pytest.approx(4.0, rel=0.05)


def test_the_lab_compares_the_tools_of_a_run_by_itself() -> None:
    quick = slow_tool(8, 200, tool="fast")
    report = report_of(slow_tool(8, 100), quick)
    low, high = report.cells
    assert (low.verdict, high.generator_bound) == ("generator-bound", False)
    assert "fast got 200 requests/s" in low.reason


def test_processes_of_a_tool_are_groups_of_their_own() -> None:
    base = slow_tool(8, 200)
    two = replace(base, trial=replace(base.trial, cell=replace(base.trial.cell, processes=2)))
    report = report_of(slow_tool(8, 100), two)
    assert [group.processes for group in report.classes] == [1, 2]
    assert "ab with 2 processes got 200" in report.cells[0].reason


def test_ceilings_come_from_the_runs_environment() -> None:
    kept_in = [{"tool": "ab", "keepalive": False, "processes": 1, "connections": 16, "rps": 150.0}]
    (cell,) = report_of(slow_tool(8, 100), ceilings=kept_in).cells
    assert "it reaches 150 requests/s" in cell.reason


@pytest.mark.parametrize("kept_in", [None, "x", [1], [{}], [{"tool": "ab"}], [None]])
def test_ceilings_that_cannot_be_read_are_none(kept_in: object) -> None:
    assert ceilings({"ceilings": kept_in}) == ()


def test_who_saw_nothing_clears_nobody() -> None:
    trial = bare(slow_tool(8, 100))
    assert report_of(trial).cells[0].generator_bound is None


def test_sleeping_servers_are_not_held_up_by_their_tools() -> None:
    trials = [evidence(SYNC, level) for level in (4, 8, 16)]
    assert [cell.generator_bound for cell in report_of(*trials).cells] == [False] * 3


def test_requests_in_flight_by_the_clients_own_count() -> None:
    base = evidence(SYNC, 8, rounds=10)
    assert base.measurement is not None
    cell = report_of(base).cells[0]
    assert cell.achieved_concurrency == pytest.approx(8, rel=0.1)
    told = replace(base, measurement=replace(base.measurement, achieved_concurrency=7.5))
    assert report_of(told).cells[0].achieved_concurrency == 7.5
    synthetic = replace(base, measurement=replace(base.measurement, exact_mean=False))
    assert report_of(synthetic).cells[0].achieved_concurrency is None


def test_nothing_is_judged_where_nothing_is_believed() -> None:
    assert judgements([], {}) == {}
