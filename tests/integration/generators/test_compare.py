"""`workerlab generators` as users run it: measured, reported, interrupted and resumed."""

from __future__ import annotations

import csv
import io
import shutil
import signal
from typing import Any

import pytest

from tests.integration.conftest import CommandResult, Lab, run_once
from workerlab.model.result import SCHEMA

FULL, TIMES, LOW, LOW_TIMES = range(4)  # indices of tables


def rows(document: dict[str, Any], table: int) -> list[dict[str, Any]]:
    table_rows: list[dict[str, Any]] = document["tables"][table]["rows"]
    return table_rows


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, CommandResult]:
    """A lab with a run of two generators, without wrk, and its output."""
    args = ("--tools", "wrk,fast,threads", "--levels", "2", "--duration", "1", "--trials", "1",
             "--format", "table")  # fmt: skip
    return run_once(tmp_path_factory, "compared", "generators", *args, PATH="")


def test_two_generators_are_compared(compared: tuple[Lab, CommandResult]) -> None:
    lab, result = compared
    cells = ("4 cells, about", "6 cells, about")  # more with several processes, if cores allow
    assert any(line.startswith(cells) for line in result.err.splitlines())
    document = lab("report", "results", "--format", "json").report
    assert (document["schema"], document["kind"], document["valid"]) == (SCHEMA, "generators", True)
    assert {row["generator"] for row in rows(document, FULL)} >= {"fast", "threads"}
    for row in rows(document, FULL):
        assert row["failed"] == 0
        assert row["throughput_rps"] > 0
        assert row["cpu_s"] > 0
        assert row["memory_bytes"] > 5 << 20
        assert row["host_memory_bytes"] > row["memory_bytes"] / 4
    for row in rows(document, TIMES):
        own_s = row["response_p50_s"] - row["service_p50_s"]
        assert row["own_p50_s"] == pytest.approx(own_s, rel=1e-4)  # each has six digits
        assert row["own_p50_s"] > 0
        assert row["achieved_concurrency"] <= row["connections"] * 1.001
    for row in rows(document, LOW):  # 25 connections, each response after at least 50 ms
        assert 0 < row["throughput_rps"] <= 500 * 1.001
    for row in rows(document, LOW_TIMES):
        assert row["service_p50_s"] >= 0.05 * 0.995
        assert row["response_p50_s"] >= row["service_p50_s"] * 0.99
    assert len(document["findings"]) == 5


def test_a_run_is_reported_in_every_format(compared: tuple[Lab, CommandResult]) -> None:
    lab, result = compared
    assert "Which generator needs the least CPU at a low rate?" in result.out
    assert lab("report", "results").out == result.out
    table = csv.DictReader(io.StringIO(lab("report", "results", "--format", "csv").out))
    assert "fast" in {row["generator"] for row in table}
    assert "| generator |" in lab("report", str(lab.run), "--format", "markdown").out


def test_a_missing_generator_is_left_out(lab: Lab, compared: tuple[Lab, CommandResult]) -> None:
    _, result = compared
    assert "Left out: wrk is not installed. wrk is packaged as wrk" in result.err
    assert "Left out: wrk is not installed." in " ".join(result.out.split())
    lab.env["PATH"] = ""
    wrk_only = lab("generators", "--tools", "wrk")
    assert wrk_only.code == 3
    assert "wrk is packaged as wrk" in wrk_only.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--tools", "fats"), "did you mean fast?"),
        (("--levels", "0"), "0 is too small"),
        (("--levels", "100000000"), "open files"),
        (("--duration", "0.2"), "must be at least 1"),
        (("--keepalive", "off,on"), "off or on, not both"),
        (("--processes", "1"), "must be from 2 to 25"),
        (("--processes", "40"), "must be from 2 to 25"),
        (("--tools", "threads", "--processes", "4"), "that can use several: fast, proc"),
        (("--delay", "0.2-0.1"), "the lower one first"),
        (("--delay", "soon"), "'soon' is not a number of seconds"),
        (("--delay", "0.3"), "at most a tenth of --duration"),
    ],
)
def test_invalid_arguments_are_refused(lab: Lab, args: tuple[str, ...], message: str) -> None:
    assert message in lab.refusal("generators", *args)


def test_a_grid_of_processes_and_connections_on_a_server_with_a_delay(lab: Lab) -> None:
    document = lab.report(
        *("generators", "--tools", "processes-coroutines", "--processes", "2,3"),
        *("--levels", "2", "--delay", "0.08-0.1", "--duration", "1", "--trials", "1"),
    )
    full = {(row["generator"].split()[0], row["processes"], row["connections"]): row
            for row in rows(document, FULL)}  # fmt: skip
    assert full.keys() == {("processes-coroutines", 2, 4), ("processes-coroutines", 3, 6)}
    for (_, _, connections), row in full.items():
        assert row["delay_rps"] == pytest.approx(connections / 0.09, rel=1e-4)
        assert 0 < row["throughput_rps"] <= connections / 0.08
    assert all(row["service_p50_s"] >= 0.08 * 0.99 for row in rows(document, TIMES))


def test_a_resumed_run_keeps_its_trials_and_completes(lab: Lab) -> None:
    args = ("--tools", "fast", "--levels", "1", "--duration", "1", "--trials", "1")
    process = lab.at_work("generators", *args, when=lambda: lab.loads() > 1, what="two loads")
    result = lab.end(process, signal.SIGINT)
    assert result.code == 130
    assert "was not measured" in " ".join(result.out.split())
    assert "generators --resume" in result.err
    before = {record["key"] for record in lab.records() if record["fault"] is None}
    assert lab.report("generators", "--resume", str(lab.run))["valid"]
    after = [record["key"] for record in lab.records() if record["fault"] is None]
    assert before < set(after)
    assert len(after) == len(set(after))  # no trial was repeated


def test_lost_output_affects_only_its_cell(lab: Lab, compared: tuple[Lab, CommandResult]) -> None:
    shutil.copytree(compared[0].run, lab.place / "results" / "copy")
    (low,) = lab.run.glob("raw/low-fast-c25-1")
    (low / "tool" / "stdout").write_text('{"generator": "fa')
    document = lab("report", "results", "--format", "json").report
    assert not document["valid"]
    assert any("did not print its document" in note["text"] for note in document["notes"])
    shutil.rmtree(low)
    missing = lab("report", "results", "--format", "json").report
    notes = [note["text"] for note in missing["notes"]]
    assert any("fast at 25 connections was not measured" in text for text in notes)
    assert document["tables"][FULL] == missing["tables"][FULL]
