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

from tests.builders.analysis import invalid_of
from tests.builders.any_document import documents, reports
from tests.builders.document import full_document
from tests.builders.runs import NAMES, recorded
from tests.builders.schema import validated
from tests.builders.sweep import at_rates, common, empty, everything, targeted
from workerlab.experiments.reading import document_of
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model.result import SCHEMA, Document
from workerlab.notes import FlagIgnored
from workerlab.report import FORMATS, text
from workerlab.report.tables import to_grid
from workerlab.report.text import natural_width
from workerlab.report.values import heading

Golden = Callable[[str, str], None]

GROUPS = ("waiting_split_ms", "kernel", "cpu", "core_wait", "rss_bytes")
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
        values = finding.values
        return replace(finding, **{name: path for name, path in paths.items() if values.get(name)})

    findings, notes = (tuple(map(fixed, items)) for items in (unpacked.findings, unpacked.notes))
    return replace(unpacked, findings=findings, notes=notes)


COMMANDS = ("common", "ladder", "bottleneck", "generators", "limits", "advise")
SMALL = ("common", "ladder", "bottleneck", "generators-interrupted", "limits-interrupted", "advise")
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
    """A line for each cell, class, row, chart and finding."""
    if isinstance(value, list):
        for entry in value:
            yield from lines_of(part, entry)
    elif part == "tables":
        yield f"table with {len(value['rows'])} rows\n"
        yield from lines_of("row", value["rows"])
    else:
        yield f"{part} {json.dumps(value)}\n"


@pytest.mark.parametrize("name", NAMES)
def test_schema_numbers_and_verdicts_of_recorded_runs(name: str, golden: Golden) -> None:
    parsed = validated(json.loads(FORMATS["json"](document_of(recorded(name)))))
    if name != "settings":  # which has no numbers
        golden(f"{name}.numbers", "".join(chain(*starmap(lines_of, numbers(parsed).items()))))


# --- the terminal ---------------------------------------------------------------------------


def test_the_usual_sweep_is_one_screen() -> None:
    lines = text.render(document("common"), width=80).splitlines()
    assert len(lines) <= 42
    assert [line for line in lines if "Columns hidden" in line] == [
        "Columns hidden (terminal too narrow): slots busy."
    ]


def test_the_key_columns_stay_on_the_narrowest_terminal() -> None:
    lines = text.render(document("common"), width=22).splitlines()
    assert any(line.split() == ["class", "conn.", "req/s"] for line in lines)
    assert "verdict" in " ".join(lines)[: " ".join(lines).index("Where")]


@settings(max_examples=300)
@given(st.sampled_from(COMMANDS), st.integers(20, 200), st.data())
def test_every_column_is_visible_or_named_at_any_width(
    kind: str, width: int, data: st.DataObject
) -> None:
    table = data.draw(st.sampled_from(document(kind).tables))
    whole = to_grid(table)
    fitting, gap, hidden = text._fit(whole, width)
    assert sorted([*map(heading, fitting.columns), *hidden]) == sorted(map(heading, whole.columns))
    drawing = natural_width(text._drawing(fitting, gap))
    assert drawing <= width or len(fitting.columns) == max(1, fitting.keys)
    below = " ".join(text._table(table, False, width, None)[1].split())
    assert ("Columns hidden" in below) == bool(hidden)
    assert all(name in below for name in hidden)


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


def test_a_sweep_of_invalid_cells_shows_only_reasons() -> None:
    whole = document("everything")
    cells = tuple(invalid_of(cell, cell.reason) for cell in whole.cells)
    short, long = (text.render(replace(whole, cells=cells), explain=flag) for flag in (False, True))
    assert "Invalid: " in short
    assert "Where the time goes" not in short
    assert "Where the time goes" in long


def test_evidence_and_notes_need_explain() -> None:
    short, long = (text.render(document("study"), explain=flag) for flag in (False, True))
    for words in ("fast u sent only 70,000", "pip install locust"):
        assert words not in short
        assert words in long
    assert "With --explain: 2 notes, evidence and what the columns mean." in short


def test_an_ignored_flag_is_below_the_title() -> None:
    ignored = FlagIgnored("--threads", ("sync",))
    output = text.render(replace(document("common"), notes=(ignored,)))
    assert output.split("\n\n")[0].endswith("\n  --threads has no effect with sync")
    assert " note" not in output


# --- machines -------------------------------------------------------------------------------


def json_of(name: str) -> Any:
    return json.loads(FORMATS["json"](document(name)))


def test_an_invalid_cell_has_no_numbers_in_json() -> None:
    parsed = validated(json_of("everything"))
    assert (parsed["schema"], parsed["kind"], parsed["valid"]) == (SCHEMA, "sweep", False)
    invalid = [cell for cell in parsed["cells"] if cell["verdict"] == "invalid"]
    assert invalid
    for cell in invalid:
        assert all(cell[name] is None for name in NUMBERS)
        assert {value for name in GROUPS for value in cell[name].values()} == {None}
        assert cell["diagnosis"] is None
        assert cell["reason"]
    uvicorn = next(row for row in parsed["classes"] if row["worker_class"] == "uvicorn")
    assert (uvicorn["slots_configured"], uvicorn["knee"]) == (None, None)
    assert uvicorn["knee_note"]["code"] == "KneeAbove"


def test_no_sentence_in_json_is_empty() -> None:
    assert '"text": ""' not in FORMATS["json"](document("everything"))


def test_tables_in_json_have_base_units() -> None:
    row = json_of("study")["tables"][0]["rows"][0]
    assert (row["response_p50_s"], row["memory_bytes"]) == (0.0001234, 13 << 20)
    assert row["whole"] is True
    assert row["never_seen_s"] is None


# --- any document ---------------------------------------------------------------------------


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} in JSON")


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
    tables = [table.rows for table in any_document.tables]
    expected_rows = [any_document.cells] if any_document.kind == "sweep" else tables
    assert len(rows) == 1 + sum(map(len, expected_rows))
    parsed = validated(json.loads(FORMATS["json"](any_document), parse_constant=refuse))
    assert parsed["valid"] == any_document.valid
    assert len(parsed.get("cells", ())) == len(any_document.cells)
