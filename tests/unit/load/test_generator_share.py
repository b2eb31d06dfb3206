"""What the units of a load have in common, and what they say of their failures."""

from __future__ import annotations

import errno
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from workerlab.load.generators import share
from workerlab.load.generators.document import CAUSES, Tally, cause_of_errno
from workerlab.load.generators.request import header_lines
from workerlab.load.generators.words import Words

URL = "http://127.0.0.1:1/"


def words(**changes: object) -> Words:
    return Words(**{"urls": (URL,), "concurrency": 4, "requests": 3, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("of", [share.Share, share.of_processes])
def test_as_many_requests_as_asked_for(of: object) -> None:
    one = of(words())  # type: ignore[operator]
    one.begin()
    assert [one.take() for _ in range(5)] == [True, True, True, False, False]


def test_no_more_requests_when_the_time_is_over() -> None:
    one = share.Share(words(requests=None, duration_s=3600.0))
    one.begin()
    assert one.take()
    over = share.Share(words(requests=None, duration_s=1e-9))
    over.begin()
    assert not over.take()


def test_processes_that_stood_still_with_their_parent_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When all go on, its time is over, and none of them has had a moment to say what it saw."""
    result, child = Pipe(duplex=False)
    waits = list[float]()

    def wait(waiting: list[Connection], for_s: float) -> list[Connection]:
        waits.append(for_s)
        if len(waits) == 1:
            return []
        child.send(Tally(sent=7))
        return waiting

    monkeypatch.setattr(share, "wait", wait)
    of = share.of_processes(words())
    assert share._collect(of, [result]).sent == 7
    assert len(waits) == 2


def test_the_ramp_is_dealt_evenly() -> None:
    one = share.Share(words(ramp_s=2.0))
    assert [one.wait_s(unit) for unit in range(4)] == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize("of", [share.Share, share.of_processes])
def test_the_first_body_is_the_measure(of: object) -> None:
    one = of(words(same_body=True))  # type: ignore[operator]
    assert one.judge(500, b"another") == "non_2xx"  # and is not the first one
    assert one.judge(200, b"") is None
    assert [one.judge(200, body) for body in (b"", b"x", b"")] == [None, "body", None]


def test_without_being_asked_bodies_may_differ() -> None:
    one = share.Share(words())
    assert [one.judge(200, body) for body in (b"a", b"b")] == [None, None]


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ECONNREFUSED, "refused"),
        (errno.ECONNRESET, "reset"),
        (errno.EADDRNOTAVAIL, "no_address"),
        (errno.EMFILE, "no_files"),
        (errno.ENETUNREACH, "connect"),
        (None, "connect"),
    ],
)
def test_system_errors_have_names(number: int | None, cause: str) -> None:
    assert cause_of_errno(number) == cause


def test_what_frames_the_message_is_not_the_users_to_say() -> None:
    given = (("Connection", "upgrade"), ("user-agent", "me"), ("X", "1"), ("X", "2"))
    lines = header_lines(words(headers=given, body=b"b"))
    assert lines == [
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Content-Type", "application/octet-stream"),
        ("user-agent", "me"),
        ("X", "1"),
        ("X", "2"),
        ("Connection", "close"),
    ]
    assert ("Connection", "close") not in header_lines(words(keepalive=True))


def test_the_locustfile_names_failures_like_the_others() -> None:
    """It cannot import them: it runs on hosts that have nothing but Locust."""
    source = (Path(share.__file__).parent / "locustfile.py").read_text()
    assert "harness" not in source.replace("harness's", "")
    for number, cause in CAUSES.items():
        if cause not in ("no_address", "no_files"):
            assert f'errno.{errno.errorcode[number]}: "{cause}"' in source
