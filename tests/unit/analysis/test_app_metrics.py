"""What a request costs inside the app, from its own counters and CPU samples; configurations of the
same settings stay apart; the page must be the stored one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    asking,
    derived,
    evidence,
    judged,
    ns,
    recording,
    saying,
    seeing,
)
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.cells import app_metrics
from workerlab.analysis.checks import BodyMismatch, contradictions
from workerlab.analysis.facts import Facts
from workerlab.finding import Finding
from workerlab.model import AppMetrics, AppMetricsSample, ServiceSample

PAGE, OTHER = "a" * 64, "b" * 64


def counting(
    totals: Mapping[float, Mapping[str, int]],
    cpu: Mapping[float, Mapping[str, float]] | None = None,
    **missing: str,
) -> Facts:
    """A trial of 8 connections on 4 slots, 1 s each: steady for some seconds. Samples by second."""
    metrics = tuple(AppMetricsSample(ns(at), said) for at, said in totals.items())
    services = tuple(ServiceSample(ns(at), said, {}) for at, said in (cpu or {}).items())
    seen = seeing(evidence(), app_metrics=metrics, services=services, missing=missing)
    return derived(seen)


def said(facts: Facts) -> AppMetrics:
    found = app_metrics(facts)
    assert found is not None
    return found


def steady_s() -> tuple[float, float]:
    steady = derived(evidence()).window
    assert steady is not None
    return steady.opens_ns / NS - 1.0, steady.closes_ns / NS - 1.0


FIRST = {
    "requests": 10, "local_asked": 10, "local_hits": 0, "redis_trips": 10, "redis_asked": 10,
    "redis_hits": 5, "redis_ns": 1_000, "storage_trips": 5, "storage_ns": 5_000_000, "pool_ns": 0,
}  # fmt: skip
LAST = {
    "requests": 30, "local_asked": 30, "local_hits": 15, "redis_trips": 15, "redis_asked": 15,
    "redis_hits": 6, "redis_ns": 4_001_000, "storage_trips": 9, "storage_ns": 45_000_000,
    "pool_ns": 20_000,
}  # fmt: skip


def test_costs_are_what_was_added_per_request() -> None:
    found = said(counting({2.0: FIRST, 4.0: LAST}))
    assert found.requests == 20
    assert found.per_request["redis_trips"] == 5 / 20
    assert found.per_request["storage_trips"] == 4 / 20
    assert found.spent_s == {
        "redis": pytest.approx(4e-3 / 20),
        "storage": pytest.approx(40e-3 / 20),
        "pool": pytest.approx(20e-6 / 20),
    }
    assert found.hit_ratio == {"local": 15 / 20, "redis": 1 / 5}
    assert not any(name.endswith("_ns") for name in found.per_request)


def test_what_is_outside_the_steady_part_does_not_count() -> None:
    """Warm-up and the last requests are somewhere else."""
    opens, closes = steady_s()
    samples = {opens - 0.5: dict.fromkeys(FIRST, 0), opens + 0.1: FIRST, closes - 0.1: LAST}
    after = {closes + 0.5: {name: 1000 + n for name, n in LAST.items()}}
    assert said(counting({**samples, **after})).requests == 20


def test_a_cache_nobody_asked_has_no_ratio() -> None:
    last = {**FIRST, "requests": 20}
    assert said(counting({2.0: FIRST, 4.0: last})).hit_ratio == {}


def test_cores_of_each_component() -> None:
    cpu = {
        2.0: {"storage": 1.0},
        3.0: {"storage": 1.5, "cache": 0.0},
        4.0: {"storage": 2.0, "cache": 0.1},
    }
    found = said(counting({}, cpu))
    assert found.cores == {"storage": pytest.approx(0.5), "cache": pytest.approx(0.1)}
    assert (found.requests, found.per_request) == (0, {})


@pytest.mark.parametrize(
    "totals",
    [
        {},
        {3.0: FIRST},
        {2.0: FIRST, 4.0: FIRST},
        {2.0: LAST, 4.0: FIRST},
        {0.0: FIRST, 60.0: LAST},
    ],
    ids=["none", "one", "no request", "begun anew", "outside"],
)
def test_what_was_not_seen_is_not_known(totals: Mapping[float, Mapping[str, int]]) -> None:
    assert app_metrics(counting(totals)) is None


def test_a_sampler_that_died_says_nothing() -> None:
    cpu = {2.0: {"storage": 1.0}, 4.0: {"storage": 2.0}}
    assert app_metrics(counting({2.0: FIRST, 4.0: LAST}, app_metrics="it died")) is None
    assert said(counting({2.0: FIRST, 4.0: LAST}, cpu, services="it died")).cores == {}


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=6))
def test_no_ratio_leaves_its_range(steps: list[int]) -> None:
    """Of sums that only grow, however its samples fall."""
    totals, at = {}, {"requests": 0, "redis_asked": 0, "redis_hits": 0}
    for place, step in enumerate(steps):
        at = {"requests": at["requests"] + step, "redis_asked": at["redis_asked"] + step,
              "redis_hits": at["redis_hits"] + step // 2}  # fmt: skip
        totals[2.0 + place / 10] = at
    found = said(counting(totals))
    assert all(0 <= ratio <= 1 for ratio in found.hit_ratio.values())
    assert found.requests == sum(steps[1:])


def test_a_report_holds_them() -> None:
    app_metrics = (AppMetricsSample(ns(2.0), FIRST), AppMetricsSample(ns(4.0), LAST))
    found = judged(seeing(evidence(), app_metrics=app_metrics)).app_metrics
    assert found is not None
    assert found.requests == 20


# --- configurations ------------------------------------------------------------------------------


def configured(one: TrialData, name: str) -> TrialData:
    named = asking(one, server=replace(one.cell.server, name=name))
    return recording(named, key=named.trial.key)


def test_configurations_of_the_same_settings_are_no_group() -> None:
    """The same settings, another app: a lone response and a knee of its own."""
    slow = configured(evidence(connections=16, delay_s=2.0), "slow")
    quick = configured(evidence(connections=16, delay_s=0.5), "quick")
    report = analyse("run", {}, [slow, quick])
    assert len(report.classes) == 2
    bounds = {cell.trial.cell.server.name: cell.bound_rps for cell in report.cells}
    assert bounds == {"slow": pytest.approx(2.0), "quick": pytest.approx(8.0)}
    alone = [analyse("run", {}, [one]).cells[0] for one in (slow, quick)]
    assert list(report.cells) == alone


def test_another_configurations_tool_is_no_second_tool() -> None:
    """What another tool gets of another app does not convict this one."""
    cells = [
        configured(evidence(connections=4, delay_s=0.004), "slow"),
        configured(evidence(connections=4, delay_s=0.001, tool="fast"), "quick"),
    ]
    report = analyse("run", {}, cells)
    reasons = {why.code for cell in report.cells for why in cell.bound_reasons}
    assert "OtherToolFaster" not in reasons


# --- the page -----------------------------------------------------------------------------------


def page(found: str | None, expected: str | None = PAGE, errors: int = 0) -> list[Finding]:
    wrong = {"body": errors} if errors else {}
    one = saying(evidence(), body_sha256=found, errors=wrong, failed=errors)
    return contradictions(derived(replace(one, body_sha256=expected)))


@pytest.mark.parametrize(("found", "expected"), [(PAGE, PAGE), (None, PAGE), (OTHER, None)])
def test_the_stored_page_is_valid(found: str | None, expected: str | None) -> None:
    assert page(found, expected) == []


def test_another_page_is_not() -> None:
    assert page(OTHER) == [BodyMismatch(sha256="b" * 8, expected="a" * 8)]


def test_a_page_that_changed_is_not() -> None:
    assert page(None, errors=3) == [BodyMismatch(differ=3, answered=41)]


def test_where_no_page_is_known_a_difference_is_a_failure_only() -> None:
    assert page(None, None, errors=3) == []
