"""Costs per request inside the app, from its counters and CPU samples; configurations with the same
settings are separate classes; a response body must be the stored one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    cell_of,
    derived,
    evidence,
    ns,
    with_cell,
    with_measurement,
    with_observations,
    with_record,
)
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.cells import app_metrics
from workerlab.analysis.checks import BodyMismatch, contradictions
from workerlab.analysis.facts import Facts
from workerlab.finding import Finding
from workerlab.model.evidence import AppMetricsSample, ServiceSample

PAGE, OTHER_PAGE = "a" * 64, "b" * 64


def facts_with(
    totals: Mapping[float, Mapping[str, int]],
    cpu: Mapping[float, Mapping[str, float]] | None = None,
    **missing: str,
) -> Facts:
    """A load of 8 connections on 4 slots of 1 s, with samples by second."""
    metrics = tuple(AppMetricsSample(ns(at_s), sums) for at_s, sums in totals.items())
    services = tuple(ServiceSample(ns(at_s), cpu_s, {}) for at_s, cpu_s in (cpu or {}).items())
    trial = with_observations(evidence(), app_metrics=metrics, services=services, missing=missing)
    return derived(trial)


FIRST = {
    "requests": 10, "local_asked": 10, "local_hits": 0, "redis_trips": 10, "redis_asked": 10,
    "redis_hits": 5, "redis_ns": 1_000, "storage_trips": 5, "storage_ns": 5_000_000, "pool_ns": 0,
}  # fmt: skip
LAST = {
    "requests": 30, "local_asked": 30, "local_hits": 15, "redis_trips": 15, "redis_asked": 15,
    "redis_hits": 6, "redis_ns": 4_001_000, "storage_trips": 9, "storage_ns": 45_000_000,
    "pool_ns": 20_000,
}  # fmt: skip


def test_costs_are_increases_per_request() -> None:
    metrics = app_metrics(facts_with({2.0: FIRST, 4.0: LAST}))
    assert metrics.requests == 20
    assert metrics.per_request["redis_trips"] == 5 / 20
    assert metrics.per_request["storage_trips"] == 4 / 20
    assert metrics.spent_s == {
        "redis": pytest.approx(4e-3 / 20),
        "storage": pytest.approx(40e-3 / 20),
        "pool": pytest.approx(20e-6 / 20),
    }
    assert metrics.hit_ratio == {"local": 15 / 20, "redis": 1 / 5}
    assert not any(name.endswith("_ns") for name in metrics.per_request)


def test_samples_outside_the_steady_part_do_not_count() -> None:
    steady = derived(evidence()).window
    opens_s, closes_s = (at_ns / NS - 1.0 for at_ns in (steady.opens_ns, steady.closes_ns))
    before, later = dict.fromkeys(FIRST, 0), {name: 1000 + n for name, n in LAST.items()}
    inside = {opens_s + 0.1: FIRST, closes_s - 0.1: LAST}
    totals = {opens_s - 0.5: before, **inside, closes_s + 0.5: later}
    assert app_metrics(facts_with(totals)).requests == 20


def test_an_unused_cache_has_no_hit_ratio() -> None:
    totals = {2.0: FIRST, 4.0: {**FIRST, "requests": 20}}
    assert app_metrics(facts_with(totals)).hit_ratio == {}


def test_cores_are_counted_by_component() -> None:
    cpu = {
        2.0: {"storage": 1.0},
        3.0: {"storage": 1.5, "cache": 0.0},
        4.0: {"storage": 2.0, "cache": 0.1},
    }
    metrics = app_metrics(facts_with({}, cpu))
    assert metrics.cores == {"storage": pytest.approx(0.5), "cache": pytest.approx(0.1)}
    assert (metrics.requests, metrics.per_request) == (0, {})


@pytest.mark.parametrize(
    "totals",
    [{}, {3.0: FIRST}, {2.0: FIRST, 4.0: FIRST}, {2.0: LAST, 4.0: FIRST}, {0.0: FIRST, 60.0: LAST}],
    ids=["no sample", "one sample", "no request", "restarted app", "outside the load"],
)
def test_unusable_samples_give_no_metrics(totals: Mapping[float, Mapping[str, int]]) -> None:
    assert app_metrics(facts_with(totals)) is None


def test_a_failed_sampler_gives_no_metrics() -> None:
    cpu = {2.0: {"storage": 1.0}, 4.0: {"storage": 2.0}}
    assert app_metrics(facts_with({2.0: FIRST, 4.0: LAST}, app_metrics="it died")) is None
    assert app_metrics(facts_with({2.0: FIRST, 4.0: LAST}, cpu, services="it died")).cores == {}


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=6))
def test_hit_ratios_are_between_0_and_1(steps: list[int]) -> None:
    totals, sums = {}, {"requests": 0, "redis_asked": 0, "redis_hits": 0}
    for number, step in enumerate(steps):
        growth = {"requests": step, "redis_asked": step, "redis_hits": step // 2}
        sums = {name: total + growth[name] for name, total in sums.items()}
        totals[2.0 + number / 10] = sums
    metrics = app_metrics(facts_with(totals))
    assert all(0 <= ratio <= 1 for ratio in metrics.hit_ratio.values())
    assert metrics.requests == sum(steps[1:])


# --- configurations ------------------------------------------------------------------------------


def configured(trial: TrialData, name: str) -> TrialData:
    named = with_cell(trial, server=replace(trial.cell.server, name=name))
    return with_record(named, key=named.trial.key)


def test_configurations_with_the_same_settings_are_separate_classes() -> None:
    """Each app has a lone response and a knee of its own."""
    slow = configured(evidence(connections=16, delay_s=2.0), "slow")
    quick = configured(evidence(connections=16, delay_s=0.5), "quick")
    report = analyse("run", {}, [slow, quick])
    assert len(report.classes) == 2
    bounds = {cell.trial.cell.server.name: cell.bound_rps for cell in report.cells}
    assert bounds == {"slow": pytest.approx(2.0), "quick": pytest.approx(8.0)}
    assert list(report.cells) == [cell_of(slow), cell_of(quick)]


def test_tools_are_not_compared_across_configurations() -> None:
    slow = configured(evidence(connections=4, delay_s=0.004), "slow")
    quick = configured(evidence(connections=4, delay_s=0.001, tool="fast"), "quick")
    cells = analyse("run", {}, [slow, quick]).cells
    assert "OtherToolFaster" not in {why.code for cell in cells for why in cell.bound_reasons}


# --- the response body ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected", "errors", "problems"),
    [
        (PAGE, PAGE, 0, []),
        (None, PAGE, 0, []),
        (OTHER_PAGE, None, 0, []),
        (None, None, 3, []),  # without a stored body a difference is only a failure
        (OTHER_PAGE, PAGE, 0, [BodyMismatch(sha256="b" * 8, expected="a" * 8)]),
        (None, PAGE, 3, [BodyMismatch(differ=3, answered=41)]),
    ],
)
def test_a_body_must_be_the_stored_one(
    body: str | None, expected: str | None, errors: int, problems: list[Finding]
) -> None:
    wrong = {"body": errors} if errors else {}
    trial = with_measurement(evidence(), body_sha256=body, errors=wrong, failed=errors)
    assert contradictions(derived(replace(trial, body_sha256=expected))) == problems
