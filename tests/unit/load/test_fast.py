from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workerlab.load import programs
from workerlab.load.fast import FAST
from workerlab.load.fast import ROWS as FILE
from workerlab.load.generators.document import COLUMNS, Tally, document
from workerlab.load.generators.words import OPTIONAL, Words
from workerlab.load.generators.words import parse as words_of
from workerlab.load.programs import RequestsSentAgain, StoppedAtDeadline
from workerlab.load.registry import ALIASES, TOOLS, tool_named
from workerlab.model import Load, Output, ParseError, Timing, UsageError
from workerlab.numbers.histogram import Histogram
from workerlab.numbers.schedule import schedule

URL = "http://127.0.0.1:8000/"
SECOND = 1_000_000_000


def histogram(*values: int) -> dict[str, object]:
    made = Histogram()
    made.record_all(values)
    return made.to_json()


ASKED = {
    "concurrency": 2, "processes": 1, "requests": 4, "duration_s": None, "rate_rps": None,
    "keepalive": False, "rows": True,
}  # fmt: skip
DOCUMENT: dict[str, object] = {
    "generator": "fast", "format": 3, "asked": ASKED, "sent": 3, "unsent": 1, "complete": 2,
    "failed": 2, "errors": {"non_2xx": 1, "timeout": 1}, "connections": 3, "reconnects": 0,
    "body_bytes": 10, "origin_ns": 5, "duration_ns": 2 * SECOND, "cpu_ns": 1,
    "in_flight_ns": 3 * SECOND, "deadline_struck": True, "notes": [],
    "response": histogram(600_000_000, 100_000_000), "connect": histogram(1_000_000, 2_000_000),
    "first_byte": histogram(500_000_000, 90_000_000), "lag": histogram(),
    "lone_ns": 600_000_000,
}  # fmt: skip
ROWS = f"""\
{COLUMNS}
10,1000000,500000000,600000000,200,,1,0
700000000,2000000,,,,timeout,3,0
600000000,1000000,90000000,100000000,500,non_2xx,2,0
"""


FIRST = "10,1000000,500000000,600000000,200,,1,0\n"


def output(text: str = ROWS, /, **changes: object) -> Output:
    return Output(json.dumps(DOCUMENT | changes) + "\n", files={FILE: text})


def load(**changes: object) -> Load:
    plain = Load(concurrency=4, requests=21, duration_s=5.0, deadline_s=30.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def asked_for(**changes: object) -> Words:
    """What the generator understands of the tool's words for such a load."""
    argv = FAST.command(load(**changes), URL, "/run/x").argv
    return words_of(argv[5:], "fast", supports=OPTIONAL)


def test_every_tool_is_called_by_its_name() -> None:
    assert {name: tool.NAME for name, tool in TOOLS.items()} == {name: name for name in TOOLS}
    for tool in TOOLS.values():
        words = tool.command(load(), URL, "/run/x").argv
        assert words[0] == (tool.PROGRAM or sys.executable)
        assert tool.INSTALL_HINT.endswith(".")
        tool.check(load())


def test_old_names_are_understood() -> None:
    assert tool_named("python") is FAST
    for other, name in ALIASES.items():
        assert tool_named(other) is TOOLS[name]


def test_the_words_of_a_plain_load() -> None:
    assert FAST.command(load(), URL, "/run/x").argv == (
        *(sys.executable, "-I", "-S", programs.GENERATORS, "fast", "--url", URL),
        *("--concurrency", "4", "--requests", "21", "--deadline", "28.500"),
        *("--rows", "/run/x/requests.csv"),
    )


def test_the_generator_understands_every_word(tmp_path: Path) -> None:
    body = tmp_path / "-b"
    body.write_bytes(b"abc")
    found = asked_for(
        method="POST", headers=(("-X", "-1"), ("A", "b: c")), body_file=str(body),
        expect_status=404, processes=2, keepalive=True, ramp_s=1.5, same_body=True, linger_s=5.0,
        sources=("127.0.0.2", "127.0.0.3"), urls=("http://127.0.0.1:2/",),
    )  # fmt: skip
    assert found == Words(
        urls=(URL, "http://127.0.0.1:2/"), concurrency=4, requests=21, processes=2,
        keepalive=True, method="POST", headers=(("-X", "-1"), ("A", "b: c")), body=b"abc",
        expect_status=404, deadline_s=28.5, ramp_s=1.5, sources=("127.0.0.2", "127.0.0.3"),
        same_body=True, rows="/run/x/requests.csv", linger_s=5.0,
    )  # fmt: skip


def test_a_load_for_a_time_and_one_at_a_rate() -> None:
    timed = asked_for(timed=True)
    assert (timed.requests, timed.duration_s) == (None, 5.0)
    open_model = asked_for(rate_rps=0.1 + 0.2)
    assert (open_model.requests, open_model.duration_s) == (None, 5.0)
    assert open_model.rate_rps == 0.1 + 0.2
    assert (open_model.arrivals, open_model.seed) == ("even", 0)
    poisson = asked_for(rate_rps=5.0, duration_s=61.23456, arrivals="poisson", schedule=70_001)
    assert poisson.moments() == schedule("poisson", 5.0, 61.23456, 70_001)


@pytest.mark.parametrize("changes", [{"concurrency": 0}, {"requests": 0}])
def test_no_connection_or_no_request_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        FAST.check(load(**changes))


def test_every_request_is_timed() -> None:
    found = FAST.parse(output())
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
    assert [type(note) for note in found.notes] == [StoppedAtDeadline]


def test_a_load_in_which_nothing_was_due_is_refused_with_the_reason() -> None:
    asked = {**ASKED, "rows": False, "requests": None, "duration_s": 5.0, "rate_rps": 0.1}
    nothing = {"sent": 0, "unsent": 0, "complete": 0, "failed": 0, "errors": {}, "lone_ns": None}
    with pytest.raises(ParseError, match=r"no request was due in 5 s at 0\.1 requests/s"):
        FAST.parse(output(asked=asked, **nothing, response=histogram(), first_byte=histogram()))


def test_no_lone_time_where_the_first_request_failed() -> None:
    rows = ROWS.replace("200,,", "500,non_2xx,")
    failed = {"failed": 3, "errors": {"non_2xx": 2, "timeout": 1}}
    assert FAST.parse(output(rows, **failed, lone_ns=None)).lone_s is None
    with pytest.raises(ParseError, match="lone_ns"):
        FAST.parse(output(rows, **failed))


@pytest.mark.parametrize(
    "changes",
    [
        {"generator": "other"},
        {"reconnects": 1},
        {"reconnects": None},
        {"origin_ns": None},
        {"sent": 4, "unsent": 0},
        {"response": histogram(1)},
        {"connect": {}},
        {"asked": None},
        {"in_flight_ns": 0.5},
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
        FAST.parse(output(**changes))


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
        FAST.parse(output(ROWS.replace(old, new)))


def test_an_older_document_is_refused_by_its_format() -> None:
    with pytest.raises(ParseError, match=r"another version.*not of format 3"):
        FAST.parse(output(format=2))


def test_a_kept_connection_has_no_time_to_connect() -> None:
    """And of a request that was sent again, only the last try is known: not how long it took."""
    rows = ROWS.replace(",2,0\n", ",2,2\n").replace(FIRST, FIRST.replace("1000000,5", "0,5", 1))
    rows = rows.replace("200,,1,0", "200,,1,1")
    found = FAST.parse(output(rows, reconnects=1))
    assert [timing.reused for timing in found.timings] == [True, False, False]
    assert found.timings[0].connect_s == 0
    assert found.connects_s == (0.002,)
    assert found.connect.mean == 0.002
    assert found.notes[0] == RequestsSentAgain(1)


def test_a_generator_that_failed_is_told_with_its_last_words() -> None:
    with pytest.raises(ParseError, match=r"exit code 3.*no space left"):
        FAST.parse(Output("", "fast: no space left\n", 3))


@given(st.text(), st.text(), st.sampled_from([0, 0, 0, 1, -2, None]))
def test_garbage_is_an_error_and_nothing_else(stdout: str, rows: str, code: int | None) -> None:
    with pytest.raises(ParseError):
        FAST.parse(Output(stdout, "", code, {FILE: rows}))


# What hangs on one value alone
SAYS = {
    "duration_ns": ("duration_s", "rps", "achieved_concurrency"),
    "in_flight_ns": ("achieved_concurrency",),
    "origin_ns": ("origin_ns",),
    "connections": ("connections",),
    "cpu_ns": ("cpu_s",),
    "lone_ns": ("lone_s",),
}


@given(st.sampled_from([*DOCUMENT]), st.none() | st.text() | st.floats() | st.integers())
def test_a_strange_value_is_an_error_or_changes_nothing_else(name: str, value: object) -> None:
    try:
        found = FAST.parse(output(**{name: value}))
    except ParseError:
        return
    same = FAST.parse(output())
    same = replace(same, **{it: getattr(found, it) for it in SAYS.get(name, ())})
    assert found == same


@given(st.text())
def test_rows_of_garbage_are_an_error_and_nothing_else(rows: str) -> None:
    with pytest.raises(ParseError):
        FAST.parse(output(f"{COLUMNS}\n{rows}\n"))


# --- what all bodies were -----------------------------------------------------------------

PAGE, OTHER = "a" * 64, "b" * 64


def test_a_documents_digest_is_the_measurements() -> None:
    assert FAST.parse(output(body_sha256=PAGE)).body_sha256 == PAGE
    assert FAST.parse(output(body_sha256=None)).body_sha256 is None
    assert FAST.parse(output()).body_sha256 is None  # as it was before there was one


@pytest.mark.parametrize("value", [1, "", "A" * 64, PAGE + "a"])
def test_what_is_no_digest_is_an_error(value: object) -> None:
    with pytest.raises(ParseError):
        FAST.parse(output(body_sha256=value))


def tally(digest: str | None, right: int, wrong: int = 0) -> Tally:
    found = Tally(body_sha256=digest)
    for place in range(right + wrong):
        found.begin(place)
        found.done(place, place, place + 1, None if place < right else "body", 0)
    return found


@pytest.mark.parametrize(
    ("other", "digest", "failed"),
    [
        (tally(PAGE, 3), PAGE, 0),
        (tally(None, 0), PAGE, 0),
        (tally(OTHER, 3, 1), None, 4),
        (tally(PAGE, 3, 1), None, 1),
    ],
    ids=["the same", "nothing", "another", "one differs"],
)
def test_processes_must_have_seen_the_same(other: Tally, digest: str | None, failed: int) -> None:
    found = tally(PAGE, 2)
    found.add(other)
    said = document("fast", asked_for(requests=6), found)
    assert (said["body_sha256"], said["errors"]) == (digest, {"body": failed} if failed else {})
