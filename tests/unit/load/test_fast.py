from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workerlab.errors import ParseError, UsageError
from workerlab.load import programs
from workerlab.load.fast import FAST, ROWS_FILE
from workerlab.load.generators.__main__ import GENERATORS
from workerlab.load.generators.document import Tally, document
from workerlab.load.generators.format import COLUMNS
from workerlab.load.generators.options import OPTIONAL_FIELDS, LoadOptions
from workerlab.load.generators.options import parse as parse_options
from workerlab.load.programs import RequestsSentAgain, StoppedAtDeadline
from workerlab.load.registry import ALIASES, TOOLS, tool_named
from workerlab.model.evidence import Output, Timing
from workerlab.model.plan import Load
from workerlab.numbers.histogram import Histogram
from workerlab.numbers.schedule import schedule

URL = "http://127.0.0.1:8000/"
SECOND = 1_000_000_000


def histogram(*values_ns: int) -> dict[str, object]:
    result = Histogram()
    result.record_all(values_ns)
    return result.to_json()


REQUESTED = {
    "concurrency": 2, "processes": 1, "requests": 4, "duration_s": None, "rate_rps": None,
    "keepalive": False, "rows": True,
}  # fmt: skip
DOCUMENT: dict[str, object] = {
    "generator": "fast", "format": 3, "load": REQUESTED, "sent": 3, "unsent": 1, "complete": 2,
    "failed": 2, "errors": {"non_2xx": 1, "timeout": 1}, "connections": 3, "reconnects": 0,
    "body_bytes": 10, "origin_ns": 5, "duration_ns": 2 * SECOND, "cpu_ns": 1,
    "in_flight_ns": 3 * SECOND, "deadline_struck": True, "notes": [],
    "response": histogram(600_000_000, 100_000_000), "connect": histogram(1_000_000, 2_000_000),
    "first_byte": histogram(500_000_000, 90_000_000), "lag": histogram(),
    "lone_ns": 600_000_000,
}  # fmt: skip
FIRST = "10,1000000,500000000,600000000,200,,1,0\n"
ROWS = f"""\
{COLUMNS}
{FIRST}\
700000000,2000000,,,,timeout,3,0
600000000,1000000,90000000,100000000,500,non_2xx,2,0
"""


def output(text: str = ROWS, /, **changes: object) -> Output:
    return Output(json.dumps(DOCUMENT | changes) + "\n", files={ROWS_FILE: text})


def load(**changes: object) -> Load:
    plain = Load(concurrency=4, requests=21, duration_s=5.0, deadline_s=30.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def parsed_options(**changes: object) -> LoadOptions:
    """The options that the generator parses from the tool's command for this load."""
    argv = FAST.command(load(**changes), URL, "/run/x").argv
    return parse_options(argv[5:], "fast", supports=OPTIONAL_FIELDS)


def test_each_tool_is_registered_under_its_name() -> None:
    assert {name: tool.NAME for name, tool in TOOLS.items()} == {name: name for name in TOOLS}
    for tool in TOOLS.values():
        argv = tool.command(load(), URL, "/run/x").argv
        assert argv[0] == (tool.PROGRAM or sys.executable)
        assert tool.INSTALL_HINT.endswith(".")
        tool.check(load())
    assert tool_named("python") is FAST
    for alias, name in ALIASES.items():
        assert tool_named(alias) is TOOLS[name]


def test_the_command_of_a_plain_load() -> None:
    assert FAST.command(load(), URL, "/run/x").argv == (
        *(sys.executable, "-I", "-S", programs.GENERATORS, "fast", "--url", URL),
        *("--concurrency", "4", "--requests", "21", "--deadline", "28.500"),
        *("--rows", "/run/x/requests.csv"),
    )


def test_the_generator_parses_every_option(tmp_path: Path) -> None:
    body = tmp_path / "-b"
    body.write_bytes(b"abc")
    options = parsed_options(
        method="POST", headers=(("-X", "-1"), ("A", "b: c")), body_file=str(body),
        expect_status=404, processes=2, keepalive=True, ramp_s=1.5, same_body=True, linger_s=5.0,
        sources=("127.0.0.2", "127.0.0.3"), urls=("http://127.0.0.1:2/",),
    )  # fmt: skip
    assert options == LoadOptions(
        urls=(URL, "http://127.0.0.1:2/"), concurrency=4, requests=21, processes=2,
        keepalive=True, method="POST", headers=(("-X", "-1"), ("A", "b: c")), body=b"abc",
        expect_status=404, deadline_s=28.5, ramp_s=1.5, sources=("127.0.0.2", "127.0.0.3"),
        same_body=True, rows="/run/x/requests.csv", linger_s=5.0,
    )  # fmt: skip


def test_options_of_timed_and_open_loads() -> None:
    timed = parsed_options(timed=True)
    assert (timed.requests, timed.duration_s) == (None, 5.0)
    open_model = parsed_options(rate_rps=0.1 + 0.2)
    assert (open_model.requests, open_model.duration_s) == (None, 5.0)
    assert open_model.rate_rps == 0.1 + 0.2
    assert (open_model.arrivals, open_model.seed) == ("even", 0)
    poisson = parsed_options(rate_rps=5.0, duration_s=61.23456, arrivals="poisson", schedule=70_001)
    assert poisson.due_times_ns() == schedule("poisson", 5.0, 61.23456, 70_001)


@pytest.mark.parametrize(
    "words", [("--rate", "5", "--duration", "1"), ("--source", "127.0.0.2"), ("--linger", "5")]
)
@pytest.mark.parametrize("name", [name for name in GENERATORS if name != "fast"])
def test_options_that_a_generator_does_not_support_are_rejected(
    name: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    amount = () if "--duration" in words else ("--requests", "4")
    argv = ["--url", URL, "--concurrency", "1", *amount, *words]
    with pytest.raises(SystemExit) as ending:
        parse_options(argv, name, supports=GENERATORS[name].optional_fields)
    output = capsys.readouterr()
    assert (ending.value.code, output.out, output.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("changes", [{"concurrency": 0}, {"requests": 0}])
def test_no_connections_or_no_requests_is_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        FAST.check(load(**changes))


def test_every_request_is_timed() -> None:
    measurement = FAST.parse(output())
    assert measurement.timings == (
        Timing(1e-8, 0.001, 0.5, 0.6, 200, None, "1"),
        Timing(0.6, 0.001, 0.09, 0.1, 500, "non_2xx", "2"),
        Timing(0.7, 0.002, None, None, None, "timeout", "3"),
    )
    assert (measurement.requests, measurement.failed) == (2, 2)
    assert measurement.errors == {"non_2xx": 1, "timeout": 1}
    assert (measurement.duration_s, measurement.rps, measurement.lone_s) == (2.0, 0.5, 0.6)
    assert measurement.response.mean == pytest.approx(0.35)
    assert measurement.first_byte.max == 0.5
    assert measurement.connect.max == 0.002
    assert sorted(measurement.connects_s) == [0.001, 0.001, 0.002]
    assert measurement.origin_ns == 5
    assert [type(note) for note in measurement.notes] == [StoppedAtDeadline]


def test_a_load_without_a_due_request_is_rejected() -> None:
    requested = {**REQUESTED, "rows": False, "requests": None, "duration_s": 5.0, "rate_rps": 0.1}
    counts = {"sent": 0, "unsent": 0, "complete": 0, "failed": 0, "errors": {}, "lone_ns": None}
    with pytest.raises(ParseError, match=r"no request was due in 5 s at 0\.1 requests/s"):
        FAST.parse(output(load=requested, **counts, response=histogram(), first_byte=histogram()))


def test_no_lone_time_if_the_first_request_failed() -> None:
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
        {"load": None},
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
        *({"body_sha256": value} for value in (1, "", "A" * 64, "a" * 65)),
    ],
)
def test_an_inconsistent_document_is_rejected(changes: dict[str, object]) -> None:
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
def test_an_inconsistent_row_is_rejected(old: str, new: str) -> None:
    assert ROWS.count(old) == 1
    with pytest.raises(ParseError):
        FAST.parse(output(ROWS.replace(old, new)))


def test_connect_times_of_kept_connections_and_resent_requests() -> None:
    """A resent request has only the row of its last attempt, so its connect time is not counted."""
    rows = ROWS.replace(",2,0\n", ",2,2\n").replace(FIRST, FIRST.replace("1000000,5", "0,5", 1))
    rows = rows.replace("200,,1,0", "200,,1,1")
    measurement = FAST.parse(output(rows, reconnects=1))
    assert [timing.reused for timing in measurement.timings] == [True, False, False]
    assert measurement.timings[0].connect_s == 0
    assert measurement.connects_s == (0.002,)
    assert measurement.connect.mean == 0.002
    assert measurement.notes[0] == RequestsSentAgain(1)


@pytest.mark.parametrize(
    ("unusable", "why"),
    [
        (output(format=2), "another version.*not of format 3"),
        (Output("", "fast: no space left\n", 3), "exit code 3.*no space left"),
    ],
    ids=["an older format", "a failed generator"],
)
def test_unusable_output_is_rejected_with_the_reason(unusable: Output, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        FAST.parse(unusable)


# Fields of the measurement that depend on one value of the document
DEPENDENT_FIELDS = {
    "duration_ns": ("duration_s", "rps", "achieved_concurrency"),
    "in_flight_ns": ("achieved_concurrency",),
    "origin_ns": ("origin_ns",),
    "connections": ("connections",),
    "cpu_ns": ("cpu_s",),
    "lone_ns": ("lone_s",),
}


@given(st.sampled_from([*DOCUMENT]), st.none() | st.text() | st.floats() | st.integers())
def test_an_odd_value_is_rejected_or_changes_only_its_fields(name: str, value: object) -> None:
    try:
        measurement = FAST.parse(output(**{name: value}))
    except ParseError:
        return
    dependent = {field: getattr(measurement, field) for field in DEPENDENT_FIELDS.get(name, ())}
    assert measurement == replace(FAST.parse(output()), **dependent)


@given(st.text())
def test_arbitrary_rows_raise_parse_error(rows: str) -> None:
    with pytest.raises(ParseError):
        FAST.parse(output(f"{COLUMNS}\n{rows}\n"))


# --- the digest of the bodies -------------------------------------------------------------

PAGE, OTHER = "a" * 64, "b" * 64


def test_the_measurement_has_the_digest_of_the_document() -> None:
    assert FAST.parse(output(body_sha256=PAGE)).body_sha256 == PAGE
    assert FAST.parse(output(body_sha256=None)).body_sha256 is None
    assert FAST.parse(output()).body_sha256 is None  # as in older documents


def tally(digest: str | None, successes: int, failures: int = 0) -> Tally:
    total = Tally(body_sha256=digest)
    for at_ns in range(successes + failures):
        total.begin_request(at_ns)
        total.add_response(
            start_ns=at_ns,
            first_byte_ns=at_ns,
            end_ns=at_ns + 1,
            cause=None if at_ns < successes else "body",
        )
    return total


@pytest.mark.parametrize(
    ("other", "digest", "failed"),
    [
        (tally(PAGE, 3), PAGE, 0),
        (tally(None, 0), PAGE, 0),
        (tally(OTHER, 3, 1), None, 4),
        (tally(PAGE, 3, 1), None, 1),
    ],
    ids=["same body", "no body", "another body", "one body differs"],
)
def test_all_processes_must_receive_the_same_body(
    other: Tally, digest: str | None, failed: int
) -> None:
    total = tally(PAGE, 2)
    total.add(other)
    printed = document("fast", parsed_options(requests=6), total)
    assert (printed.body_sha256, printed.errors) == (digest, {"body": failed} if failed else {})
