"""Generators that leave HTTP to a library, and Locust, against real servers: what they count is
what the server saw, and whatever it does to them has a name and an end.

To start one costs more than what it sends: each test asks for several things at once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders import http
from tests.builders.null import serving as serving_null
from tests.builders.processes import default_signals, running
from tests.integration.conftest import LONG_S, until
from workerlab.errors import ParseError
from workerlab.load.registry import TOOLS
from workerlab.model.evidence import Measurement, Output
from workerlab.model.plan import Load, NullServer
from workerlab.numbers.schedule import schedule
from workerlab.server.null.server import TEXT
from workerlab.server.null_server import COUNTS
from workerlab.server.preflight import tool_version

PACKAGES = {
    **dict.fromkeys(("threads", "processes"), "requests"),
    **dict.fromkeys(("coroutines", "processes-coroutines"), "aiohttp"),
    **dict.fromkeys(("locust", "locust-fast"), "locust"),
}
COUNTING = ("threads", "processes", "coroutines", "processes-coroutines")
FORKING = ("processes", "processes-coroutines")


@pytest.fixture(params=PACKAGES)
def name(request: pytest.FixtureRequest) -> str:
    """Not imported: Locust would patch the standard library, here."""
    package = PACKAGES[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{request.param} needs {package}")
    return str(request.param)


def by_each(*names: str) -> pytest.MarkDecorator:
    """By these generators alone."""
    return pytest.mark.parametrize("name", names, indirect=True)


def a_load(**changes: object) -> Load:
    plain = Load(concurrency=4, requests=41, duration_s=1.0, deadline_s=LONG_S)
    return replace(plain, **changes)


def start(name: str, load: Load, url: str, place: Path, files: int = 0) -> subprocess.Popen[str]:
    """`files`: how many it may open; 0: as many as here."""

    def begin() -> None:
        default_signals()
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    tool = TOOLS[name]
    tool.check(load)
    command = tool.command(load, url, str(place))
    place.mkdir(exist_ok=True)
    for file, text in command.files.items():
        (place / file).write_text(text)
    return subprocess.Popen(
        command.argv,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=begin,
    )


def run(name: str, load: Load, url: str, place: Path, files: int = 0) -> Measurement:
    process = start(name, load, url, place, files)
    out, err = process.communicate(timeout=2 * LONG_S)
    wanted = TOOLS[name].OUTPUT_FILES
    files_written = {file: (place / file).read_text() for file in wanted if (place / file).exists()}
    return TOOLS[name].parse(Output(out, err, process.returncode, files_written))


@dataclass
class Served:
    """What the null server has counted, once it has ended."""

    requests: int
    connections: int


def against(name: str, load: Load, place: Path, what: NullServer) -> tuple[Measurement, Served]:
    with serving_null(place, what) as server:
        measured = run(name, load, server.url, place / "tool")
    report = json.loads((place / COUNTS).read_text())
    return measured, Served(report["requests"], report["connections"])


@by_each("locust")
def test_the_version_stored_is_what_locust_prints(name: str) -> None:
    """Though it is not asked: that takes as long as a short load."""
    argv = (sys.executable, "-I", "-m", "locust", "--version")
    printed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    assert tool_version(TOOLS[name].VERSION_ARGV) == printed.splitlines()[0].strip()


# --- what it counts -----------------------------------------------------------------------


def test_the_server_saw_what_is_counted(name: str, tmp_path: Path) -> None:
    """Answers that take their time, each on a connection of its own."""
    null = NullServer(body_bytes=300_000, delay_s=(0.05, 0.1))
    measured, served = against(name, a_load(same_body=True), tmp_path, null)
    assert (measured.failed, measured.errors) == (0, {})
    assert measured.requests == measured.sent == served.requests == served.connections
    assert measured.connections in (None, served.connections)
    if name in COUNTING:
        assert measured.requests == 41
    assert 0.05 * 0.99 <= measured.response.p50 <= measured.response.max <= measured.duration_s
    assert measured.rps <= 4 / 0.05
    assert 0 < measured.achieved_concurrency <= 4
    page = TEXT * (300_000 // len(TEXT))
    assert measured.body_sha256 == (None if name in COUNTING else hashlib.sha256(page).hexdigest())


def test_connections_are_kept_for_a_time(name: str, tmp_path: Path) -> None:
    """A time instead of a number; a request with a body and headers; what all processes saw is the
    same, and empty."""
    (tmp_path / "body").write_bytes(b"some \xff\x00 bytes")
    load = a_load(
        keepalive=True,
        timed=True,
        same_body=True,
        method="POST",
        body_file=str(tmp_path / "body"),
        headers=(("X-A", "b c"),),
        processes=2 if TOOLS[name].PROCESSES else 1,
    )
    requests: list[tuple[str, str | None, bytes]] = []
    connections = set()

    def answer(handler: http.Handler) -> tuple[int, bytes]:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        requests.append((handler.command, handler.headers["X-A"], body))
        connections.add(handler.client_address)
        time.sleep(0.1)  # there is nothing to learn from many
        return 200, b""

    for duration_s in (1.0, 4.0, 16.0):  # a busy machine may let a process begin at the end of it
        requests.clear()
        connections.clear()
        place = tmp_path / f"tool-{duration_s}"
        with serving(answer, keepalive=True) as url:
            try:
                measured = run(name, replace(load, duration_s=duration_s), url, place)
            except ParseError:
                assert not requests
                continue
        assert measured.errors == {}
        assert measured.requests == measured.sent == len(requests)
        if len(requests) > 4:
            break
    assert len(requests) > 4
    assert set(requests) == {("POST", "b c", b"some \xff\x00 bytes")}
    # Whoever is quick may leave nothing to send for the others
    assert 1 <= len(connections) <= 4
    assert measured.connections in (None, len(connections))
    assert measured.body_sha256 == (None if name in COUNTING else hashlib.sha256(b"").hexdigest())


@by_each(*COUNTING)
def test_a_kept_connection_that_was_closed_is_made_again(name: str, tmp_path: Path) -> None:
    with one_request_each(lambda: OK) as url:
        measured = run(name, a_load(keepalive=True), url, tmp_path / "tool")
    assert (measured.requests, measured.errors, measured.connections) == (41, {}, 41)


# --- what may go wrong --------------------------------------------------------------------


def test_every_fault_has_its_name(name: str, tmp_path: Path) -> None:
    """One after the other, each for a while; then nothing is answered any more."""
    asks_again = name == "locust-fast"  # its client, up to 12 times, unseen, where no byte comes
    faults = [fault for fault in FAULTS for _ in range(60 if asks_again else 8)]
    expected = {**Counter(FAULTS[fault] for fault in faults), "timeout": 4}
    load = a_load(keepalive=True, requests=len(faults) + 4)
    for end_s in (6.0, 12.0, 48.0):  # on a busy machine it may be over before each has been read
        given_s = list[float]()
        timed = replace(load, duration_s=end_s - 2, deadline_s=end_s)
        began_s = time.monotonic()
        with one_request_each(partial(next_fault, faults, given_s)) as url:
            measured = run(name, timed, url, tmp_path / f"tool-{end_s}")
        if len(given_s) == len(faults) and given_s[-1] - began_s < end_s - STILL_S:
            break
    assert len(given_s) == len(faults)
    assert measured.errors.keys() == expected.keys()
    assert measured.failed == measured.sent == sum(measured.errors.values())
    if not asks_again:
        assert measured.errors == expected
    assert measured.requests == measured.errors["non_2xx"]
    assert measured.rps == 0


STILL_S = 3.0  # that a machine may stand still between an answer and its reader


def next_fault(faults: list[bytes], given_s: list[float]) -> bytes | None:
    """`given_s`: when each was, also this one."""
    if len(given_s) == len(faults):
        return None
    given_s.append(time.monotonic())
    return faults[len(given_s) - 1]


def test_nobody_listens(name: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # and never listens
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/"
        measured = run(name, a_load(duration_s=0.2), url, tmp_path / "tool")
    assert set(measured.errors) == {"refused"}
    assert measured.failed == measured.sent


@by_each("threads", "coroutines")
def test_no_files_are_left(name: str, tmp_path: Path) -> None:
    load = a_load(concurrency=100, requests=200, keepalive=True)
    with serving_null(tmp_path, NullServer(delay_s=(0.2, 0.3))) as server:
        measured = run(name, load, server.url, tmp_path / "tool", files=60)
    assert measured.errors["no_files"] > 0
    assert measured.requests + measured.failed == measured.sent == 200


def test_another_body_and_another_status_are_failures(name: str, tmp_path: Path) -> None:
    """All on one connection. The first body is the measure; an answer with another status is
    compared with nothing."""
    for duration_s in (1.0, 4.0, 16.0):  # a machine that stands still leaves few requests
        order = itertools.chain(
            [(201, b"a")], itertools.cycle([(201, b"b"), (200, b"a"), (200, b"b")])
        )
        given = list[tuple[int, bytes]]()

        load = a_load(keepalive=True, same_body=True, expect_status=201, concurrency=1)
        timed = replace(load, duration_s=duration_s)
        with serving(partial(next_of, order, given), keepalive=True) as url:
            measured = run(name, timed, url, tmp_path / f"tool-{duration_s}")
        if len(given) > 4:
            break
    assert measured.requests == measured.sent == len(given) > 4
    of_status = sum(status == 200 for status, _ in given)
    assert measured.errors == {"status": of_status, "body": given.count((201, b"b"))}
    assert measured.body_sha256 is None
    assert measured.connections in (None, 1)


def next_of(
    order: Iterator[tuple[int, bytes]], given: list[tuple[int, bytes]], _: object
) -> tuple[int, bytes]:
    """`given`: all until now, also this one."""
    given.append(next(order))
    time.sleep(0.01)
    return given[-1]


# --- how it ends --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@by_each(*FORKING)
def test_nothing_outlives_it(name: str, number: signal.Signals, tmp_path: Path) -> None:
    load = a_load(headers=(("X-Place", str(tmp_path)),))
    with serving_null(tmp_path, NullServer(fault="stall")) as server:
        process = start(name, load, server.url, tmp_path / "tool")
        most = {"processes": 4}.get(name, 1)
        until(lambda: len(generators(tmp_path)) > most, "its processes are there")
        os.kill(process.pid, number)
        process.communicate(timeout=LONG_S)
        assert process.returncode != 0
        until(lambda: not generators(tmp_path), "no process of it is left")


def generators(place: Path) -> list[int]:
    processes_of_place = running(f"X-Place: {place}")
    return [
        process.pid
        for process in processes_of_place
        if not any("null-server" in word for word in process.words)
    ]


# --- small servers ------------------------------------------------------------------------


@contextmanager
def serving(
    answer: Callable[[http.Handler], tuple[int, bytes]],
    keepalive: bool = False,
) -> Iterator[str]:
    """A server whose answers are what `answer` returns: status and body."""

    class Answering(http.Handler):
        wbufsize = -1  # head and body leave together

        def answer(self) -> None:
            self.respond(*answer(self), **({} if keepalive else {"Connection": "close"}))

    with http.serving(Answering) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


# --- at a rate ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "processes"), [("locust", 1), ("locust-fast", 2)], indirect=["name"]
)
def test_locust_sends_what_is_due_and_not_before(name: str, processes: int, tmp_path: Path) -> None:
    """The k-th request comes after the k-th moment, whichever process sends it, and the lag says by
    how much at least."""
    arrived = list[int]()

    def answer(handler: http.Handler) -> tuple[int, bytes]:
        arrived.append(time.monotonic_ns())
        time.sleep(0.05)
        return 200, b""

    kept = {"rate_rps": 40.0, "arrivals": "poisson", "schedule": 30_001, "duration_s": 2.0}
    load = a_load(concurrency=40, processes=processes, **kept)
    for number in range(5):  # a machine that stands still all the time sends nothing
        arrived.clear()
        with serving(answer) as url:
            measured = run(name, load, url, tmp_path / f"tool-{number}")
        if arrived:
            break
    due = schedule("poisson", 40, 2, 30_001)
    assert measured.errors == {}
    assert (measured.sent or 0) + (measured.unsent or 0) == len(due)
    assert measured.sent == measured.requests == len(arrived)
    assert measured.origin_ns is not None
    later = [
        at - measured.origin_ns - due_ns for at, due_ns in zip(sorted(arrived), due, strict=False)
    ]
    assert min(later) >= 0
    assert measured.lag.mean <= sum(later) / len(later) / 1e9
    assert measured.response.p50 >= 0.05 * 0.99


@by_each("locust-fast")  # the other client has the same users
def test_what_no_user_of_locust_is_free_for_waits_and_is_timed_from_when_it_was_due(
    name: str, tmp_path: Path
) -> None:
    """Two users, 0.1 s an answer: 20 of 60 requests a second."""
    load = a_load(concurrency=2, rate_rps=60.0, duration_s=2.0)
    for number in range(5):  # a machine that stands still lets them send less
        place = tmp_path / str(number)
        place.mkdir()
        measured, served = against(name, load, place, NullServer(delay_s=(0.1, 0.1)))
        if served.requests > 20:
            break
    assert served.requests > 20
    assert measured.sent + (measured.unsent or 0) == 120
    assert measured.sent == measured.requests == served.requests
    assert measured.sent <= 2 * 2.0 / 0.1 + 2
    # Before the last that was sent, each user had waited for all others of its own
    last = measured.sent - 1
    assert measured.lag.max >= 0.99 * (last // 2 * 0.1 - last / 60) >= 0.6
    assert measured.response.max >= measured.lag.max
    assert [note.code for note in measured.notes] == ["RequestsNeverSent"]


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
RESET = b"a reset"
FAULTS = {
    b"": "closed",
    RESET: "reset",
    b"\x00\x01 nothing like HTTP \xff\r\n": "protocol",
    OK[:-1]: "truncated",
    b"HTTP/1.1 200 OK\r\nContent-Ty": "truncated",
    b"HTTP/1.1 500 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok": "non_2xx",
}


@contextmanager
def one_request_each(answer: Callable[[], bytes | None]) -> Iterator[str]:
    """A server that closes a connection after its first request and what `answer` returns, and does
    not say so before; RESET: by a reset. None: it never answers, nor closes."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        over = threading.Event()

        def serve() -> None:
            while True:
                client, _ = listening.accept()
                if over.is_set():
                    client.close()
                    return
                if not _read_head(client):
                    client.close()
                elif (data := answer()) is None:
                    stack.callback(client.close)
                else:
                    _end(client, data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            over.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join()


def _read_head(client: socket.socket) -> bool:
    """Whole, or closing would reset the connection; False where its client has gone."""
    head = b""
    with suppress(OSError):
        while not head.endswith(b"\r\n\r\n") and (data := client.recv(65536)):
            head += data
    return head.endswith(b"\r\n\r\n")


def _end(client: socket.socket, data: bytes) -> None:
    with client:
        if data == RESET:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with suppress(OSError):
                client.sendall(data)
