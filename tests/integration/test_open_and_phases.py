"""Arrivals at a rate, ramps and phases on real servers: bounds that hold on any machine."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.conftest import Lab, retry_if_disturbed, stood_still
from workerlab.numbers.schedule import schedule

SLEEP_S, DURATION_S = 0.4, 5
MIN_SLEEP_S = SLEEP_S - 0.001  # a timer may fire 1 ms early
OPTIONS = ("--workers", "2", "--sleep", str(SLEEP_S), "--tool", "fast")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="TCP states are observed on Linux")


def start_times_ns(lab: Lab, record: dict[str, Any]) -> list[int]:
    """The start of each request since the origin, from the rows of fast."""
    rows = (lab.run / "raw" / record["key"] / "tool" / "requests.csv").read_text().splitlines()
    return sorted(int(row.split(",")[0]) for row in rows[1:])


@pytest.mark.classes("sync")
def test_arrivals_follow_a_rate(lab: Lab) -> None:
    """Two workers and 0.4 s per request limit throughput to 5 requests/s. A resumed run keeps the
    rate of a share."""
    args = ("--rate", "50%,15", "--duration", str(DURATION_S), "--jobs", "1")
    closed, half, over = cells = lab.sweep("sync", "4", *OPTIONS, *args)
    assert [cell["rate"] for cell in cells] == [None, "50%", "15"]
    assert half["asked_rps"] == pytest.approx(closed["throughput_rps"] / 2, rel=1e-3)
    assert half["unsent"] == 0
    assert half["sent_rps"] == half["due_rps"]
    records = [record for record in lab.records() if record["asked_rps"] is not None]
    for record, cell in zip(records, (half, over), strict=True):
        starts = start_times_ns(lab, record)
        due = schedule("poisson", record["asked_rps"], DURATION_S, record["schedule"])
        assert cell["arrivals"] == record["arrivals"] == "poisson"
        assert starts == list(due[: len(starts)])  # unsent requests were due last
        assert len(starts) + cell["unsent"] == len(due)
        assert cell["due_rps"] == pytest.approx(len(due) / DURATION_S, abs=1e-3)
    assert len({record["schedule"] for record in records}) == 1  # as for all trials number 1
    assert half["response_ms"]["p50"] >= 1e3 * MIN_SLEEP_S
    assert over["throughput_rps"] <= 2 / MIN_SLEEP_S
    if over["reason"]["code"] == "LateForPause":
        assert over["verdict"] == "inconclusive"
        assert stood_still(lab.run)
    else:
        assert over["verdict"] == "saturated"
        assert over["reason"]["values"]["asked_rps"] == pytest.approx(15)
    # Requests wait from the moment they are due
    assert over["response_ms"]["max"] > closed["response_ms"]["max"]

    lines = (lab.run / "trials.jsonl").read_text().splitlines(keepends=True)
    other_lines = [line for line in lines if "-r50pc-" not in line]
    assert len(other_lines) == len(lines) * 2 / 3
    (lab.run / "trials.jsonl").write_text("".join(other_lines))
    resumed = lab.sweep("--resume", str(lab.run))
    assert resumed[0]["throughput_rps"] == closed["throughput_rps"]
    assert resumed[1]["asked_rps"] == half["asked_rps"]
    assert [record["asked_rps"] is None for record in lab.records()] == [True, False, False]


@pytest.mark.classes("sync")
def test_a_share_of_an_unknown_capacity_is_invalid(lab: Lab) -> None:
    args = ("--expect-status", "404", "--rate", "50%")
    cells = lab.sweep("sync", "2", *OPTIONS, *args, code=1)
    (half,) = [cell for cell in cells if cell["rate"]]
    assert half["verdict"] == "invalid"
    assert "50% of an unknown capacity" in half["reason"]["text"]


@ON_LINUX
@pytest.mark.classes("gthread")
def test_the_phases_are_ramp_up_steady_and_churn(lab: Lab) -> None:
    # A slot per connection: with waiting connections a busy machine may never become steady
    args = ("--workers", "2", "--threads", "24", "--sleep", "0.8", "--tool", "fast")
    ramp = ("--keepalive", "on", "--ramp", "3", "--duration", "7")

    def names(cells: list[dict[str, Any]]) -> list[str]:
        return [phase["name"] for phase in cells[0]["phases"] if phase["name"] != "drain"]

    expected = ["ramp-up", "steady", "churn"]
    cells = retry_if_disturbed(
        lab,
        lambda: lab.sweep("gthread", "24", *args, *ramp),
        lambda cells: names(cells) == expected,
    )
    assert names(cells) == expected
    phases = cells[0]["phases"]
    assert phases[0]["end_s"] >= 0.9 * 3  # the 23rd of 24 connections starts after 2.75 s
    assert all(phase["end_s"] == following["start_s"] for phase, following in pairwise(phases))
    steady = next(phase for phase in phases if phase["name"] == "steady")["why"]["values"]
    assert (steady["established"], steady["connections"]) == (48, 24)
    churn = phases[-1]["why"]["values"]
    assert (churn["left"], churn["most"]) == (0, 24)


CLOSE_AFTER = """
def pre_request(worker, req):
    if req.req_number >= 12:
        req.force_close()
"""


@ON_LINUX
@pytest.mark.classes("gthread")
def test_connections_closed_by_a_gunicorn_file_are_churn(lab: Lab) -> None:
    (lab.place / "close_after.py").write_text(CLOSE_AFTER)
    args = ("--workers", "2", "--threads", "12", "--sleep", "0.2", "--config", "close_after.py")
    ramp = ("--tool", "fast", "--keepalive", "on", "--ramp", "1", "--duration", "8")

    def churn(cells: list[dict[str, Any]]) -> dict[str, Any] | None:
        last: dict[str, Any] = cells[0]["phases"][-1]
        return last if last["name"] == "churn" and last["start_s"] < 0.9 * 8 else None

    cells = retry_if_disturbed(
        lab,
        lambda: lab.sweep("gthread", "12", *args, *ramp),
        lambda cells: churn(cells) is not None,
    )
    values = churn(cells)["why"]["values"]
    assert values["states"]["TIME_WAIT"] >= 12
    assert values["p50_s"] >= 0.2 - 0.001
    assert cells[0]["failed"] == 0
