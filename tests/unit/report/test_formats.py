"""Every format against its golden, and what must hold for any document.

To accept new wording: pytest tests/unit/report --rewrite-goldens, then read the difference.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, product, starmap
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.any_document import documents, reports
from tests.builders.document import full_document
from tests.builders.runs import NAMES, recorded
from tests.builders.sweep import at_rates, common, empty, everything, targeted
from workerlab.experiments.results import document_of
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model import SCHEMA, Document, Report
from workerlab.notes import FlagIgnored
from workerlab.report import FORMATS, text
from workerlab.report.grid import to_grid
from workerlab.report.text import natural_width
from workerlab.report.values import PARTS, heading

Golden = Callable[[str, str], None]

CELL_KEYS = {
    "worker_class", "workers", "threads", "backlog", "worker_connections", "app", "sleep_s",
    "tool", "concurrency", "trial", "requests", "failed", "errors", "slots_configured",
    "slots_measured", "throughput_rps", "tool_rps", "bound_rps", "response_ms", "connect_ms",
    "service_ms", "waiting_ms", "requests_per_worker", "waiting_split_ms", "split_exact",
    "kernel", "cpu", "core_wait", "rss_bytes", "connections_per_worker", "split_prediction_rps",
    "keepalive", "tool_processes", "generator_bound", "bound_reasons", "achieved_concurrency",
    "verdict", "target", "reason", "diagnosis",
}  # fmt: skip
GROUPS = {
    "waiting_split_ms": set(PARTS),
    "kernel": {
        *("listen_overflows", "listen_drops", "syn_retransmits", "socket_drops"),
        *("accept_queue_max", "accept_queue_limit"),
    },
    "cpu": {"server_cores", "generator_cores", "host_busy"},
    "core_wait": {"share", "others_share", "worker_s", "tool_s", "others_cores", "steal_cores"},
    "rss_bytes": {"server_max", "generator_max"},
}
CLASS_KEYS = {
    "worker_class", "workers", "threads", "backlog", "tool", "slots_configured", "slots_measured",
    "capacity_rps", "capacity_ci95", "knee", "knee_note", "keepalive", "diagnosis",
}  # fmt: skip
NUMBERS = {"requests", "failed", "slots_measured", "throughput_rps", "tool_rps", "bound_rps"}


@cache
def document(name: str) -> Document:
    """A document made by hand, or that of a recorded run."""
    by_hand = {
        "common": common,
        "everything": everything,
        "rates": at_rates,
        "target": targeted,
        "empty": empty,
        "study": full_document,
    }
    return by_hand[name]() if name in by_hand else _with_fixed_paths(document_of(recorded(name)))


def _with_fixed_paths(unpacked: Document) -> Document:
    """The same document with paths that do not depend on where its run was unpacked."""
    run = f"/srv/runs/{unpacked.run}"
    file = f"{run}/gunicorn.conf.py"
    paths = {"place": file, "start": f"gunicorn -c {file}", "run": run}

    def fixed(finding: Any) -> Any:
        changes = {name: paths[name] for name, value in finding.values.items()
                   if name in paths and value}  # fmt: skip
        return replace(finding, **changes)

    findings, notes = (tuple(map(fixed, items)) for items in (unpacked.findings, unpacked.notes))
    return replace(unpacked, findings=findings, notes=notes)


COMMANDS = ("common", "ladder", "bottleneck", "generators", "limits", "advise")
SMALL = ("common", "ladder", "bottleneck", "generators-interrupted", "limits-interrupted", "advise")
BY_HAND = ("common", "everything", "rates", "target", "empty", "study")
NOT_NUMBERS = {"title", "columns", "names", "question", "environment"}
SUFFIXES = {"table": "txt", "json": "json", "csv": "csv", "markdown": "md"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *product(("table", "markdown", "csv"), COMMANDS),
        *product(("json",), SMALL),
        ("csv", "everything"),
        ("markdown", "everything"),
        ("csv", "settings"),
    ],
)
def test_golden(name: str, kind: str, golden: Golden) -> None:
    golden(f"{kind}.{SUFFIXES[name]}", FORMATS[name](document(kind)))


@pytest.mark.parametrize("width", [160, 80, 60])
def test_golden_of_a_terminal(width: int, golden: Golden) -> None:
    output = text.render(document("common"), width=width)
    assert max(map(len, output.splitlines())) <= width
    golden(f"common-{width}.txt", output)


@pytest.mark.parametrize("kind", ["common", "everything", "rates", "target", "study", "advise"])
def test_golden_of_an_explained_screen(kind: str, golden: Golden) -> None:
    golden(f"{kind}-explained.txt", text.render(document(kind), explain=True))


def numbers(value: Any) -> Any:
    """The value without empty entries, and with the codes of sentences in their place."""
    if isinstance(value, dict):
        if value.keys() == {"code", "values", "text"}:
            return value["code"]
        return {
            name: numbers(inner)
            for name, inner in value.items()
            if name not in NOT_NUMBERS and (inner not in (None, [], {}) or name == "rows")
        }
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def lines_of(part: str, value: Any) -> Iterator[str]:
    """One for each cell, class, row, chart and finding."""
    if isinstance(value, list):
        for entry in value:
            yield from lines_of(part, entry)
    elif part == "tables":
        yield f"table with {len(value['rows'])} rows\n"
        yield from lines_of("row", value["rows"])
    else:
        yield f"{part} {json.dumps(value)}\n"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "settings"])  # has no numbers
def test_numbers_and_verdicts_of_recorded_runs(name: str, golden: Golden) -> None:
    contents = numbers(json.loads(FORMATS["json"](document_of(recorded(name)))))
    golden(f"{name}.numbers", "".join(chain(*starmap(lines_of, contents.items()))))


# --- the terminal ---------------------------------------------------------------------------


def test_the_usual_sweep_is_one_screen() -> None:
    lines = text.render(document("common"), width=80).splitlines()
    assert len(lines) <= 42
    hidden = [line for line in lines if "Columns hidden" in line]
    assert hidden == ["Columns hidden (terminal too narrow): slots busy."]


def test_wide_terminals_show_cells_and_times_in_one_table() -> None:
    narrow, wide = (text.render(document("common"), width=width) for width in (80, 160))
    assert "Where the time goes" in narrow
    assert "Where the time goes" not in wide
    heading = next(line for line in wide.splitlines() if line.startswith("class"))
    assert heading.index("failed") < heading.index("verdict") < len(heading) - len(" s")
    assert heading.endswith(" s")


def test_hidden_columns_are_named() -> None:
    output = " ".join(text.render(document("common"), width=60).split())
    assert "Columns hidden (terminal too narrow): slots busy, bound req/s" in output


def test_the_key_columns_stay_on_the_narrowest_terminal() -> None:
    lines = text.render(document("common"), width=22).splitlines()
    assert any(line.split() == ["class", "conn.", "req/s"] for line in lines)
    assert "verdict" in " ".join(lines)[: " ".join(lines).index("Where")]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(COMMANDS), st.integers(20, 200))
def test_every_column_is_visible_or_named_at_any_width(kind: str, width: int) -> None:
    for table in document(kind).tables:
        whole = to_grid(table)
        fitting, gap, hidden = text._fit(whole, width)
        assert sorted([*map(heading, fitting.columns), *hidden]) == sorted(
            map(heading, whole.columns)
        )
        drawing = natural_width(text._drawing(fitting, gap))
        assert drawing <= width or len(fitting.columns) == max(1, fitting.keys)
        below = text._table(table, False, width, None)[1]
        assert ("Columns hidden" in " ".join(below.split())) == bool(hidden)
        assert all(name in " ".join(below.split()) for name in hidden)


def test_colour_is_used_only_if_requested() -> None:
    plain, coloured = (text.render(document("study"), colour=colour) for colour in (False, True))
    assert "\x1b" not in plain
    assert plain.isascii()
    assert "\x1b[1mWhich generator sends the most at a high rate?\x1b[0m" in coloured
    assert "\x1b[33msaturated" in text.render(document("common"), colour=True)


def test_foreign_text_is_neither_markup_nor_control_characters() -> None:
    output = text.render(document("everything"), colour=True)
    assert "worker 7 [died] [0m | SIGKILL" in output
    assert "worker 7 [died] [0m \\| SIGKILL" in FORMATS["markdown"](document("everything"))


def test_the_reason_of_an_invalid_cell_is_always_visible() -> None:
    for explain in (False, True):
        output = " ".join(text.render(document("everything"), explain=explain).split())
        assert "Invalid: " in output
        assert "SIGKILL" in output


def test_a_sweep_of_invalid_cells_shows_only_reasons() -> None:
    whole = document("everything")
    cells = tuple(replace(cell, verdict="invalid") for cell in whole.cells)
    short, long = (text.render(replace(whole, cells=cells), explain=flag) for flag in (False, True))
    assert "Invalid: " in short
    assert "Where the time goes" not in short
    assert "Where the time goes" in long


def test_evidence_and_notes_need_explain() -> None:
    short, long = (text.render(document("study"), explain=flag) for flag in (False, True))
    assert "fast u sent only 70,000" not in short
    assert "fast u sent only 70,000" in long
    assert "pip install locust" not in short
    assert "pip install locust" in long
    assert "With --explain: 2 notes, evidence and what the columns mean." in short


def test_an_ignored_flag_is_below_the_title() -> None:
    ignored = FlagIgnored("--threads", ("sync",))
    output = text.render(replace(document("common"), notes=(ignored,)))
    assert output.split("\n\n")[0].endswith("\n  --threads has no effect with sync")
    assert " note" not in output


def test_a_legend_is_printed_once() -> None:
    output = " ".join(text.render(document("common"), explain=True).split())
    assert output.count("conn.: connections kept busy.") == 1


# --- machines -------------------------------------------------------------------------------


def json_of(name: str) -> Any:
    return json.loads(FORMATS["json"](document(name)))


def texts(value: object) -> list[Any]:
    """All sentences in a JSON value, nested ones included."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict) and set(value) == {"code", "values", "text"} else []
    return own + [sentence for item in inner for sentence in texts(item)]


@pytest.mark.parametrize("kind", BY_HAND)
def test_json_of_every_command_has_the_common_keys(kind: str) -> None:
    parsed = json_of(kind)
    keys = {"schema", "kind", "run", "title", "valid", "environment", "findings", "notes"}
    assert keys <= set(parsed)
    assert (parsed["schema"], parsed["kind"]) == (SCHEMA, document(kind).kind)


def test_json_of_a_sweep_is_schema_1() -> None:
    parsed = json_of("everything")
    assert {"overhead", "cells", "classes", "setup_s"} <= set(parsed)
    assert parsed["valid"] is False
    invalid = [cell for cell in parsed["cells"] if cell["verdict"] == "invalid"]
    assert invalid
    for cell in invalid:
        assert all(cell[name] is None for name in NUMBERS)
        assert not any(value is not None for name in GROUPS for value in cell[name].values())
        assert cell["diagnosis"] is None
        assert cell["reason"]
    uvicorn = next(row for row in parsed["classes"] if row["worker_class"] == "uvicorn")
    assert (uvicorn["slots_configured"], uvicorn["knee"]) == (None, None)
    assert uvicorn["knee_note"]["code"] == "KneeAbove"


def test_a_sentence_in_json_has_its_code_and_values() -> None:
    sync, eventlet, overhead = (item["answer"] for item in json_of("common")["findings"])
    assert sync["code"] == eventlet["code"] == "SeriesLimits"
    assert (sync["values"]["knee"], sync["values"]["saturated_from"]) == (4.0, 8)
    assert sync["values"]["slots"] == "4 slots"
    assert sync["values"]["why"]["code"] == "WaitingForSlots"
    assert sync["values"]["name"] == "sync"
    assert sync["text"].startswith("sync: 4 slots, knee at 4: throughput levels off at 4 req/s")
    assert overhead["code"] == "Overhead"
    assert all(sentence["text"] for sentence in texts(json_of("everything")))


def test_times_of_cells_in_json_are_milliseconds() -> None:
    cell = json_of("common")["cells"][1]
    assert cell["response_ms"]["p50"] == 2000.0
    assert cell["waiting_ms"] == {"mean": 878.049, "p50": None, "p90": None, "p95": None,
                                  "p99": None, "max": None}  # fmt: skip


def test_tables_in_json_have_base_units() -> None:
    row = json_of("study")["tables"][0]["rows"][0]
    assert row["response_p50_s"] == 0.0001234
    assert row["memory_bytes"] == 13 << 20
    assert row["whole"] is True
    assert row["never_seen_s"] is None


def rows_of(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(FORMATS["csv"](document(name)))))


def test_csv_of_a_sweep_has_one_row_per_trial() -> None:
    rows = rows_of("everything")
    assert len(rows) == len(document("everything").cells)
    assert rows[0]["response_p50_ms"] == "1000.0"
    assert rows[0]["requests_per_worker"] == "100=3 101=3"


def test_csv_of_other_commands_has_every_row_of_every_table() -> None:
    rows = rows_of("study")
    assert [row["table"] for row in rows] == ["High rate"] * 4 + ["Memory"]
    assert rows[4]["memory_bytes"] == "2048"
    assert rows[4]["throughput_rps"] == ""


# --- any document ---------------------------------------------------------------------------


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} in JSON")


@settings(max_examples=30)
@given(reports)
def test_json_of_any_sweep_is_complete_and_finite(report: Report) -> None:
    parsed = json.loads(FORMATS["json"](sweep_document(report)), parse_constant=refuse)
    assert len(parsed["cells"]) == len(report.cells)
    for cell in parsed["cells"]:
        assert set(cell) >= CELL_KEYS
        for name in ("response_ms", "connect_ms", "service_ms", "waiting_ms"):
            assert set(cell[name]) == {"mean", "p50", "p90", "p95", "p99", "max"}
        for name, keys in GROUPS.items():
            assert set(cell[name]) == keys
    for group in parsed["classes"]:
        assert set(group) >= CLASS_KEYS


@settings(max_examples=30)
@given(reports.map(sweep_document) | documents, st.none() | st.integers(20, 140), st.booleans())
def test_any_document_can_be_rendered_and_parsed(
    any_document: Document, width: int | None, flag: bool
) -> None:
    output = text.render(any_document, colour=flag, width=width, explain=not flag)
    assert output.endswith("\n")
    assert not re.search(r"\b(nan|inf)\b", output)
    assert FORMATS["markdown"](any_document).endswith("\n")
    rows = list(csv.reader(io.StringIO(FORMATS["csv"](any_document))))
    expected_rows = (
        [any_document.cells]
        if any_document.kind == "sweep"
        else [table.rows for table in any_document.tables]
    )
    assert len(rows) == 1 + sum(map(len, expected_rows))
    parsed = json.loads(FORMATS["json"](any_document), parse_constant=refuse)
    assert parsed["valid"] == any_document.valid
