"""Arrivals at a rate and ramps for real: what the laws guarantee, on any machine."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.conftest import Lab, retry_if_disturbed, stood_still
from workerlab.numbers.schedule import schedule

SLEEP_S, DURATION_S = 0.4, 5
LEAST_S = SLEEP_S - 0.001  # a timer may fire so much before its time
WORDS = ("--workers", "2", "--sleep", str(SLEEP_S), "--tool", "fast")


def begun_ns(lab: Lab, record: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """A record, and when each of its requests begins, since the origin, by the rows of fast."""
    rows = (lab.run / "raw" / record["key"] / "tool" / "requests.csv").read_text().splitlines()
    return record, sorted(int(row.split(",")[0]) for row in rows[1:])


@pytest.mark.classes("sync")
def test_arrivals_at_a_rate(lab: Lab) -> None:
    """Two workers that take 0.4 s give 5 requests/s and no more, whatever arrives. What was
    interrupted is asked for the same share when it is resumed."""
    args = ("--rate", "50%,15", "--duration", str(DURATION_S), "--jobs", "1")
    measured_cells = lab.sweep("sync", "4", *WORDS, *args)
    closed, half, over = measured_cells
    assert [cell["rate"] for cell in measured_cells] == [None, "50%", "15"]
    assert half["asked_rps"] == pytest.approx(closed["throughput_rps"] / 2, rel=1e-3)
    assert half["unsent"] == 0
    assert half["sent_rps"] == half["due_rps"]
    begun = [begun_ns(lab, record) for record in lab.records() if record["asked_rps"] is not None]
    for (record, starts), cell in zip(begun, (half, over), strict=True):
        due = schedule("poisson", record["asked_rps"], DURATION_S, record["schedule"])
        assert cell["arrivals"] == record["arrivals"] == "poisson"
        assert starts == list(due[: len(starts)])  # what was not sent was due last
        assert len(starts) + cell["unsent"] == len(due)
        assert cell["due_rps"] == pytest.approx(len(due) / DURATION_S, abs=1e-3)
    assert len({record["schedule"] for record, _ in begun}) == 1  # of the same number of trial
    assert half["response_ms"]["p50"] >= 1e3 * LEAST_S
    assert over["throughput_rps"] <= 2 / LEAST_S
    if over["reason"]["code"] == "LateForPause":  # too long to say anything else
        assert over["verdict"] == "inconclusive"
        assert stood_still(lab.run)
    else:
        assert over["verdict"] == "saturated"
        assert over["reason"]["values"]["asked_rps"] == pytest.approx(15)
    # What was not served had to wait, from the moment it was due
    assert over["response_ms"]["max"] > closed["response_ms"]["max"]

    lines = (lab.run / "trials.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if "-r50pc-" not in line]
    assert len(kept) == len(lines) * 2 / 3
    (lab.run / "trials.jsonl").write_text("".join(kept))
    again = lab.sweep("--resume", str(lab.run))
    assert again[0]["throughput_rps"] == closed["throughput_rps"]
    assert again[1]["asked_rps"] == half["asked_rps"]
    assert [record["asked_rps"] is None for record in lab.records()] == [True, False, False]


@pytest.mark.classes("sync")
def test_a_share_of_a_capacity_nobody_found_has_its_reason(lab: Lab) -> None:
    args = ("--expect-status", "404", "--rate", "50%")
    cells = lab.sweep("sync", "2", *WORDS, *args, code=1)
    (half,) = [cell for cell in cells if cell["rate"]]
    assert half["verdict"] == "invalid"
    assert "50% of an unknown capacity" in half["reason"]["text"]


@pytest.mark.skipif(sys.platform != "linux", reason="TCP states are seen on Linux")
@pytest.mark.classes("gthread")
def test_ramp_up_steady_and_churn_are_seen_in_order(lab: Lab) -> None:
    # A slot for each connection: where some wait, a busy machine may never let it be steady
    args = ("--workers", "2", "--threads", "24", "--sleep", "0.8", "--tool", "fast")
    ramp = ("--keepalive", "on", "--ramp", "3", "--duration", "7")

    def names(results: list[dict[str, Any]]) -> list[str]:
        return [phase["name"] for phase in results[0]["phases"] if phase["name"] != "drain"]

    in_order = ["ramp-up", "steady", "churn"]
    measured = retry_if_disturbed(
        lab,
        lambda: lab.sweep("gthread", "24", *args, *ramp),
        lambda results: names(results) == in_order,
    )
    assert names(measured) == in_order
    phases = measured[0]["phases"]
    assert phases[0]["end_s"] >= 0.9 * 3  # the 23rd of 24 connections begins after 2.75 s
    assert all(phase["end_s"] == after["start_s"] for phase, after in pairwise(phases))
    steady = next(phase for phase in phases if phase["name"] == "steady")
    ends = steady["why"]["values"]
    assert (ends["established"], ends["connections"]) == (48, 24)
    left = phases[-1]["why"]["values"]
    assert (left["left"], left["most"]) == (0, 24)


CLOSE_AFTER = """
def pre_request(worker, req):
    if req.req_number >= 12:
        req.force_close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="TCP states are seen on Linux")
@pytest.mark.classes("gthread")
def test_a_gunicorn_file_can_close_connections_in_mid_load(lab: Lab) -> None:
    (lab.place / "close_after.py").write_text(CLOSE_AFTER)
    args = ("--workers", "2", "--threads", "12", "--sleep", "0.2", "--config", "close_after.py")
    ramp = ("--tool", "fast", "--keepalive", "on", "--ramp", "1", "--duration", "8")

    def churn(results: list[dict[str, Any]]) -> dict[str, Any] | None:
        last: dict[str, Any] = results[0]["phases"][-1]
        return last if last["name"] == "churn" and last["start_s"] < 0.9 * 8 else None

    measured = retry_if_disturbed(
        lab,
        lambda: lab.sweep("gthread", "12", *args, *ramp),
        lambda cells: churn(cells) is not None,
    )
    values = churn(measured)["why"]["values"]
    assert values["states"]["TIME_WAIT"] >= 12
    assert values["p50_s"] >= 0.2 - 0.001
    assert measured[0]["failed"] == 0
