"""What it cost to wait for a core: of servers whose response times follow from a law."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import bare, derived, evidence, judged, recording, seeing
from tests.builders.noise import noisy
from workerlab.analysis import TrialData
from workerlab.analysis.core_wait import core_wait, lost_share
from workerlab.analysis.diagnosis.cpu import CoresStolen, CoresTaken, Disturbance, disturbance
from workerlab.analysis.samples import lab_cores
from workerlab.model import CoreWait, ServiceSample
from workerlab.report.html.timeline_data import timeline
from workerlab.report.values import text

SECONDS = st.floats(0, 10)


def found(trial: TrialData) -> CoreWait:
    seen = core_wait(derived(trial))
    assert seen is not None
    return seen


def four(**noise: Any) -> TrialData:
    """4 connections on 4 slots of 0.1 s: 40 requests/s."""
    return noisy(evidence(connections=4, delay_s=0.1, rounds=50, tool="fast"), **noise)


# --- the share ------------------------------------------------------------------------------------


def test_alone_in_its_worker_a_request_loses_what_it_waits() -> None:
    """50 ms of sleep, 5 of CPU, 8 in the run queue: 63, of which 8."""
    assert lost_share(0.005, 0.008, 1, 0.063, 0.055) == pytest.approx(8 / 63)


@pytest.mark.parametrize("under_way", [1, 2, 4, 50])
def test_where_a_loop_only_computes_all_wait_for_all(under_way: int) -> None:
    """n requests of c + w one after the other take n (c + w), and would take n c."""
    held_s = under_way * 0.02
    assert lost_share(0.005, 0.015, under_way, held_s, 0.005) == pytest.approx(0.75)


def test_between_these_a_loop_is_partly_idle() -> None:
    """Measured, gevent, 4 connections per worker, 50 ms of sleep and 6.2 of CPU: 109.5 ms beside
    two programs that burn, with 21.2 in the run queue; alone it takes 58."""
    share = lost_share(0.0062, 0.0212, 4, 0.1095, 0.0575)
    assert 0.1095 * (1 - share) == pytest.approx(0.058, rel=0.05)


@given(SECONDS, SECONDS, st.floats(1, 1000), SECONDS, SECONDS)
def test_a_share_is_one(cpu: float, wait: float, n: float, held: float, lone: float) -> None:
    assert 0 <= lost_share(cpu, wait, n, held, lone) <= 1
    assert lost_share(cpu, 0.0, n, held, lone) == 0


@given(st.floats(1e-4, 1), st.floats(0, 1), st.floats(0, 1), st.floats(1, 100))
def test_who_waits_longer_loses_more(cpu: float, less: float, more: float, n: float) -> None:
    less, more = sorted((less, more))
    held = n * (cpu + 1)
    assert lost_share(cpu, less, n, held, cpu) <= lost_share(cpu, more, n, held, cpu) + 1e-9


def test_what_a_service_behind_the_app_takes_is_no_waiting() -> None:
    """Measured, gevent, 4 requests per worker that stand in line for 190 ms at a service of 10 ms,
    5.7 of them in the run queue: to wait for a core cost no more than 17 % of it."""
    assert lost_share(0.0022, 0.0057, 4, 0.193, 0.014) < 0.06


@pytest.mark.parametrize("lone_s", [(0.002, 0.1, 0.2), (0.1,), (0.004,)])
def test_of_random_service_the_luckiest_lone_request_says_little(lone_s: tuple[float, ...]) -> None:
    """2 ms of 100 in the run queue."""
    seen = found(recording(four(server_wait=0.08, others=1.5), lone_s=lone_s))
    assert seen.share <= 0.025


def test_who_answers_as_fast_as_alone_has_lost_nothing() -> None:
    """Measured, sync beside three burners: 19 ms a request in the run queue, most of them of
    workers that wake up for a connection which another one takes; 202 ms, alone 202."""
    trial = evidence(connections=4, delay_s=0.2, rounds=20, tool="fast")
    noise = noisy(trial, server_cores=0.01, server_wait=0.4, others=1.9)
    assert found(recording(noise, lone_s=(0.2, 0.203))).share < 0.01


# --- from the samples -----------------------------------------------------------------------------


def test_seconds_per_request() -> None:
    """Slots are held for 0.1 s, of which 0.01 in the run queue; the tool waits 2 ms a request."""
    seen = found(four(server_wait=0.4, tool_wait=0.08, others=1.5))
    assert seen.worker_s == pytest.approx(0.01, rel=0.01)
    assert seen.tool_s == pytest.approx(0.002, rel=0.01)
    assert seen.others_cores == pytest.approx(1.5)
    assert seen.share == pytest.approx(0.12, abs=0.005)
    assert seen.by_programs
    assert not seen.by_machines


def test_a_queue_in_front_of_the_slots_takes_its_share() -> None:
    """16 on 4 slots wait four times as long, and for the same part of it in vain."""
    trial = evidence(connections=16, delay_s=0.1, rounds=20, tool="fast")
    assert found(noisy(trial, server_wait=0.4)).share == pytest.approx(0.1, abs=0.005)


def test_sleeping_apps_are_exact_however_many_cores_are_taken() -> None:
    trial = evidence(connections=4, delay_s=1.0, rounds=10, tool="fast")
    seen = found(noisy(trial, server_wait=0.02, tool_wait=0.01, others=1.9))
    assert seen.share < 0.01
    assert not seen.by_programs
    assert disturbance(derived(noisy(trial, server_wait=0.02, others=1.9))) is None


def test_waiting_for_each_other_is_no_disturbance() -> None:
    seen = found(four(server_wait=3.0, others=0.2))
    assert seen.share > 0.5
    assert not seen.by_programs


def test_what_is_not_others() -> None:
    """Interrupts, steal, the lab itself and its other trials, and what the app stands on."""
    trial = four(server_wait=0.4, others=0.0, irq=0.3, steal=0.2, lab=0.1, beside=0.5)
    assert found(trial).others_cores == pytest.approx(0, abs=1e-6)
    assert found(trial).steal_cores == pytest.approx(0.2)
    ends = [
        one.at_ns for one in trial.observations.processes[:: len(trial.observations.processes) - 1]
    ]
    busy = [ServiceSample(at, {"storage": (at - ends[0]) / 1e9}, {}) for at in ends]
    beside = seeing(four(server_wait=0.4, others=1.2), services=tuple(busy))
    assert found(beside).others_cores == pytest.approx(0.2)


def test_beside_other_trials_strangers_are_still_told_from_the_lab() -> None:
    noise = four(server_wait=0.4, others=1.2, beside=0.3)
    assert found(noise).others_cores == pytest.approx(1.2)
    assert found(noise).by_programs
    assert not found(four(server_wait=0.4, others=0.0, beside=1.5)).by_programs


def test_the_machine_is_as_busy_as_without_other_trials() -> None:
    alone, beside = four(others=0.4), four(others=0.4, beside=0.6)
    assert derived(beside).usage == derived(alone).usage
    moments = [
        [moment.host_busy for moment in timeline(derived(trial)).usage] for trial in (alone, beside)
    ]
    assert moments[1] == pytest.approx(moments[0])
    assert lab_cores(beside.observations.processes) == pytest.approx(0.1 + 0.05 + 0.6)


def test_what_nobody_saw_is_missing() -> None:
    assert core_wait(derived(bare(four()))) is None
    assert core_wait(derived(four(server_wait=None))) is None
    unseen = found(four(server_wait=0.4, tool_wait=None, steal=None))
    assert (unseen.tool_s, unseen.steal_cores) == (None, None)
    assert not unseen.by_machines
    elsewhere = replace(four(server_wait=0.4, tool_wait=3.0), remote_load=True)
    assert found(elsewhere).tool_s is None
    assert found(elsewhere).share == pytest.approx(0.1, abs=0.005)


def test_a_load_too_short_for_its_steady_part_is_taken_as_a_whole() -> None:
    trial = noisy(evidence(connections=4, delay_s=0.1, rounds=3, tool="fast"), server_wait=0.4)
    assert found(trial).worker_s == pytest.approx(0.01, rel=0.35)  # filling and draining included


def test_a_load_between_two_samples_has_its_wait() -> None:
    """Nobody looked at the load tool while it ran: its guard says what it used. What it waited is
    that of its start, too, which is none of the responses'."""
    base = evidence(connections=4, delay_s=0.1, rounds=3, tool="fast")
    trial = noisy(base, server_wait=0.4, tool_wait=0.8, others=1.5)
    first, *_, last = trial.observations.processes
    ends = replace(first, tool_wait_s=None, tool_cpu_s=None), replace(last, tool_cpu_s=None)
    load_s = (last.at_ns - first.at_ns) / 1e9
    short = recording(seeing(trial, processes=ends), tool_cpu_s=0.05 * load_s)
    assert found(short).tool_s is None
    assert found(short).share == pytest.approx(0.1, abs=0.04)
    assert found(short).others_cores == pytest.approx(1.5, rel=0.01)
    assert found(short).by_programs


def test_computing_lost_to_another_machine() -> None:
    """A tenth of what the host was busy is gone; all of a response is computing."""
    trial = recording(four(server_cores=1.2, steal=0.3, others=0.0), lone_s=(0.03,))
    seen = found(trial)
    assert seen.stolen_share == pytest.approx(0.3 / 1.55, rel=0.05)
    assert seen.by_machines
    assert not seen.by_programs


# --- what is said ---------------------------------------------------------------------------------


def said(trial: TrialData) -> tuple[Disturbance, str]:
    finding = disturbance(derived(trial))
    assert finding is not None
    return finding, text(finding)


def test_other_programs_are_named_with_their_numbers() -> None:
    finding, sentence = said(four(server_wait=0.4, others=1.5))
    assert isinstance(finding, CoresTaken)
    assert finding.wait.others_cores == pytest.approx(1.5)
    assert finding.share == pytest.approx(0.1, abs=0.005)
    assert "1.50 of 2 cores" in sentence
    assert "10 % of the response time" in sentence
    assert "close the other programs" in sentence


def test_others_are_blamed_for_no_more_than_they_can_have_caused() -> None:
    """Threads that wait for each other: 3.2 s a second, of which others ran 0.3."""
    finding, _ = said(four(server_wait=3.2, others=0.3))
    seen = found(four(server_wait=3.2, others=0.3))
    assert finding.share == seen.lost < seen.share


def test_what_all_of_them_took_is_a_part_of_the_response() -> None:
    """Nine tenths in the run queue beside a host that gave most of the cores away."""
    finding, _ = said(four(server_wait=30.0, others=0.1, steal=1.6))
    assert isinstance(finding, CoresStolen)
    assert 0.05 <= finding.share < 1


def test_other_machines_are_named_apart() -> None:
    finding, sentence = said(four(server_wait=0.4, others=0.1, steal=0.5))
    assert isinstance(finding, CoresStolen)
    assert "0.50 of 2 cores to other machines" in sentence


def test_a_cell_shows_it() -> None:
    cell = judged(four(server_wait=0.4, others=1.5))
    assert cell.core_wait == core_wait(derived(four(server_wait=0.4, others=1.5)))
