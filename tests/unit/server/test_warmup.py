"""What is said of a first answer that was not expected: a real server's, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.model import App, Server
from harness.server.gunicorn import running
from harness.server.running import Faulty
from harness.server.warmup import SHOWN_LETTERS, first_lines
from tests.builders.launch import launch

REFUSES = """
def app(environ, start_response):
    body = (b"<!doctype html><html><head><title>400</title><style>h1 {color: red}</style></head>"
            b"<body><h1>Bad Request (400)</h1><p>You may need to add &#x27;x&#x27;</p></body>")
    start_response("400 Bad Request", [("Content-Length", str(len(body)))])
    return [body]
"""


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"", ""),
        (b"plain\r\n\r\n  text  here ", "plain / text here"),
        (b"<h1>Not &lt;here&gt;</h1><script>evil()</script>", "Not <here>"),
        (b"1\n2\n3\n4\n", "1 / 2 / 3"),
        (b"\xff\x00", "\N{REPLACEMENT CHARACTER}\x00"),
    ],
)
def test_the_first_lines_of_a_body_as_text(body: bytes, lines: str) -> None:
    assert first_lines(body) == lines


def test_a_flood_is_cut() -> None:
    assert len(first_lines(b"x" * 10**6)) == SHOWN_LETTERS


@pytest.mark.parametrize("headers", [(), (("Host", "shop.example"),)])
def test_a_400_shows_its_body_and_where_to_look(
    tmp_path: Path, headers: tuple[tuple[str, str], ...]
) -> None:
    (tmp_path / "own.py").write_text(REFUSES)
    app = App("own:app", str(tmp_path), headers=headers)
    with (
        pytest.raises(Faulty) as found,
        running(launch(tmp_path, Server("sync", 1, 1, 64, 10), app)),
    ):
        pass
    assert found.value.fault.kind == "answer"
    reason = found.value.fault.reason
    assert "answered 400, expected 200: Bad Request (400) / You may need to add 'x' (" in reason
    assert "Host header" in reason
    assert "ALLOWED_HOSTS" in reason
    assert (headers[0][1] if headers else "127.0.0.1") in reason
