"""`workerlab generators` as its users run it: measured, reported, interrupted, resumed."""

from __future__ import annotations

import csv
import io
import shutil
import signal
from typing import Any

import pytest

from tests.integration.conftest import Done, Lab, run_once
from workerlab.model.result import SCHEMA

FULL, TIMES, LOW, LOW_TIMES = range(4)  # the tables


def rows(document: dict[str, Any], table: int) -> list[dict[str, Any]]:
    table_rows: list[dict[str, Any]] = document["tables"][table]["rows"]
    return table_rows


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, Done]:
    """A lab with a run of two generators, and what it printed. wrk is not to be found."""
    words = ("--tools", "wrk,fast,threads", "--levels", "2", "--duration", "1", "--trials", "1",
             "--format", "table")  # fmt: skip
    return run_once(tmp_path_factory, "compared", "generators", *words, PATH="")


def test_two_generators_are_compared(compared: tuple[Lab, Done]) -> None:
    lab, done = compared
    cells = ("4 cells, about", "6 cells, about")  # several processes, where there are cores
    assert any(line.startswith(cells) for line in done.err.splitlines())
    document = lab("report", "results", "--format", "json").report
    assert (document["schema"], document["kind"], document["valid"]) == (SCHEMA, "generators", True)
    names = {row["generator"] for row in rows(document, FULL)}
    assert {"fast", "threads"} <= names
    for row in rows(document, FULL):
        assert row["failed"] == 0
        assert row["throughput_rps"] > 0
        assert row["cpu_s"] > 0
        assert row["memory_bytes"] > 5 << 20
        assert row["host_memory_bytes"] > row["memory_bytes"] / 4
    for row in rows(document, TIMES):
        own_s = row["response_p50_s"] - row["service_p50_s"]
        assert row["own_p50_s"] == pytest.approx(own_s, rel=1e-4)  # each in six digits
        assert row["own_p50_s"] > 0
        assert row["achieved_concurrency"] <= row["connections"] * 1.001
    for row in rows(document, LOW):  # 25 connections, none of which is answered before 50 ms
        assert 0 < row["throughput_rps"] <= 500 * 1.001
    for row in rows(document, LOW_TIMES):
        assert row["service_p50_s"] >= 0.05 * 0.995
        assert row["response_p50_s"] >= row["service_p50_s"] * 0.99
    assert len(document["findings"]) == 5


def test_a_run_can_be_reported_in_every_way(compared: tuple[Lab, Done]) -> None:
    lab, done = compared
    assert "Which generator needs the least CPU at a low rate?" in done.out
    assert lab("report", "results").out == done.out
    table = list(csv.DictReader(io.StringIO(lab("report", "results", "--format", "csv").out)))
    assert {row["generator"] for row in table} >= {"fast"}
    assert "| generator |" in lab("report", str(lab.run), "--format", "markdown").out


def test_what_is_missing_is_left_out_with_the_fix(lab: Lab, compared: tuple[Lab, Done]) -> None:
    _, done = compared
    assert "Left out: wrk is not installed. wrk is packaged as wrk" in done.err
    assert "Left out: wrk is not installed." in " ".join(done.out.split())
    lab.env["PATH"] = ""
    none = lab("generators", "--tools", "wrk")
    assert none.code == 3
    assert "wrk is packaged as wrk" in none.err


@pytest.mark.parametrize(
    ("words", "says"),
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
def test_bad_words_are_one_sentence(lab: Lab, words: tuple[str, ...], says: str) -> None:
    assert says in lab.refusal("generators", *words)


def test_a_grid_of_processes_and_connections_on_a_server_that_answers_late(lab: Lab) -> None:
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


def test_an_interrupted_run_keeps_what_it_has_and_is_finished(lab: Lab) -> None:
    words = ("--tools", "fast", "--levels", "1", "--duration", "1", "--trials", "1")
    process = lab.at_work("generators", *words, when=lambda: lab.loads() > 1, what="two loads")
    done = lab.end(process, signal.SIGINT)
    assert done.code == 130
    assert "was not measured" in " ".join(done.out.split())
    assert "generators --resume" in done.err
    before = {record["key"] for record in lab.records() if record["fault"] is None}
    assert lab.report("generators", "--resume", str(lab.run))["valid"]
    again = [record["key"] for record in lab.records() if record["fault"] is None]
    assert before < set(again)
    assert len(again) == len(set(again))  # what was measured was not measured again


def test_a_generator_that_dies_is_one_point_less(lab: Lab, compared: tuple[Lab, Done]) -> None:
    """Its output, kept in the run, is cut short: the others stay as they are."""
    shutil.copytree(compared[0].run, lab.place / "results" / "again")
    (low,) = lab.run.glob("raw/low-fast-c25-1")
    (low / "tool" / "stdout").write_text('{"generator": "fa')
    document = lab("report", "results", "--format", "json").report
    assert not document["valid"]
    assert any("did not print its document" in note["text"] for note in document["notes"])
    shutil.rmtree(low)
    missing = lab("report", "results", "--format", "json").report
    assert any("fast at 25 connections was not measured" in x["text"] for x in missing["notes"])
    assert document["tables"][FULL] == missing["tables"][FULL]
