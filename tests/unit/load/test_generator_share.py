"""State shared by the units of a load, request headers, and causes of failures."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from workerlab.load.generators import share
from workerlab.load.generators.document import Tally
from workerlab.load.generators.format import CAUSE_BY_ERRNO, cause_of_errno
from workerlab.load.generators.options import LoadOptions
from workerlab.load.generators.request import header_lines

Create = Callable[[LoadOptions], share.SharedState]
OF_THREADS_OR_PROCESSES = pytest.mark.parametrize(
    "create", [share.SharedState, share.shared_by_processes]
)


def options(**changes: object) -> LoadOptions:
    usual = {"urls": ("http://127.0.0.1:1/",), "concurrency": 4, "requests": 3}
    return LoadOptions(**{**usual, **changes})  # type: ignore[arg-type]


@OF_THREADS_OR_PROCESSES
def test_only_the_requested_number_of_requests_can_be_claimed(create: Create) -> None:
    shared = create(options())
    shared.begin()
    assert [shared.claim() for _ in range(5)] == [True, True, True, False, False]


@pytest.mark.parametrize(("duration_s", "can_claim"), [(3600.0, True), (1e-9, False)])
def test_requests_can_be_claimed_until_the_duration_ends(
    duration_s: float, can_claim: bool
) -> None:
    shared = share.SharedState(options(requests=None, duration_s=duration_s))
    shared.begin()
    assert shared.claim() is can_claim


def test_processes_that_were_suspended_with_their_parent_can_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once they resume, the deadline has passed, but none has had the time to report."""
    result, child = Pipe(duplex=False)
    timeouts_s = list[float]()

    def wait(waiting: list[Connection], timeout_s: float) -> list[Connection]:
        timeouts_s.append(timeout_s)
        if len(timeouts_s) == 1:
            return []
        child.send(Tally(sent=7))
        return waiting

    monkeypatch.setattr(share, "wait", wait)
    shared = share.shared_by_processes(options())
    assert share._collect(shared, [result]).sent == 7
    assert len(timeouts_s) == 2


def test_the_ramp_starts_units_at_even_intervals() -> None:
    shared = share.SharedState(options(ramp_s=2.0))
    assert [shared.wait_s(unit) for unit in range(4)] == [0, 0.5, 1, 1.5]


@OF_THREADS_OR_PROCESSES
def test_bodies_are_compared_with_the_first_one(create: Create) -> None:
    shared = create(options(same_body=True))
    assert shared.failure_cause(500, b"another") == "non_2xx"  # does not count as the first body
    causes = [shared.failure_cause(200, body) for body in (b"", b"", b"x", b"")]
    assert causes == [None, None, "body", None]
    not_compared = create(options())
    assert [not_compared.failure_cause(200, body) for body in (b"a", b"b")] == [None, None]


def test_a_system_error_without_a_number_has_a_cause() -> None:
    assert cause_of_errno(None) == "connect"


def test_users_cannot_set_framing_headers() -> None:
    custom = (("user-agent", "me"), ("X", "1"), ("X", "2"))
    lines = header_lines(options(headers=(("Connection", "upgrade"), *custom), body=b"b"))
    assert lines == [
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Content-Type", "application/octet-stream"),
        *custom,
        ("Connection", "close"),
    ]
    assert ("Connection", "close") not in header_lines(options(keepalive=True))


def test_the_locustfile_uses_the_same_causes() -> None:
    """It cannot import them, as it runs on hosts with only Locust installed."""
    source = (Path(share.__file__).parent / "locustfile.py").read_text()
    assert not re.search(r"^\s*(from|import) workerlab", source, re.MULTILINE)
    for number, cause in CAUSE_BY_ERRNO.items():
        if cause not in ("no_address", "no_files"):
            assert f'errno.{errno.errorcode[number]}: "{cause}"' in source
