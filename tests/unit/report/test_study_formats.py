"""Every format of a study against its golden, and what must hold for any study.

To accept new wording: UPDATE_GOLDENS=1 pytest tests/unit/test_study_formats.py, then read the
difference.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model import Answer, Chart, Column, Document, Series, Table, Value
from harness.report.study import STUDY_FORMATS, table
from tests.builders.document import whole_study

GOLDENS = Path(__file__).parents[2] / "data" / "study"


def check(name: str, text: str) -> None:
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STUDY_FORMATS)
def test_golden(name: str) -> None:
    check(name, STUDY_FORMATS[name].render(whole_study()))


def test_golden_of_a_narrow_terminal() -> None:
    text = table.render(whole_study(), width=60)
    assert max(map(len, text.splitlines())) <= 60
    check("table-60", text)


def test_colour_only_where_asked() -> None:
    plain, coloured = table.render(whole_study()), table.render(whole_study(), colour=True)
    assert plain.isascii()
    assert "\x1b" not in plain
    assert "\x1b[1mWho wins at a high rate?\x1b[0m" in coloured


def test_json_has_base_units_under_the_columns_names() -> None:
    document = json.loads(STUDY_FORMATS["json"].render(whole_study()))
    assert (document["schema"], document["kind"], document["valid"]) == (1, "generators", True)
    row = document["tables"][0]["rows"][0]
    assert row["response_p50_s"] == 0.0001234
    assert row["memory_bytes"] == 13 << 20
    assert row["whole"] is True
    assert row["never_seen_s"] is None


def test_csv_holds_every_row_of_every_table() -> None:
    rows = list(csv.DictReader(io.StringIO(STUDY_FORMATS["csv"].render(whole_study()))))
    assert [row["table"] for row in rows] == ["High rate"] * 4 + ["Memory"]
    assert rows[4]["memory_bytes"] == "2048"
    assert rows[4]["throughput_rps"] == ""


# --- any study ------------------------------------------------------------------------------

words = st.text(st.characters(exclude_characters="nN"), max_size=20)
numbers = st.floats(-1e12, 1e12) | st.sampled_from([float("nan"), float("inf"), -0.0, 1e-300])
values: st.SearchStrategy[Value] = st.none() | st.booleans() | st.integers(0, 10**9) | numbers
forms = st.sampled_from(["text", "count", "number", "seconds", "bytes", "percent"])
names = st.from_regex("[a-z][a-z_]{0,8}", fullmatch=True)
columns = st.lists(
    st.builds(Column, names, words, forms), min_size=1, max_size=5, unique_by=lambda one: one.name
)


@st.composite
def any_table(draw: st.DrawFn) -> Table:
    own = draw(columns)
    row = st.tuples(*[values | words for _ in own])
    return Table(draw(words), tuple(own), tuple(draw(st.lists(row, max_size=4))), draw(words))


points = st.lists(st.tuples(numbers, numbers), max_size=4).map(tuple)
charts = st.builds(
    Chart,
    words,
    words,
    words,
    st.lists(st.builds(Series, words, points), max_size=4, unique_by=lambda one: one.name).map(
        tuple
    ),
    st.tuples(st.booleans(), st.booleans()),
    words,
)
findings = st.builds(Answer, words, words, st.lists(words, max_size=3).map(tuple))
studies = st.builds(
    Document,
    words,
    words,
    words,
    st.dictionaries(words, numbers | words, max_size=3),
    st.lists(findings, max_size=3).map(tuple),
    st.lists(any_table(), max_size=3).map(tuple),
    st.lists(charts, max_size=2).map(tuple),
    st.lists(words, max_size=2).map(tuple),
    st.booleans(),
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} in JSON")


@settings(deadline=None, max_examples=60)
@given(studies, st.none() | st.integers(20, 140), st.booleans())
def test_any_study_can_be_read(study: Document, width: int | None, colour: bool) -> None:
    text = table.render(study, colour=colour, width=width)
    assert text.endswith("\n")
    assert not re.search(r"\b(nan|inf)\b", text)
    document = json.loads(STUDY_FORMATS["json"].render(study), parse_constant=refuse)
    assert [len(one["rows"]) for one in document["tables"]] == [
        len(one.rows) for one in study.tables
    ]
    rows = csv.reader(io.StringIO(STUDY_FORMATS["csv"].render(study)))
    assert len(list(rows)) == 1 + sum(len(one.rows) for one in study.tables)
    assert STUDY_FORMATS["markdown"].render(study).endswith("\n")
