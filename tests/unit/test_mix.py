"""Mix files: their syntax and their errors."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workerlab.errors import UsageError
from workerlab.mix import RequestOptions, mix_of, requested_mix
from workerlab.model.plan import Route

FILE = r"""
# what the shop's users ask for

60   GET  /
25   get  /post/17?from=feed   name='a post'   # of the feed
10.5 POST /api body=c.json header='Content-Type: text/x' header="X-Y: it's \"#1\"" expect=201,409
5    HEAD /missing             expect=404 # don't ask
"""


def write_mix(directory: Path, text: str) -> Path:
    path = directory / "shop.mix"
    path.write_text(text)
    return path


def test_a_handwritten_file_is_read(tmp_path: Path) -> None:
    body = tmp_path / "c.json"
    body.write_text("{}")
    headers = (("Content-Type", "text/x"), ("X-Y", 'it\'s "#1"'))
    assert mix_of(write_mix(tmp_path, FILE)) == (
        Route("/", "GET", 60.0),
        Route("/post/17?from=feed", "GET", 25.0, name="a post"),
        Route("/api", "POST", 10.5, headers, str(body), expect=(201, 409)),
        Route("/missing", "HEAD", 5.0, expect=(404,)),
    )


def test_a_file_from_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.mix"
    path.write_bytes("\ufeff1 GET /\r\n2 GET /b\r\n".encode())
    assert [route.path for route in mix_of(path)] == ["/", "/b"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("GET /", "'GET /' is not a weight, method and path"),
        ("many GET /", "'many' is not a weight"),
        ("0 GET /", "the weight must be a finite number greater than 0, not 0"),
        ("-1 GET /", "the weight must be a finite number greater than 0, not -1"),
        ("nan GET /", "the weight must be a finite number greater than 0, not nan"),
        ("inf GET /", "the weight must be a finite number greater than 0, not inf"),
        ("1 G3T /", "'G3T' is not an HTTP method"),
        ("1 GET http://shop/", "'http://shop/' is not a path"),
        ("1 GET cart", "'cart' is not a path"),
        ("1 GET /caf\u00e9", "is not a path"),
        ("1 GET / expect=2xx", "'2xx' is not a whole number"),
        ("1 GET / expect=99", "99 is not an HTTP status"),
        ("1 GET / expect=", "'' has an empty entry"),
        ("1 GET / expect=200 expect=201", "duplicate expect="),
        ("1 GET / header=Accept", "'Accept' is not a valid header"),
        ("1 GET / header=Accept: text/html", "'text/html' is not one of"),
        ("1 GET / body=none.json", "body=none.json is not a file"),
        ("1 GET / name=''", "name must be printable text, not ''"),
        ("1 GET / colour=red", "'colour=red' is not one of header=, body=, expect=, name="),
        ("1 GET / twice", "'twice' is not one of header=, body=, expect=, name="),
        ("1 GET / name='a post", "unclosed quote or trailing backslash: 'a post"),
        ("1 GET /\\", "unclosed quote or trailing backslash"),
    ],
)
def test_an_invalid_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = write_mix(tmp_path, f"# first\n1 GET /\n\n{line}\n")
    message = rf"\A{re.escape(f'{path}, line 4: ')}.*{re.escape(why)}.*\Z"
    with pytest.raises(UsageError, match=message):  # `.` matches no line break
        mix_of(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "has no request"),
        (b"# nothing\n\n", "has no request"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"1 GET /\n" * 1001, "has 1001 requests: a mix has at most 1000"),
    ],
    ids=["empty", "comments", "no text", "too many requests"],
)
def test_an_invalid_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "shop.mix"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=why):
        mix_of(path)
    with pytest.raises(UsageError, match="cannot be read"):
        mix_of(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_text_is_a_mix_or_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.mix"
    path.write_text(text, encoding="utf-8", errors="replace")
    message = ""
    try:
        routes = mix_of(path)
    except UsageError as error:
        message = str(error)
    assert message.startswith(str(path)) if message else all(route.weight > 0 for route in routes)


PRINTED = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(1e-3, 1e9), PRINTED.map(lambda text: f"/{text}"), PRINTED, PRINTED)
def test_quoted_values_round_trip(
    tmp_path: Path, weight: float, path: str, value: str, name: str
) -> None:
    fields = ["PUT", path, f"header=X-Any: {value}", f"name={name}"]
    line = " ".join([repr(weight), *map(shlex.quote, fields)])
    assert mix_of(write_mix(tmp_path, line)) == (
        Route(path, "PUT", weight, (("X-Any", value),), name=name),
    )


def test_options_of_a_single_request_make_no_mix() -> None:
    assert requested_mix(RequestOptions(path="/", header=[("A", "b")])) == ((), ())


def test_headers_are_added_to_requests_without_that_header(tmp_path: Path) -> None:
    path = write_mix(tmp_path, "1 GET /\n1 GET /b header='accept: text/html'\n")
    headers = [("Accept", "*/*"), ("Cookie", "a=b")]
    routes, notes = requested_mix(RequestOptions(mix=str(path), header=headers))
    assert notes == ()
    assert [route.headers for route in routes] == [
        (("Accept", "*/*"), ("Cookie", "a=b")),
        (("Cookie", "a=b"), ("accept", "text/html")),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": "a", "path": "/"}, "--mix and --path both define the requests"),
        ({"mix": "a", "access_log": "b"}, "--mix and --access-log both"),
        ({"access_log": "b", "method": "GET"}, "--access-log and --method both"),
        ({"mix": "a", "expect_status": 200}, "--mix and --expect-status both"),
        ({"mix": "a", "keep_queries": True}, "--keep-queries needs"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        requested_mix(RequestOptions(**options))
