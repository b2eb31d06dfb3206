"""A and B on real servers: what differs is found, what does not is said to be the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Done, Lab

QUICK = ("--tool", "fast", "--duration", "1", "--sleep", "0.05", "--budget", "60s")

pytestmark = pytest.mark.once


def answers(done: Done) -> dict[str, Any]:
    """The values of each answer, by its code."""
    found = (one["answer"] for one in done.report["findings"])
    return {one["code"]: one["values"] for one in found}


def test_twice_the_workers_serve_twice_as_much(lab: Lab) -> None:
    done = lab(
        "compare", "sync", "8", *QUICK, "--a", "workers=2", "--b", "workers=4",
        "--fail-if", "rps<-5%", "--format", "json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = answers(done)
    different = found["compare.different"]
    by = {one["values"]["metric"]["code"]: one["values"] for one in different["changed"]}
    assert 1.8 < by["compare.metric.throughput_rps"]["value"] < 2.2
    assert by["compare.metric.throughput_rps"]["low"] > 1.05
    # Eight requests on two workers: three of four wait, and that is what became shorter
    assert different["where"]["values"]["part"]["code"] == "part.accept_queue"
    assert "compare.gate.kept" in found


def test_a_loss_that_must_not_be_fails(lab: Lab) -> None:
    done = lab(
        "compare", "sync", "8", *QUICK, "--a", "workers=4", "--b", "workers=2",
        "--fail-if", "rps<-5%,errors>+1%", "--format", "json",
    )  # fmt: skip
    assert done.code == 4, done.err
    found = answers(done)
    (limit,) = found["compare.gate.exceeded"]["limits"]
    assert limit["values"]["limit"] == "rps<-5%"


def test_two_saved_runs(lab: Lab) -> None:
    """What differs beside the figures is told first; the servers' setting, and no load, may."""
    load = ("sweep", "sync", "8", "--tool", "fast", "--sleep", "0.05", "--rounds", "3")
    for name, workers in (("one", "2"), ("other", "4")):
        done = lab(*load, "--trials", "3", "--workers", workers, "--out", name)
        assert done.code == 0, done.err
    done = lab("compare", "one", "other", "--format", "json", "--fail-if", "rps<-5%")
    assert done.code == 0, done.err
    first, second, *_ = (one["answer"] for one in done.report["findings"])
    assert first["code"] == "compare.differences"
    told = {one["values"]["name"]: one["values"] for one in first["values"]["differences"]}
    assert (told["workers"]["a"], told["workers"]["b"]) == ("2", "4")
    assert second["code"] == "compare.different"
    by = {one["values"]["metric"]["code"]: one["values"] for one in second["values"]["changed"]}
    assert 1.8 < by["compare.metric.throughput_rps"]["value"] < 2.2
    assert not (lab.place / "results").exists()


def test_saved_runs_that_cannot_be_compared(lab: Lab) -> None:
    load = ("sweep", "sync", "--tool", "fast", "--sleep", "0.05", "--rounds", "3")
    for name, level in (("one", "2"), ("other", "3")):
        assert lab(*load[:2], level, *load[2:], "--out", name).code == 0
    done = lab("compare", "one", "other")
    assert (done.code, done.out) == (2, "")
    assert "have no cell in common" in done.err
    for words, why in (
        (("one", "nowhere"), "nowhere is no run"),
        (("one", "other", "--b", "workers=2"), "--b is for new ones"),
    ):
        done = lab("compare", *words)
        assert (done.code, done.out) == (2, "")
        assert why in done.err
