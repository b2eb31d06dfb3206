"""Generators built on an HTTP library, and Locust, against real servers: their counts match the
server's, and each fault is named.

Starting a generator costs more than its load, so each test checks several properties.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
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
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import http
from tests.builders.null import serving as serve_null
from tests.builders.processes import Process, default_signals, running
from tests.integration.conftest import LONG_S, until
from workerlab.errors import ParseError
from workerlab.experiments.reading import null_counts
from workerlab.load.registry import TOOLS
from workerlab.model.evidence import Measurement, Output
from workerlab.model.plan import Load, NullServer
from workerlab.numbers.schedule import schedule
from workerlab.server.null.server import TEXT
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
    """Looks packages up without importing them: Locust patches the standard library."""
    package = PACKAGES[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{request.param} needs {package}")
    return str(request.param)


def generators(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names, indirect=True)


def a_load(**changes: object) -> Load:
    return replace(Load(concurrency=4, requests=41, duration_s=1.0, deadline_s=LONG_S), **changes)


def start(name: str, load: Load, url: str, place: Path, files: int = 0) -> subprocess.Popen[str]:
    """`files`: the limit of open files; 0: unchanged."""

    def prepare() -> None:
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
        preexec_fn=prepare,
    )


def run(name: str, load: Load, url: str, place: Path, files: int = 0) -> Measurement:
    process = start(name, load, url, place, files)
    out, err = process.communicate(timeout=2 * LONG_S)
    names = [file for file in TOOLS[name].OUTPUT_FILES if (place / file).exists()]
    files_written = {file: (place / file).read_text() for file in names}
    return TOOLS[name].parse(Output(out, err, process.returncode, files_written))


def run_on_null(name: str, load: Load, place: Path, null: NullServer) -> tuple[Measurement, Any]:
    """The measurement and the counts of the server."""
    with serve_null(place, null) as server:
        measurement = run(name, load, server.url, place / "tool")
    return measurement, null_counts(place)


@generators("locust")
def test_the_stored_version_is_the_one_that_locust_prints(name: str) -> None:
    """The lab reads it from the package: running Locust takes as long as a short load."""
    argv = (sys.executable, "-I", "-m", "locust", "--version")
    output = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    assert tool_version(TOOLS[name].VERSION_ARGV) == output.splitlines()[0].strip()


# --- counts -------------------------------------------------------------------------------


def test_counts_match_those_of_the_server(name: str, tmp_path: Path) -> None:
    """Delayed responses, each on a new connection."""
    null = NullServer(body_bytes=300_000, delay_s=(0.05, 0.1))
    measured, served = run_on_null(name, a_load(same_body=True), tmp_path, null)
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


def test_timed_loads_reuse_connections(name: str, tmp_path: Path) -> None:
    """Requests with a body and headers, from several processes if possible; the responses are
    empty."""
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
        time.sleep(0.1)  # a few requests suffice
        return 200, b""

    for duration_s in (1.0, 4.0, 16.0):  # on a busy machine a process may start late
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
    # Fast users may leave no requests for the others
    assert 1 <= len(connections) <= 4
    assert measured.connections in (None, len(connections))
    assert measured.body_sha256 == (None if name in COUNTING else hashlib.sha256(b"").hexdigest())


@generators(*COUNTING)
def test_a_connection_closed_by_the_server_is_replaced(name: str, tmp_path: Path) -> None:
    with one_request_per_connection(lambda: OK) as url:
        measured = run(name, a_load(keepalive=True), url, tmp_path / "tool")
    assert (measured.requests, measured.errors, measured.connections) == (41, {}, 41)


# --- faults -------------------------------------------------------------------------------


def test_each_fault_is_named(name: str, tmp_path: Path) -> None:
    """Each fault several times in turn; then the server stops responding."""
    # Its client repeats a request without a response up to 12 times, unseen by the generator
    repeats_requests = name == "locust-fast"
    faults = [fault for fault in FAULTS for _ in range(60 if repeats_requests else 8)]
    expected = {**Counter(FAULTS[fault] for fault in faults), "timeout": 4}
    load = a_load(keepalive=True, requests=len(faults) + 4)
    for end_s in (6.0, 12.0, 48.0):  # on a busy machine the load may end before the last fault
        fault_times_s = list[float]()
        timed = replace(load, duration_s=end_s - 2, deadline_s=end_s)
        start_s = time.monotonic()
        with one_request_per_connection(partial(next_fault, faults, fault_times_s)) as url:
            measured = run(name, timed, url, tmp_path / f"tool-{end_s}")
        if len(fault_times_s) == len(faults) and fault_times_s[-1] < start_s + end_s - MAX_PAUSE_S:
            break
    assert len(fault_times_s) == len(faults)
    assert measured.errors.keys() == expected.keys()
    assert measured.failed == measured.sent == sum(measured.errors.values())
    if not repeats_requests:
        assert measured.errors == expected
    assert measured.requests == measured.errors["non_2xx"]
    assert measured.rps == 0


MAX_PAUSE_S = 3.0  # of the machine, between a response and its reader


def next_fault(faults: list[bytes], fault_times_s: list[float]) -> bytes | None:
    """Appends the time of this fault to `fault_times_s`."""
    if len(fault_times_s) == len(faults):
        return None
    fault_times_s.append(time.monotonic())
    return faults[len(fault_times_s) - 1]


def test_a_port_without_a_listener_refuses_connections(name: str, tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/"
        measured = run(name, a_load(duration_s=0.2), url, tmp_path / "tool")
    assert set(measured.errors) == {"refused"}
    assert measured.failed == measured.sent


@generators("threads", "coroutines")
def test_the_limit_of_open_files_is_an_error(name: str, tmp_path: Path) -> None:
    load = a_load(concurrency=100, requests=200, keepalive=True)
    with serve_null(tmp_path, NullServer(delay_s=(0.2, 0.3))) as server:
        measured = run(name, load, server.url, tmp_path / "tool", files=60)
    assert measured.errors["no_files"] > 0
    assert measured.requests + measured.failed == measured.sent == 200


def test_a_different_body_or_status_is_a_failure(name: str, tmp_path: Path) -> None:
    """All on one connection. Bodies are compared with the first one, except those of responses
    with an unexpected status."""
    for duration_s in (1.0, 4.0, 16.0):  # a pause of the machine may leave few requests
        failures = itertools.cycle([(201, b"b"), (200, b"a"), (200, b"b")])
        order = itertools.chain([(201, b"a")], failures)
        responses = list[tuple[int, bytes]]()
        load = a_load(keepalive=True, same_body=True, expect_status=201, concurrency=1)
        timed = replace(load, duration_s=duration_s)
        with serving(partial(next_response, order, responses), keepalive=True) as url:
            measured = run(name, timed, url, tmp_path / f"tool-{duration_s}")
        if len(responses) > 4:
            break
    assert measured.requests == measured.sent == len(responses) > 4
    unexpected = sum(status == 200 for status, _ in responses)
    assert measured.errors == {"status": unexpected, "body": responses.count((201, b"b"))}
    assert measured.body_sha256 is None
    assert measured.connections in (None, 1)


def next_response(
    order: Iterator[tuple[int, bytes]], responses: list[tuple[int, bytes]], _: object
) -> tuple[int, bytes]:
    """Appends this response to `responses`."""
    responses.append(next(order))
    time.sleep(0.01)
    return responses[-1]


# --- termination --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@generators(*FORKING)
def test_no_process_outlives_a_generator(name: str, number: signal.Signals, tmp_path: Path) -> None:
    def remaining() -> list[Process]:
        processes = running(f"X-Place: {tmp_path}")
        return [process for process in processes if "null-server" not in str(process.words)]

    load = a_load(headers=(("X-Place", str(tmp_path)),))
    with serve_null(tmp_path, NullServer(fault="stall")) as server:
        process = start(name, load, server.url, tmp_path / "tool")
        until(lambda: len(remaining()) > {"processes": 4}.get(name, 1), "its processes run")
        os.kill(process.pid, number)
        process.communicate(timeout=LONG_S)
        assert process.returncode != 0
        until(lambda: not remaining(), "none of its processes is left")


# --- small servers ------------------------------------------------------------------------


@contextmanager
def serving(
    answer: Callable[[http.Handler], tuple[int, bytes]], keepalive: bool = False
) -> Iterator[str]:
    """A server that responds with the status and body that `answer` returns."""

    class Handler(http.Handler):
        wbufsize = -1  # sends head and body together

        def answer(self) -> None:
            self.respond(*answer(self), **({} if keepalive else {"Connection": "close"}))

    with http.serving(Handler) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


# --- rates --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "processes"), [("locust", 1), ("locust-fast", 2)], indirect=["name"]
)
def test_locust_sends_no_request_early(name: str, processes: int, tmp_path: Path) -> None:
    """The k-th request arrives after the k-th due time, whichever process sends it. The reported
    lag is at most the measured one."""
    arrived = list[int]()

    def answer(handler: http.Handler) -> tuple[int, bytes]:
        arrived.append(time.monotonic_ns())
        time.sleep(0.05)
        return 200, b""

    poisson = {"rate_rps": 40.0, "arrivals": "poisson", "schedule": 30_001, "duration_s": 2.0}
    load = a_load(concurrency=40, processes=processes, **poisson)
    for number in range(5):  # during a pause of the machine nothing is sent
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
    lags_ns = [
        at - measured.origin_ns - due_ns for at, due_ns in zip(sorted(arrived), due, strict=False)
    ]
    assert min(lags_ns) >= 0
    assert measured.lag.mean <= fmean(lags_ns) / 1e9
    assert measured.response.p50 >= 0.05 * 0.99


@generators("locust-fast")  # the other client has the same users
def test_waiting_for_a_locust_user_counts_as_response_time(name: str, tmp_path: Path) -> None:
    """Two users and 0.1 s per response allow 20 of 60 requests/s."""
    load = a_load(concurrency=2, rate_rps=60.0, duration_s=2.0)
    for number in range(5):  # a pause of the machine leaves fewer requests
        place = tmp_path / str(number)
        place.mkdir()
        measured, served = run_on_null(name, load, place, NullServer(delay_s=(0.1, 0.1)))
        if served.requests > 20:
            break
    assert served.requests > 20
    assert measured.sent + (measured.unsent or 0) == 120
    assert measured.sent == measured.requests == served.requests
    assert measured.sent <= 2 * 2.0 / 0.1 + 2
    # Before the last request was sent, each user had waited for all its earlier ones
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
def one_request_per_connection(answer: Callable[[], bytes | None]) -> Iterator[str]:
    """A server that sends what `answer` returns and closes the connection, without announcing it;
    RESET: resets it. None: neither responds nor closes."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stopping = threading.Event()

        def serve() -> None:
            while True:
                client, _ = listening.accept()
                if stopping.is_set():
                    client.close()
                    return
                if not _read_head(client):
                    client.close()
                elif (data := answer()) is None:
                    stack.callback(client.close)
                else:
                    _send_and_close(client, data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            stopping.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join()


def _read_head(client: socket.socket) -> bool:
    """Reads the whole head, or closing would reset the connection. False: the client has closed
    it."""
    head = b""
    with suppress(OSError):
        while not head.endswith(b"\r\n\r\n") and (data := client.recv(65536)):
            head += data
    return head.endswith(b"\r\n\r\n")


def _send_and_close(client: socket.socket, data: bytes) -> None:
    with client:
        if data == RESET:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with suppress(OSError):
                client.sendall(data)
