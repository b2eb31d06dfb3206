"""The cost of waiting for a core, for servers whose response times are known in theory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import bare, derived, evidence, with_observations, with_record
from tests.builders.noise import noisy
from workerlab.analysis import TrialData
from workerlab.analysis.core_wait import core_wait, lost_share
from workerlab.analysis.diagnosis.cpu import CoresStolen, CoresTaken, Disturbance, disturbance
from workerlab.analysis.samples import lab_cores
from workerlab.model.evidence import ServiceSample
from workerlab.model.result import CoreWait
from workerlab.report.html.timeline_data import timeline
from workerlab.report.values import text

SECONDS = st.floats(0, 10)


def wait_of(trial: TrialData) -> CoreWait:
    return core_wait(derived(trial))


def four(**noise: Any) -> TrialData:
    """4 connections on 4 slots of 0.1 s: 40 requests/s."""
    return noisy(evidence(connections=4, delay_s=0.1, rounds=50, tool="fast"), **noise)


# --- the share ------------------------------------------------------------------------------------


def test_a_single_request_per_worker_loses_its_wait() -> None:
    """50 ms of sleep, 5 ms of CPU and 8 ms in the run queue."""
    assert lost_share(0.005, 0.008, 1, 0.063, 0.055) == pytest.approx(8 / 63)


@pytest.mark.parametrize("under_way", [1, 2, 4, 50])
def test_requests_of_a_computing_loop_wait_for_each_other(under_way: int) -> None:
    """n requests of c + w in sequence take n (c + w) instead of n c."""
    held_s = under_way * 0.02
    assert lost_share(0.005, 0.015, under_way, held_s, 0.005) == pytest.approx(0.75)


def test_a_partly_idle_loop_loses_less() -> None:
    """Measured with gevent, 4 connections per worker, 50 ms of sleep and 6.2 ms of CPU: 109.5 ms
    beside two CPU burners, 21.2 ms of it in the run queue; 58 ms without them."""
    share = lost_share(0.0062, 0.0212, 4, 0.1095, 0.0575)
    assert 0.1095 * (1 - share) == pytest.approx(0.058, rel=0.05)


@given(SECONDS, SECONDS, st.floats(1, 1000), SECONDS, SECONDS)
def test_a_share_is_between_0_and_1(
    cpu: float, wait: float, n: float, held: float, lone: float
) -> None:
    assert 0 <= lost_share(cpu, wait, n, held, lone) <= 1
    assert lost_share(cpu, 0.0, n, held, lone) == 0


@given(st.floats(1e-4, 1), st.floats(0, 1), st.floats(0, 1), st.floats(1, 100))
def test_a_longer_wait_costs_more(cpu: float, less: float, more: float, n: float) -> None:
    less, more = sorted((less, more))
    held = n * (cpu + 1)
    assert lost_share(cpu, less, n, held, cpu) <= lost_share(cpu, more, n, held, cpu) + 1e-9


def test_waiting_for_a_service_is_not_waiting_for_a_core() -> None:
    """Measured with gevent: 4 requests per worker queue for 190 ms at a service of 10 ms, 5.7 ms of
    it in the run queue."""
    assert lost_share(0.0022, 0.0057, 4, 0.193, 0.014) < 0.06


@pytest.mark.parametrize("lone_s", [(0.002, 0.1, 0.2), (0.1,), (0.004,)])
def test_the_fastest_lone_request_of_random_service_says_little(lone_s: tuple[float, ...]) -> None:
    """2 of 100 ms in the run queue."""
    assert wait_of(with_record(four(server_wait=0.08, others=1.5), lone_s=lone_s)).share <= 0.025


def test_responses_as_fast_as_lone_ones_lose_nothing() -> None:
    """Measured with sync beside three CPU burners: 19 ms per request in the run queue, mostly of
    workers that wake up for a connection which another one accepts; 202 ms with and without."""
    trial = evidence(connections=4, delay_s=0.2, rounds=20, tool="fast")
    noise = noisy(trial, server_cores=0.01, server_wait=0.4, others=1.9)
    assert wait_of(with_record(noise, lone_s=(0.2, 0.203))).share < 0.01


# --- from the samples -----------------------------------------------------------------------------


def test_seconds_per_request() -> None:
    """Slots are held for 0.1 s, 0.01 s of it in the run queue; the tool waits 2 ms per request."""
    wait = wait_of(four(server_wait=0.4, tool_wait=0.08, others=1.5))
    assert wait.worker_s == pytest.approx(0.01, rel=0.01)
    assert wait.tool_s == pytest.approx(0.002, rel=0.01)
    assert wait.others_cores == pytest.approx(1.5)
    assert wait.share == pytest.approx(0.12, abs=0.005)
    assert wait.disturbed_by_programs
    assert not wait.disturbed_by_machines


def test_other_programs_do_not_disturb_sleeping_apps() -> None:
    trial = evidence(connections=4, delay_s=1.0, rounds=10, tool="fast")
    wait = wait_of(noisy(trial, server_wait=0.02, tool_wait=0.01, others=1.9))
    assert wait.share < 0.01
    assert not wait.disturbed_by_programs
    assert disturbance(derived(noisy(trial, server_wait=0.02, others=1.9))) is None


def test_cores_used_by_others_exclude_the_lab_and_the_system() -> None:
    """Interrupts, steal, the lab itself, its other trials, and the app's services."""
    trial = four(server_wait=0.4, others=0.0, irq=0.3, steal=0.2, lab=0.1, beside=0.5)
    assert wait_of(trial).others_cores == pytest.approx(0, abs=1e-6)
    assert wait_of(trial).steal_cores == pytest.approx(0.2)
    first, *_, last = (sample.at_ns for sample in trial.observations.processes)
    busy = [ServiceSample(at, {"storage": (at - first) / 1e9}, {}) for at in (first, last)]
    with_storage = with_observations(four(server_wait=0.4, others=1.2), services=tuple(busy))
    assert wait_of(with_storage).others_cores == pytest.approx(0.2)
    assert wait_of(four(server_wait=0.4, others=1.2, beside=0.3)).others_cores == pytest.approx(1.2)
    assert not wait_of(four(server_wait=0.4, others=0.0, beside=1.5)).disturbed_by_programs


def test_other_trials_do_not_make_the_host_busier() -> None:
    alone, beside = four(others=0.4), four(others=0.4, beside=0.6)
    assert derived(beside).usage == derived(alone).usage
    moments = [
        [moment.host_busy for moment in timeline(derived(trial)).usage] for trial in (alone, beside)
    ]
    assert moments[1] == pytest.approx(moments[0])
    assert lab_cores(beside.observations.processes) == pytest.approx(0.1 + 0.05 + 0.6)


def test_unobserved_waits_are_missing() -> None:
    assert wait_of(bare(four())) is None
    assert wait_of(four(server_wait=None)) is None
    partial = wait_of(four(server_wait=0.4, tool_wait=None, steal=None))
    assert (partial.tool_s, partial.steal_cores) == (None, None)
    assert not partial.disturbed_by_machines
    remote = replace(four(server_wait=0.4, tool_wait=3.0), remote_load=True)
    assert wait_of(remote).tool_s is None
    assert wait_of(remote).share == pytest.approx(0.1, abs=0.005)


def test_a_load_without_a_steady_part_is_used_as_a_whole() -> None:
    trial = noisy(evidence(connections=4, delay_s=0.1, rounds=3, tool="fast"), server_wait=0.4)
    assert wait_of(trial).worker_s == pytest.approx(0.01, rel=0.35)  # filling and draining included


def test_a_load_between_two_samples_has_a_wait() -> None:
    """No sample was taken while the load tool ran, so its guard reports its CPU time. Its wait
    includes its start and is not used."""
    base = evidence(connections=4, delay_s=0.1, rounds=3, tool="fast")
    trial = noisy(base, server_wait=0.4, tool_wait=0.8, others=1.5)
    first, *_, last = trial.observations.processes
    ends = replace(first, tool_wait_s=None, tool_cpu_s=None), replace(last, tool_cpu_s=None)
    load_s = (last.at_ns - first.at_ns) / 1e9
    short = with_record(with_observations(trial, processes=ends), tool_cpu_s=0.05 * load_s)
    assert wait_of(short).tool_s is None
    assert wait_of(short).share == pytest.approx(0.1, abs=0.04)
    assert wait_of(short).others_cores == pytest.approx(1.5, rel=0.01)
    assert wait_of(short).disturbed_by_programs


def test_stolen_cores_count_as_lost_computing() -> None:
    """Other machines take a part of the busy cores, and a response only computes."""
    trial = with_record(four(server_cores=1.2, steal=0.3, others=0.0), lone_s=(0.03,))
    wait = wait_of(trial)
    assert wait.stolen_share == pytest.approx(0.3 / 1.55, rel=0.05)
    assert wait.disturbed_by_machines
    assert not wait.disturbed_by_programs


# --- findings -------------------------------------------------------------------------------------


def finding_and_text(trial: TrialData) -> tuple[Disturbance, str]:
    finding = disturbance(derived(trial))
    return finding, text(finding)


def test_other_programs_are_named_with_their_numbers() -> None:
    finding, sentence = finding_and_text(four(server_wait=0.4, others=1.5))
    assert isinstance(finding, CoresTaken)
    assert finding.wait.others_cores == pytest.approx(1.5)
    assert finding.share == pytest.approx(0.1, abs=0.005)
    assert "1.50 of 2 cores" in sentence
    assert "10 % of the response time" in sentence
    assert "close the other programs" in sentence


def test_others_cause_no_more_than_they_ran() -> None:
    """Threads wait mostly for each other: for 3.2 s per second, while others run for 0.3 s."""
    finding, _ = finding_and_text(four(server_wait=3.2, others=0.3))
    wait = wait_of(four(server_wait=3.2, others=0.3))
    assert finding.share == wait.share_lost_to_programs < wait.share


def test_other_machines_are_named_with_their_cores() -> None:
    finding, sentence = finding_and_text(four(server_wait=0.4, others=0.1, steal=0.5))
    assert isinstance(finding, CoresStolen)
    assert "0.50 of 2 cores to other machines" in sentence
    # Nine tenths of the response are in the run queue: a share of it is less than the response
    finding, _ = finding_and_text(four(server_wait=30.0, others=0.1, steal=1.6))
    assert isinstance(finding, CoresStolen)
    assert 0.05 <= finding.share < 1
