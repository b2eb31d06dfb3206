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
from workerlab.analysis.diagnosis.cpu import CoresStolen, CoresTaken, disturbance
from workerlab.analysis.samples import lab_cores
from workerlab.model.evidence import ServiceSample
from workerlab.model.result import CoreWait
from workerlab.report.html.timeline_data import timeline
from workerlab.report.values import text

SECONDS = st.floats(0, 10)


def wait_of(trial: TrialData) -> CoreWait:
    return core_wait(derived(trial))


def load(delay_s: float = 0.1, rounds: int = 50) -> TrialData:
    """4 connections on 4 slots."""
    return evidence(connections=4, delay_s=delay_s, rounds=rounds, tool="fast")


def loaded(**noise: Any) -> TrialData:
    """40 requests/s on a noisy machine."""
    return noisy(load(), **noise)


# --- the share ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu_s", "wait_s", "n", "held_s", "lone_s", "without_wait_s"),
    [
        # One request per worker: 50 ms of sleep, 5 ms of CPU and 8 ms in the run queue
        (0.005, 0.008, 1, 0.063, 0.055, pytest.approx(0.055, rel=1e-7)),
        # On a computing loop, n requests of c + w in sequence take n (c + w) instead of n c
        *((0.005, 0.015, n, n * 0.02, 0.005, pytest.approx(n * 0.005)) for n in (1, 2, 4, 50)),
        # Measured with gevent on a partly idle loop, 50 ms of sleep and 6.2 ms of CPU: 109.5 ms
        # with two CPU burners, 21.2 ms of it in the run queue; 58 ms without them
        (0.0062, 0.0212, 4, 0.1095, 0.0575, pytest.approx(0.058, rel=0.05)),
        # Measured with gevent: requests queue for 190 ms at a service of 10 ms, 5.7 ms of it in
        # the run queue. Waiting for a service is not waiting for a core
        (0.0022, 0.0057, 4, 0.193, 0.014, pytest.approx(0.193, rel=0.0599)),
    ],
)
def test_waiting_for_a_core_costs_a_share_of_the_response(
    cpu_s: float, wait_s: float, n: int, held_s: float, lone_s: float, without_wait_s: float
) -> None:
    share = lost_share(cpu_s, wait_s, n, held_s, lone_s)
    assert held_s * (1 - share) == without_wait_s


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


@pytest.mark.parametrize("lone_s", [(0.002, 0.1, 0.2), (0.1,), (0.004,)])
def test_a_fast_lone_request_of_random_service_hardly_changes_the_share(
    lone_s: tuple[float, ...],
) -> None:
    """2 of 100 ms in the run queue."""
    assert wait_of(with_record(loaded(server_wait=0.08, others=1.5), lone_s=lone_s)).share <= 0.025


def test_responses_as_fast_as_lone_ones_lose_nothing() -> None:
    """Measured with sync: 202 ms with and without three CPU burners. With them, 19 ms per request
    are in the run queue, mostly of workers that wake up for a connection that another accepts."""
    trial = noisy(load(0.2, rounds=20), server_cores=0.01, server_wait=0.4, others=1.9)
    assert wait_of(with_record(trial, lone_s=(0.2, 0.203))).share < 0.01


# --- from the samples -----------------------------------------------------------------------------


def test_waits_are_in_seconds_per_request() -> None:
    """Slots are held for 0.1 s, 0.01 s of it in the run queue; the tool waits 2 ms per request."""
    wait = wait_of(loaded(server_wait=0.4, tool_wait=0.08, others=1.5))
    assert wait.worker_s == pytest.approx(0.01, rel=0.01)
    assert wait.tool_s == pytest.approx(0.002, rel=0.01)
    assert wait.others_cores == pytest.approx(1.5)
    assert wait.share == pytest.approx(0.12, abs=0.005)
    assert wait.disturbed_by_programs
    assert not wait.disturbed_by_machines


def test_other_programs_do_not_disturb_sleeping_apps() -> None:
    trial = noisy(load(1.0, rounds=10), server_wait=0.02, tool_wait=0.01, others=1.9)
    assert wait_of(trial).share < 0.01
    assert not wait_of(trial).disturbed_by_programs
    assert disturbance(derived(trial)) is None


def test_cores_used_by_others_exclude_the_lab_and_the_system() -> None:
    """Interrupts, steal, the lab itself, its other trials, and the app's services."""
    trial = loaded(server_wait=0.4, others=0.0, irq=0.3, steal=0.2, lab=0.1, beside=0.5)
    assert wait_of(trial).others_cores == pytest.approx(0, abs=1e-6)
    assert wait_of(trial).steal_cores == pytest.approx(0.2)
    first, *_, last = (sample.at_ns for sample in trial.observations.processes)
    services = tuple(ServiceSample(at, {"storage": (at - first) / 1e9}, {}) for at in (first, last))
    with_storage = with_observations(loaded(server_wait=0.4, others=1.2), services=services)
    assert wait_of(with_storage).others_cores == pytest.approx(0.2)
    with_programs = loaded(server_wait=0.4, others=1.2, beside=0.3)
    assert wait_of(with_programs).others_cores == pytest.approx(1.2)
    assert not wait_of(loaded(server_wait=0.4, others=0.0, beside=1.5)).disturbed_by_programs


def test_other_trials_do_not_make_the_host_busier() -> None:
    alone, parallel = loaded(others=0.4), loaded(others=0.4, beside=0.6)
    assert derived(parallel).usage == derived(alone).usage
    busy_alone, busy_parallel = (
        [moment.host_busy for moment in timeline(derived(trial)).usage]
        for trial in (alone, parallel)
    )
    assert busy_parallel == pytest.approx(busy_alone)
    assert lab_cores(parallel.observations.processes) == pytest.approx(0.1 + 0.05 + 0.6)


def test_unobserved_waits_are_missing() -> None:
    assert wait_of(bare(loaded())) is None
    assert wait_of(loaded(server_wait=None)) is None
    partial = wait_of(loaded(server_wait=0.4, tool_wait=None, steal=None))
    assert (partial.tool_s, partial.steal_cores) == (None, None)
    assert not partial.disturbed_by_machines
    remote = replace(loaded(server_wait=0.4, tool_wait=3.0), remote_load=True)
    assert wait_of(remote).tool_s is None
    assert wait_of(remote).share == pytest.approx(0.1, abs=0.005)


def test_a_load_without_a_steady_part_is_used_as_a_whole() -> None:
    trial = noisy(load(rounds=3), server_wait=0.4)
    assert wait_of(trial).worker_s == pytest.approx(0.01, rel=0.35)  # filling and draining included


def test_a_load_between_two_samples_has_a_wait() -> None:
    """No sample was taken while the load tool ran, so its guard reports its CPU time. Its wait
    includes its start and is not used."""
    trial = noisy(load(rounds=3), server_wait=0.4, tool_wait=0.8, others=1.5)
    first, *_, last = trial.observations.processes
    ends = replace(first, tool_wait_s=None, tool_cpu_s=None), replace(last, tool_cpu_s=None)
    tool_cpu_s = 0.05 * (last.at_ns - first.at_ns) / 1e9
    wait = wait_of(with_record(with_observations(trial, processes=ends), tool_cpu_s=tool_cpu_s))
    assert wait.tool_s is None
    assert wait.share == pytest.approx(0.1, abs=0.04)
    assert wait.others_cores == pytest.approx(1.5, rel=0.01)
    assert wait.disturbed_by_programs


def test_stolen_cores_count_as_lost_computing() -> None:
    """Other machines take a part of the busy cores, and a response only computes."""
    wait = wait_of(with_record(loaded(server_cores=1.2, steal=0.3, others=0.0), lone_s=(0.03,)))
    assert wait.stolen_share == pytest.approx(0.3 / 1.55, rel=0.05)
    assert wait.disturbed_by_machines
    assert not wait.disturbed_by_programs


# --- findings -------------------------------------------------------------------------------------


def test_other_programs_are_named_with_their_numbers() -> None:
    finding = disturbance(derived(loaded(server_wait=0.4, others=1.5)))
    assert isinstance(finding, CoresTaken)
    assert finding.wait.others_cores == pytest.approx(1.5)
    assert finding.share == pytest.approx(0.1, abs=0.005)
    for part in ("1.50 of 2 cores", "10 % of the response time", "close the other programs"):
        assert part in text(finding)


def test_others_cost_no_more_time_than_they_ran() -> None:
    """Threads wait mostly for each other: for 3.2 s per second, while others run for 0.3 s."""
    trial = loaded(server_wait=3.2, others=0.3)
    wait = wait_of(trial)
    assert disturbance(derived(trial)).share == wait.share_lost_to_programs < wait.share


def test_other_machines_are_named_with_their_cores() -> None:
    finding = disturbance(derived(loaded(server_wait=0.4, others=0.1, steal=0.5)))
    assert isinstance(finding, CoresStolen)
    assert "0.50 of 2 cores to other machines" in text(finding)
    # Nine tenths of the response are in the run queue: a share of it is less than the response
    finding = disturbance(derived(loaded(server_wait=30.0, others=0.1, steal=1.6)))
    assert isinstance(finding, CoresStolen)
    assert 0.05 <= finding.share < 1
