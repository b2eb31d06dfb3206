"""Every format against its golden, and what must hold for any report.

To accept new wording: UPDATE_GOLDENS=1 pytest tests/unit/test_report_formats.py, then read the
difference.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis import analyse
from harness.model import (
    Breakdown,
    Cell,
    CellResult,
    ClassResult,
    Counters,
    Fault,
    Report,
    Server,
    Summary,
    Trial,
    Usage,
)
from harness.report import FORMATS, table
from harness.report.values import PARTS
from tests.builders.analysis import SYNC, bare, evidence, gthread, server
from tests.unit.analysis.test_breakdown import kept
from tests.unit.analysis.test_handshakes import dropping

GOLDENS = Path(__file__).parents[2] / "data" / "report"

CELL_KEYS = {
    "worker_class",
    "workers",
    "threads",
    "backlog",
    "worker_connections",
    "app",
    "sleep_s",
    "tool",
    "concurrency",
    "trial",
    "requests",
    "failed",
    "errors",
    "slots_configured",
    "slots_measured",
    "throughput_rps",
    "tool_rps",
    "bound_rps",
    "response_ms",
    "connect_ms",
    "service_ms",
    "waiting_ms",
    "requests_per_worker",
    "waiting_split_ms",
    "split_exact",
    "kernel",
    "cpu",
    "rss_bytes",
    "connections_per_worker",
    "split_prediction_rps",
    "keepalive",
    "tool_processes",
    "generator_bound",
    "bound_reasons",
    "achieved_concurrency",
    "verdict",
    "reason",
    "diagnosis",
}
GROUPS = {
    "waiting_split_ms": {
        "connect",
        "accept_queue",
        "in_worker",
        "service",
        "transfer",
        "unattributed",
    },
    "kernel": {
        "listen_overflows",
        "listen_drops",
        "syn_retransmits",
        "accept_queue_max",
        "accept_queue_limit",
    },
    "cpu": {"server_cores", "generator_cores", "host_busy"},
    "rss_bytes": {"server_max", "generator_max"},
}
CLASS_KEYS = {
    "worker_class",
    "workers",
    "threads",
    "backlog",
    "tool",
    "slots_configured",
    "slots_measured",
    "capacity_rps",
    "capacity_ci95",
    "knee",
    "knee_note",
    "keepalive",
    "diagnosis",
}
NUMBERS = {
    "requests",
    "failed",
    "slots_measured",
    "throughput_rps",
    "tool_rps",
    "bound_rps",
}


def common() -> Report:
    """The sweep of the README."""
    trials = [evidence(server(name), n) for name in ("sync", "eventlet") for n in (4, 8, 16)]
    return analyse("common", {"cpu": "a CPU", "load": 0.5}, trials)


def everything() -> Report:
    """Every class, every verdict, faults, notes, repeated trials, an axis and two tools."""
    trials = [
        evidence(server("sync", workers), n, trial=trial, tool=tool)
        for workers in (2, 4)
        for tool in ("ab", "fast")
        for n in (1, 8)
        for trial in (1, 2, 3)
    ]
    trials += [gthread(n) for n in (8, 16)]
    trials += [evidence(server(name), 16) for name in ("gevent", "asgi", "uvicorn")]
    died = evidence(SYNC, 16)
    assert died.record is not None
    died = replace(
        died, record=replace(died.record, fault=Fault("server", "worker 7 [died]\x1b[0m | SIGKILL"))
    )
    noted = evidence(server("tornado"), 4)
    assert noted.record is not None
    noted = replace(noted, record=replace(noted.record, warnings=("load 3.9: close programs",)))
    trials += [dropping(), dropping("fast", counters=None)]
    asked = server("gthread", 2, 4)
    trials += [kept(evidence(asked, n, tool="wrk", slots=[5])) for n in (8, 16)]
    trials.append(bare(evidence(server("sync", 3), 6)))
    unfinished = replace(evidence(SYNC, 32), record=None)
    return analyse("everything", {}, [*trials, died, noted, unfinished])


def empty() -> Report:
    return analyse("empty", {}, [])


REPORTS = {"common": common, "everything": everything, "empty": empty}


def check(name: str, text: str) -> None:
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("name", FORMATS)
def test_golden(name: str, report: str) -> None:
    check(f"{report}-{name}", FORMATS[name].render(REPORTS[report]()))


@pytest.mark.parametrize("width", [80, 60])
def test_golden_of_a_narrow_terminal(width: int) -> None:
    check(f"common-table-{width}", table.render(common(), width=width))


def test_the_common_table_fits() -> None:
    assert max(map(len, table.render(common()).splitlines())) <= 100
    narrow = table.render(common(), width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "Left out" not in narrow


def test_colour_only_where_asked() -> None:
    plain, coloured = table.render(common()), table.render(common(), colour=True, width=120)
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert plain.isascii()


def test_foreign_text_is_neither_markup_nor_control() -> None:
    report = everything()
    text = table.render(report, colour=True)
    assert "worker 7 [died] [0m | SIGKILL" in text
    assert "worker 7 [died] [0m \\| SIGKILL" in FORMATS["markdown"].render(report)


def test_the_table_says_where_each_class_stops() -> None:
    text = " ".join(table.render(common()).split())
    assert (
        "sync: 4 slots, knee at 4: more than 4 req/s never came out,"
        " saturated from 8 connections on." in text
    )
    assert "eventlet: 4000 slots, at most 16 used, knee > 16." in text


def test_json_is_schema_1() -> None:
    document = json.loads(FORMATS["json"].render(everything()))
    assert {"schema", "run", "environment", "overhead", "cells", "classes"} <= set(document)
    assert document["schema"] == 1
    invalid = [cell for cell in document["cells"] if cell["verdict"] == "invalid"]
    assert invalid
    for cell in invalid:
        assert all(cell[name] is None for name in NUMBERS)
        assert not any(value is not None for name in GROUPS for value in cell[name].values())
        assert cell["diagnosis"] is None
        assert cell["reason"]
    uvicorn = next(c for c in document["classes"] if c["worker_class"] == "uvicorn")
    assert uvicorn["slots_configured"] is None
    assert (uvicorn["knee"], uvicorn["knee_note"][:4]) == (None, "> 16")


def test_milliseconds_in_json() -> None:
    cell = json.loads(FORMATS["json"].render(common()))["cells"][1]
    assert cell["response_ms"]["p50"] == 2000.0
    assert cell["waiting_ms"] == {"mean": 878.049, "p50": None, "p95": None, "p99": None,
                                  "max": None}  # fmt: skip


def test_csv_has_one_row_per_cell() -> None:
    report = everything()
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"].render(report))))
    assert len(rows) == len(report.cells)
    assert rows[0]["response_p50_ms"] == "1000.0"
    assert rows[0]["requests_per_worker"] == "100=3 101=3"


# --- any report -----------------------------------------------------------------------------

numbers = st.none() | st.floats(0, 1e9) | st.sampled_from([float("nan"), float("inf"), 1e-12])
counts = st.none() | st.integers(0, 10**9)
words = st.text(st.characters(exclude_characters="nN"), max_size=30)
summaries = st.builds(Summary, numbers, numbers, numbers, numbers, numbers)
servers = st.builds(
    Server,
    st.sampled_from(["sync", "gthread", "eventlet", "gevent", "tornado", "asgi", "uvicorn"]),
    *[st.integers(1, 5000)] * 4,
)
tools = st.sampled_from(["ab", "wrk", "fast"])
asked = st.builds(Cell, servers, tools, st.integers(1, 1000), st.booleans())
trials = st.builds(Trial, asked, st.integers(1, 9))
per_pid = st.dictionaries(st.integers(1, 99999), st.integers(0, 99), max_size=3)
splits = st.builds(
    Breakdown,
    *[numbers] * 7,
    st.booleans(),
    st.dictionaries(st.sampled_from(PARTS), words, max_size=3),
)
invalid_cells = st.builds(
    CellResult, trials, words, numbers, st.just("invalid"), words, notes=st.tuples(words)
)
valid_cells = st.builds(
    CellResult,
    trials,
    words,
    numbers,
    st.sampled_from(["below capacity", "at capacity", "saturated"]),
    words,
    counts,
    counts,
    st.dictionaries(words, st.integers(1, 99), max_size=3),
    counts,
    counts,
    numbers,
    numbers,
    numbers,
    summaries,
    summaries,
    summaries,
    summaries,
    per_pid,
    numbers,
    numbers,
    splits,
    st.builds(Counters, counts, counts, counts, counts),
    counts,
    counts,
    st.builds(Usage, numbers, numbers, numbers, counts, counts),
    st.none() | per_pid,
    numbers,
    st.none() | words,
    st.tuples(words),
)
classes = st.builds(
    ClassResult,
    servers,
    tools,
    counts,
    counts,
    numbers,
    st.none() | st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    numbers,
    words,
    st.booleans(),
    st.none() | words,
)
environments: st.SearchStrategy[Mapping[str, object]] = st.dictionaries(
    words, st.recursive(numbers | words | counts, lambda inner: st.lists(inner, max_size=3))
)
reports = st.builds(
    Report,
    words,
    environments,
    numbers,
    st.lists(valid_cells | invalid_cells, max_size=6).map(tuple),
    st.lists(classes, max_size=4).map(tuple),
    st.fixed_dictionaries({"start": numbers, "warmup": numbers, "stop": numbers}),
    st.lists(words, max_size=2).map(tuple),
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} in JSON")


@settings(deadline=None, max_examples=60)
@given(reports)
def test_json_of_any_report_is_complete_and_finite(report: Report) -> None:
    document = json.loads(FORMATS["json"].render(report), parse_constant=refuse)
    assert len(document["cells"]) == len(report.cells)
    for cell in document["cells"]:
        assert set(cell) >= CELL_KEYS
        for name in ("response_ms", "connect_ms", "service_ms", "waiting_ms"):
            assert set(cell[name]) == {"mean", "p50", "p95", "p99", "max"}
        for name, keys in GROUPS.items():
            assert set(cell[name]) == keys
    for group in document["classes"]:
        assert set(group) >= CLASS_KEYS


@settings(deadline=None, max_examples=60)
@given(reports, st.none() | st.integers(20, 140), st.booleans())
def test_any_report_can_be_read(report: Report, width: int | None, colour: bool) -> None:
    text = table.render(report, colour=colour, width=width)
    assert text.endswith("\n")
    assert not re.search(r"\b(nan|inf)\b", text)
    assert len(FORMATS["csv"].render(report).splitlines()) >= 1 + len(report.cells)
    assert FORMATS["markdown"].render(report).endswith("\n")
