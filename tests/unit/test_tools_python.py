from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.generators import closed_loop
from harness.model import Load, Output, ParseError, Timing, UsageError
from harness.tools import TOOLS, python

URL = "http://127.0.0.1:8000/"
DOCUMENT: dict[str, object] = {
    "generator": "closed_loop", "format": 2, "concurrency": 2, "planned": 4, "sent": 3,
    "unsent": 1, "complete": 2, "failed": 2, "errors": {"non_2xx": 1, "timeout": 1},
    "reconnects": 0, "deadline_struck": True, "origin_ns": 5, "duration_ns": 2_000_000_000,
    "cpu_ns": 1,
}  # fmt: skip
ROWS = f"""\
{python.COLUMNS}
10,1000000,500000000,600000000,200,,1,0
700000000,2000000,,,,timeout,3,0
600000000,1000000,90000000,100000000,500,non_2xx,2,0
"""


FIRST = "10,1000000,500000000,600000000,200,,1,0\n"


def output(rows: str = ROWS, /, **changes: object) -> Output:
    return Output(json.dumps(DOCUMENT | changes) + "\n", files={python.ROWS: rows})


def load(**changes: object) -> Load:
    plain = Load(concurrency=4, requests=21, duration_s=5.0, deadline_s=30.0)
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def test_every_tool_is_called_by_its_name() -> None:
    assert {name: tool.NAME for name, tool in TOOLS.items()} == {name: name for name in TOOLS}
    for tool in TOOLS.values():
        words = tool.command(load(), URL, "/run/x").argv
        assert words[0] == (tool.PROGRAM or sys.executable)
        assert tool.INSTALL_HINT.endswith(".")
        tool.check(load())


def test_the_words_of_a_plain_load() -> None:
    assert python.command(load(), URL, "/run/x").argv == (
        *(sys.executable, "-I", "-S", python.GENERATOR, "--url", URL),
        *("--concurrency", "4", "--requests", "21"),
        *("--deadline", "28.500", "--rows", "/run/x/requests.csv"),
    )
    assert Path(python.GENERATOR) == Path(closed_loop.__file__)


def test_the_generator_understands_every_word() -> None:
    asked = load(
        method="POST", headers=(("-X", "-1"), ("A", "b: c")), body_file="-b", expect_status=404
    )
    words = python.command(asked, URL, "/run/x").argv
    found = closed_loop.parse_arguments(list(words[4:]))
    assert (found.url, found.concurrency, found.requests) == (URL, 4, 21)
    assert (found.method, found.body_file, found.expect_status) == ("POST", "-b", 404)
    assert found.header == [("-X", "-1"), ("A", "b: c")]


def test_keep_alive_is_asked_for() -> None:
    asked = python.command(load(keepalive=True), URL, "/run/x").argv
    assert set(asked) - set(python.command(load(), URL, "/run/x").argv) == {"--keepalive"}
    assert closed_loop.parse_arguments(list(asked[4:])).keepalive


@pytest.mark.parametrize("changes", [{"concurrency": 0}, {"requests": 0}])
def test_no_connection_or_no_request_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        python.check(load(**changes))


def test_columns_are_the_generators() -> None:
    assert (python.COLUMNS, python.FORMAT) == (closed_loop.COLUMNS, closed_loop.FORMAT)
    assert tuple(map(int, python.REUSED)) == (closed_loop.NEW, closed_loop.KEPT, closed_loop.AGAIN)


def test_every_request_is_timed() -> None:
    found = python.parse(output())
    assert found.timings == (
        Timing(1e-8, 0.001, 0.5, 0.6, 200, None, "1"),
        Timing(0.6, 0.001, 0.09, 0.1, 500, "non_2xx", "2"),
        Timing(0.7, 0.002, None, None, None, "timeout", "3"),
    )
    assert (found.requests, found.failed) == (2, 2)
    assert found.errors == {"non_2xx": 1, "timeout": 1}
    assert (found.duration_s, found.rps, found.lone_s) == (2.0, 0.5, 0.6)
    assert found.response.mean == pytest.approx(0.35)
    assert found.first_byte.max == 0.5
    assert found.connect.max == 0.002
    assert sorted(found.connects_s) == [0.001, 0.001, 0.002]
    assert found.origin_ns == 5
    assert found.notes == ("stopped at its deadline: 1 requests were never sent",)


def test_no_lone_time_where_the_first_request_failed() -> None:
    rows = ROWS.replace("200,,", "500,non_2xx,")
    assert python.parse(output(rows, failed=3, errors={"non_2xx": 2, "timeout": 1})).lone_s is None


@pytest.mark.parametrize(
    "changes",
    [
        {"generator": "other"},
        {"reconnects": 1},
        {"reconnects": None},
        {"origin_ns": None},
        {"sent": 4, "unsent": 0},
        {"unsent": 2},
        {"complete": 3},
        {"failed": 1},
        {"errors": {"non_2xx": 2}},
        {"errors": {"non_2xx": 1, "reset": 1}},
        {"errors": None},
        {"duration_ns": None},
        {"duration_ns": -1},
        {"duration_ns": 10**400},
        {"complete": 2.0},
        {"complete": True},
        {"deadline_struck": None},
    ],
)
def test_a_doubtful_document_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ParseError):
        python.parse(output(**changes))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("start_ns", "begin_ns"),
        (FIRST, ""),
        (FIRST, "10,1000000,500000000,600000000,200,1,0\n"),
        (FIRST, "10,1000000,600000000,500000000,200,,1,0\n"),
        (FIRST, "10,,500000000,600000000,200,,1,0\n"),
        (FIRST, "10,1000000,500000000,600000000,,,1,0\n"),
        (FIRST, ",1000000,500000000,600000000,200,,1,0\n"),
        (FIRST, "10,1000000,500000000,600000000,200,,,0\n"),
        (FIRST, "10,1000000,500000000,600000000,200,,one,0\n"),
        (FIRST, "10,1000000,500000000,600000000,200,,12345678901234567,0\n"),
        (FIRST, "10,1000000,500000000,600000000,200,,2,0\n"),
        (FIRST, "10,1000000,500000000,600000000,200,,1,\n"),
        (FIRST, "10,1000000,500000000,600000000,200,,1,3\n"),
        (FIRST, "10,1000000,500000000,600000000,200,,1,1\n"),
        (FIRST, "10,1000000,500000000,600000000,200,,1,2\n"),
        ("10,1000000", "-10,1000000"),
        ("10,1000000", "x,1000000"),
        ("timeout,3,0\n", "timeout,3,0"),
        ("timeout", ""),
        ("timeout", "reset"),
    ],
)
def test_a_doubtful_row_is_refused(old: str, new: str) -> None:
    assert ROWS.count(old) == 1
    with pytest.raises(ParseError):
        python.parse(output(ROWS.replace(old, new)))


def test_an_older_document_is_refused_by_its_format() -> None:
    with pytest.raises(ParseError, match=r"another version.*not of format 2"):
        python.parse(output(format=1))


def test_a_kept_connection_has_no_time_to_connect() -> None:
    """And of a request that was sent again, only the last try is known: not how long it took."""
    rows = ROWS.replace(",2,0\n", ",2,2\n").replace(FIRST, FIRST.replace("1000000,5", "0,5", 1))
    rows = rows.replace("200,,1,0", "200,,1,1")
    found = python.parse(output(rows, reconnects=1))
    assert [timing.reused for timing in found.timings] == [True, False, False]
    assert found.timings[0].connect_s == 0
    assert found.connects_s == (0.002,)
    assert found.connect.mean == 0.002
    assert found.notes[0].startswith("1 kept connections were closed by the server")


def test_a_generator_that_failed_is_told_with_its_last_words() -> None:
    with pytest.raises(ParseError, match=r"exit code 3.*no space left"):
        python.parse(Output("", "closed_loop: no space left\n", 3))


@settings(deadline=None)
@given(st.text(), st.text(), st.sampled_from([0, 0, 0, 1, -2, None]))
def test_garbage_is_an_error_and_nothing_else(stdout: str, rows: str, code: int | None) -> None:
    with pytest.raises(ParseError):
        python.parse(Output(stdout, "", code, {python.ROWS: rows}))


@settings(deadline=None)
@given(st.sampled_from([*DOCUMENT]), st.none() | st.text() | st.floats() | st.integers())
def test_a_strange_value_is_an_error_or_changes_nothing_else(name: str, value: object) -> None:
    try:
        found = python.parse(output(**{name: value}))
    except ParseError:
        return
    same = python.parse(output())
    if name == "duration_ns":
        same = dataclasses.replace(same, duration_s=found.duration_s, rps=found.rps)
    if name == "origin_ns":
        same = dataclasses.replace(same, origin_ns=found.origin_ns)
    assert found == same


@settings(deadline=None)
@given(st.text())
def test_rows_of_garbage_are_an_error_and_nothing_else(rows: str) -> None:
    with pytest.raises(ParseError):
        python.parse(output(f"{python.COLUMNS}\n{rows}\n"))
