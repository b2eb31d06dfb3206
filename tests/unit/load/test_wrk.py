from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workerlab.errors import ParseError, UsageError
from workerlab.load import wrk
from workerlab.model.evidence import Output
from workerlab.model.plan import Load

URL = "http://127.0.0.1:8000/"

FIELDS: dict[str, float | None] = {
    "asked_s": 2, "duration_us": 2006409, "requests": 156, "bytes": 23166,
    "connect": 0, "read": 0, "write": 0, "status": 0, "timeout": 0,
    "min_us": 50399, "max_us": 51825, "mean_us": 50930.5, "stdev_us": 261.97,
    "p50_us": 50900, "p90_us": 51300, "p95_us": 51500, "p99_us": 51743,
}  # fmt: skip
LATENCY = "Latency    50.93ms  261.97us  51.83ms   70.51%"
TEXT = f"""\
Running 2s test @ http://127.0.0.1:8000/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    {LATENCY}
    Req/Sec    78.00      8.94    80.00     95.00%
  156 requests in 2.01s, 22.62KB read
Requests/sec:     77.75
Transfer/sec:     11.28KB
"""


def report(text: str = TEXT, /, **changes: float | None) -> Output:
    return Output(f"{text}{wrk.MARKER}{json.dumps(FIELDS | changes)}\n")


def load(**changes: object) -> Load:
    plain = Load(concurrency=4, requests=21, duration_s=4.2, deadline_s=30.2)
    return replace(plain, **changes)  # type: ignore[arg-type]


def script(**changes: object) -> str:
    return wrk.WRK.command(load(**changes), URL, "/run/x").files[wrk.SCRIPT]


# --- the command --------------------------------------------------------------------------


def test_the_command_rounds_times_up_to_whole_seconds() -> None:
    assert wrk.WRK.command(load(), URL, "/run/x").argv == (
        *("wrk", "-t", "1", "-c", "4", "-d", "5s", "--timeout", "31s"),
        *("-s", "/run/x/report.lua", URL),
    )


def test_an_even_number_of_more_than_64_connections_gets_a_second_thread() -> None:
    for concurrency in range(1, 20_001):
        is_divided = concurrency > 64 and concurrency % 2 == 0
        assert wrk.threads_for(concurrency) == (2 if is_divided else 1)


def test_the_script_closes_each_connection_unless_it_is_kept() -> None:
    for headers in ((), (("connection", "x"),)):
        assert 'wrk.headers["Connection"] = "close"' in script(headers=headers)
        assert "onnection" not in script(keepalive=True, headers=headers)
    assert "function request" not in script()
    assert "function response" not in script()


def test_the_script_carries_method_headers_and_body() -> None:
    """A custom content type is kept."""
    text = script(method="POST", headers=(("host", "a"), ("X", 'q"\\')), body_file="/b é")
    assert 'wrk.method = "POST"' in text
    assert 'wrk.headers["Host"] = "a"' in text
    assert 'wrk.headers["X"] = "q\\034\\092"' in text
    assert 'wrk.headers["Content-Type"] = "application/octet-stream"' in text
    assert 'io.open("/b \\195\\169", "rb")' in text
    custom = script(method="POST", headers=(("content-type", "a/b"),), body_file="/b")
    assert "octet-stream" not in custom


def test_a_repeated_header_is_rejected() -> None:
    with pytest.raises(UsageError, match="x-a"):
        wrk.WRK.check(load(headers=(("X-A", "1"), ("x-a", "2"))))
    wrk.WRK.check(load(headers=(("X-A", "1"), ("X-B", "2"))))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_lua_reads_a_quoted_string_as_the_original(text: str) -> None:
    """Backslashes, quotes and bytes outside ASCII are escaped by number."""
    literal = re.fullmatch(r'"((?:[ -!#-\[\]-~]|\\[0-9]{3})*)"', wrk._lua(text))
    numbers = re.sub(r"\\([0-9]{3})", lambda match: chr(int(match[1])), literal[1])
    assert numbers.encode("latin-1") == text.encode()


# --- the report ---------------------------------------------------------------------------


def test_the_figures_are_those_of_the_script() -> None:
    measurement = wrk.WRK.parse(report())
    assert (measurement.requests, measurement.failed, measurement.errors) == (156, 0, {})
    assert measurement.duration_s == pytest.approx(2.006409)
    assert measurement.rps == pytest.approx(156 / 2.006409)
    assert measurement.response.mean == pytest.approx(0.0509305)
    assert measurement.response.max == pytest.approx(0.051825)
    assert measurement.connect.mean is None
    assert measurement.lone_s is None
    assert not measurement.exact_mean


@pytest.mark.parametrize(
    ("lines", "errors", "failed"),
    [
        ("  Non-2xx or 3xx responses: 7", {"non_2xx": 7}, 7),
        (
            "  Socket errors: connect 1, read 2, write 3, timeout 4",
            {"connect": 1, "read": 2, "write": 3, "timeout": 4},
            10,
        ),
        (
            "  Socket errors: connect 0, read 0, write 0, timeout 156\n"
            "  Non-2xx or 3xx responses: 156",
            {"timeout": 156, "non_2xx": 156},
            156,
        ),
    ],
)
def test_failures_by_cause(lines: str, errors: dict[str, int], failed: int) -> None:
    text = TEXT.replace("Requests/sec", f"{lines}\nRequests/sec")
    changes = {"status" if name == "non_2xx" else name: n for name, n in errors.items()}
    measurement = wrk.WRK.parse(report(text, **changes))
    assert (measurement.errors, measurement.failed) == (errors, failed)


def test_without_samples_there_is_no_latency() -> None:
    text = TEXT.replace(LATENCY, "Latency     0.00us    0.00us   0.00us    -nan%")
    measurement = wrk.WRK.parse(report(text, mean_us=None, max_us=0, p50_us=0))
    assert measurement.response.mean is None
    assert measurement.response.max is None


@pytest.mark.parametrize(
    ("latency", "changes"),
    [
        ("Latency   890.00us  261.97us   0.99ms   70.51%", {"mean_us": 890, "max_us": 990}),
        ("Latency     1.20s   261.97us   1.02m    70.51%", {"mean_us": 1.2e6, "max_us": 61.2e6}),
        ("Latency     1.50m     0.91h    1.10h    70.51%", {"mean_us": 90e6, "max_us": 3960e6}),
    ],
)
def test_times_in_every_unit_that_wrk_may_print(latency: str, changes: dict[str, float]) -> None:
    assert wrk.WRK.parse(report(TEXT.replace(LATENCY, latency), **changes)).requests == 156


def test_counts_and_bytes_in_large_units() -> None:
    text = TEXT.replace("78.00      8.94    80.00", "78.12k     1.94M   80.00G")
    text = text.replace("22.62KB", "1.50GB").replace("11.28KB", "765.55MB")
    assert wrk.WRK.parse(report(text, bytes=1.5 * 2**30)).requests == 156


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  156 requests", "  155 requests"),
        ("in 2.01s", "in 1.91s"),
        ("in 2.01s", "in 2.01x"),
        ("22.62KB read", "23.62KB read"),
        ("77.75", "70.75"),
        ("11.28KB", "11.28"),
        ("50.93ms", "40.93ms"),
        ("51.83ms", "51.83s"),
        ("78.00 ", "78.00q"),
        ("    Req/Sec    78.00      8.94    80.00     95.00%\n", ""),
    ],
)
def test_text_that_disagrees_is_rejected(old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ParseError):
        wrk.WRK.parse(report(TEXT.replace(old, new)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"duration_us": 1_200_000}, "interrupted"),
        ({"duration_us": 0, "asked_s": 0}, "interrupted"),
        ({"requests": 0}, "no complete response"),
        ({"requests": None}, "requests"),
        ({"requests": 1.5}, "requests"),
        ({"read": 3}, "Socket errors"),
        ({"status": 3}, "Non-2xx"),
        ({"max_us": 1e30}, "max_us"),
        ({"max_us": float("nan")}, "cannot be read"),
    ],
)
def test_inconsistent_figures_are_rejected(changes: dict[str, float | None], why: str) -> None:
    with pytest.raises(ParseError, match=why):
        wrk.WRK.parse(report(**changes))


def test_an_error_of_the_script_is_the_reason() -> None:
    with pytest.raises(ParseError, match=r"report\.lua:5: no such file"):
        wrk.WRK.parse(Output(TEXT, stderr="report.lua:5: no such file\n"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FIELDS]), inner),
    max_leaves=8,
)


@given(JSON)
def test_an_odd_line_of_the_script_raises_parse_error(document: object) -> None:
    with pytest.raises(ParseError):
        wrk.WRK.parse(Output(f"{TEXT}{wrk.MARKER}{json.dumps(document)}\n"))


@given(st.sampled_from([*FIELDS]), st.none() | st.integers() | st.floats() | st.just(10**400))
def test_an_odd_figure_is_rejected_or_changes_no_count(name: str, value: float | None) -> None:
    try:
        measurement = wrk.WRK.parse(report(**{name: value}))
    except ParseError:
        return
    expected = wrk.WRK.parse(report())
    assert (measurement.requests, measurement.failed) == (expected.requests, expected.failed)


def test_recordings_are_of_the_current_script() -> None:
    """The script's line in each recorded report has the fields that the script writes now."""
    data = Path(__file__).parents[2] / "data" / "wrk"
    lines = [
        line.removeprefix(wrk.MARKER)
        for path in data.glob("*.stdout")
        for line in path.read_text().splitlines()
        if line.startswith(wrk.MARKER)
    ]
    assert len(lines) >= 8
    assert all(json.loads(line).keys() == FIELDS.keys() for line in lines)
    assert all(f'"{name}"' in script() for name in FIELDS if name != "asked_s")
