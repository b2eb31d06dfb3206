"""Generators that leave HTTP to a library, and Locust, against real servers: what they count is
what the server saw, and whatever it does to them has a name and an end."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.load.registry import TOOLS
from harness.model import Load, Measurement, NullServer, Output
from harness.server.null_server import COUNTS
from tests.builders.null import serving as serving_null
from tests.builders.processes import running
from tests.integration.conftest import LONG_S, until

PACKAGES = {
    **dict.fromkeys(("threads", "processes"), "requests"),
    **dict.fromkeys(("coroutines", "processes-coroutines"), "aiohttp"),
    **dict.fromkeys(("locust", "locust-fast"), "locust"),
}
COUNTING = ("threads", "processes", "coroutines", "processes-coroutines")
FORKING = ("processes", "processes-coroutines")
CAUSES = {
    "reset": "reset",
    "stall": "timeout",
    "garbage": "protocol",
    "half": "truncated",
    "status500": "non_2xx",
    "close": "closed",
}


@pytest.fixture(params=PACKAGES)
def name(request: pytest.FixtureRequest) -> str:
    return needing(request.param)


@pytest.fixture(params=COUNTING)
def counting(request: pytest.FixtureRequest) -> str:
    return needing(request.param)


@pytest.fixture(params=FORKING)
def forking(request: pytest.FixtureRequest) -> str:
    return needing(request.param)


@pytest.fixture(params=("fast", "locust", "locust-fast"))
def comparing(request: pytest.FixtureRequest) -> str:
    """Those that say what all bodies were."""
    return str(request.param) if request.param == "fast" else needing(request.param)


def needing(name: str) -> str:
    """Not imported: Locust would patch the standard library, here."""
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{name} needs {PACKAGES[name]}")
    return name


def a_load(**changes: object) -> Load:
    plain = Load(concurrency=4, requests=41, duration_s=1.0, deadline_s=LONG_S)
    return replace(plain, **changes)


def start(name: str, load: Load, url: str, place: Path, files: int = 0) -> subprocess.Popen[str]:
    """`files`: how many it may open; 0: as many as here."""
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
        preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
        if files
        else None,
    )


def run(name: str, load: Load, url: str, place: Path, files: int = 0) -> Measurement:
    process = start(name, load, url, place, files)
    out, err = process.communicate(timeout=2 * LONG_S)
    wanted = TOOLS[name].OUTPUT_FILES
    found = {file: (place / file).read_text() for file in wanted if (place / file).exists()}
    return TOOLS[name].parse(Output(out, err, process.returncode, found))


@dataclass
class Seen:
    """What the null server has counted, once it has ended."""

    requests: int
    connections: int


def against(name: str, load: Load, place: Path, what: NullServer) -> tuple[Measurement, Seen]:
    with serving_null(place, what) as server:
        said = run(name, load, server.url, place / "tool")
    report = json.loads((place / COUNTS).read_text())
    return said, Seen(report["requests"], report["connections"])


# --- what it counts -----------------------------------------------------------------------


@pytest.mark.parametrize("keepalive", [False, True])
def test_the_server_saw_what_is_counted(name: str, keepalive: bool, tmp_path: Path) -> None:
    said, seen = against(name, a_load(keepalive=keepalive), tmp_path, NullServer(body_bytes=5000))
    assert (said.failed, said.errors) == (0, {})
    assert said.requests == said.sent == seen.requests
    # Whoever is quick may leave nothing to send for the others
    assert 1 <= seen.connections <= 4 if keepalive else seen.connections == seen.requests
    assert said.connections in (None, seen.connections)
    if name in COUNTING:
        assert said.requests == 41
    assert said.response.max is not None
    assert 0 < said.response.max <= said.duration_s
    assert said.achieved_concurrency is not None
    assert 0 < said.achieved_concurrency <= 4


def test_a_time_instead_of_a_number(counting: str, tmp_path: Path) -> None:
    said, seen = against(counting, a_load(timed=True, keepalive=True), tmp_path, NullServer())
    assert said.requests == said.sent == seen.requests > 4
    assert said.errors == {}


def test_delays_are_felt(name: str, tmp_path: Path) -> None:
    said, _ = against(name, a_load(), tmp_path, NullServer(delay_s=(0.05, 0.1)))
    assert said.response.p50 is not None
    assert said.response.p50 >= 0.05 * 0.99
    assert said.rps is not None
    assert said.rps <= 4 / 0.05


@pytest.mark.parametrize("name", ["processes-coroutines", "locust", "locust-fast"])
def test_several_processes_share_the_connections(name: str, tmp_path: Path) -> None:
    load = a_load(keepalive=True, processes=2)
    said, seen = against(needing(name), load, tmp_path, NullServer())
    assert said.requests == said.sent == seen.requests
    assert 1 <= seen.connections <= 4


def test_a_request_with_a_body_and_headers(name: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"some \xff\x00 bytes")
    load = a_load(
        requests=5, method="POST", body_file=str(tmp_path / "body"), headers=(("X-A", "b c"),)
    )
    asked: list[tuple[str, str | None, bytes]] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> bytes:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        asked.append((handler.command, handler.headers["X-A"], body))
        return b"yes"

    with serving(answer) as url:
        said = run(name, load, url, tmp_path / "tool")
    assert said.errors == {}
    assert set(asked) == {("POST", "b c", b"some \xff\x00 bytes")}
    assert len(asked) == said.requests


# --- what may go wrong --------------------------------------------------------------------


@pytest.mark.parametrize("fault", CAUSES)
def test_every_fault_has_its_name(name: str, fault: str, tmp_path: Path) -> None:
    load = a_load(deadline_s=4.0 if fault == "stall" else LONG_S, keepalive=True)
    said, _ = against(name, load, tmp_path, NullServer(fault=fault))
    assert set(said.errors) == {CAUSES[fault]}
    assert said.failed == said.sent
    assert said.requests == (said.sent if fault == "status500" else 0)
    assert said.rps == 0
    if fault == "stall":
        assert said.sent == 4


def test_nobody_listens(name: str, tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))  # and never listens
        said = run(name, a_load(), f"http://127.0.0.1:{one.getsockname()[1]}/", tmp_path / "tool")
    assert set(said.errors) == {"refused"}
    assert said.failed == said.sent


@pytest.mark.parametrize("name", ["threads", "coroutines"])
def test_no_files_are_left(name: str, tmp_path: Path) -> None:
    load = a_load(concurrency=100, requests=200, keepalive=True)
    with serving_null(tmp_path, NullServer(delay_s=(0.2, 0.3))) as server:
        said = run(needing(name), load, server.url, tmp_path / "tool", files=60)
    assert said.errors["no_files"] > 0
    assert said.requests + said.failed == said.sent == 200


def test_another_body_is_a_failure(name: str, tmp_path: Path) -> None:
    number = itertools.count()
    with serving(lambda _: b"%d" % (next(number) > 0)) as url:
        said = run(name, a_load(same_body=True, concurrency=1), url, tmp_path / "tool")
    assert said.requests == said.sent > 1
    assert said.errors == {"body": said.requests - 1}


@pytest.mark.parametrize("size", [0, 10, 300_000], ids=["empty", "small", "large"])
def test_what_all_bodies_were_is_known(comparing: str, size: int, tmp_path: Path) -> None:
    page = bytes(range(250)) * (size // 250) + b"x" * (size % 250)
    with serving(lambda _: page) as url:
        said = run(comparing, a_load(same_body=True), url, tmp_path / "tool")
    assert (said.body_sha256, said.errors) == (hashlib.sha256(page).hexdigest(), {})


def test_bodies_that_differ_have_no_digest(comparing: str, tmp_path: Path) -> None:
    number = itertools.count()
    with serving(lambda _: b"%d" % (next(number) > 3)) as url:
        said = run(comparing, a_load(same_body=True), url, tmp_path / "tool")
    assert said.errors["body"] > 0
    assert said.body_sha256 is None


def test_processes_compare_what_they_saw(comparing: str, tmp_path: Path) -> None:
    """Each has a first body of its own, and theirs are the same."""
    load = a_load(same_body=True, processes=2, timed=True, duration_s=1.0)
    with serving(lambda _: b"a page") as url:
        said = run(comparing, load, url, tmp_path / "tool")
    assert (said.body_sha256, said.errors) == (hashlib.sha256(b"a page").hexdigest(), {})


def test_the_wrong_status_is_a_failure(name: str, tmp_path: Path) -> None:
    with serving(lambda _: b"") as url:
        said = run(name, a_load(expect_status=204), url, tmp_path / "tool")
    assert said.errors == {"status": said.requests}


def test_a_kept_connection_that_was_closed_is_made_again(counting: str, tmp_path: Path) -> None:
    with closing_after_each() as url:
        said = run(counting, a_load(keepalive=True), url, tmp_path / "tool")
    assert (said.requests, said.errors, said.connections) == (41, {}, 41)


def test_half_a_head_is_no_success(name: str, tmp_path: Path) -> None:
    with closing_after_each(b"HTTP/1.1 200 OK\r\nContent-Ty") as url:
        said = run(name, a_load(), url, tmp_path / "tool")
    assert said.errors == {"truncated": said.sent}


# --- how it ends --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_it(forking: str, number: signal.Signals, tmp_path: Path) -> None:
    load = a_load(headers=(("X-Place", str(tmp_path)),))
    with serving_null(tmp_path, NullServer(fault="stall")) as server:
        process = start(forking, load, server.url, tmp_path / "tool")
        most = {"processes": 4}.get(forking, 1)
        until(lambda: len(generators(tmp_path)) > most, "its processes are there")
        os.kill(process.pid, number)
        process.communicate(timeout=LONG_S)
        assert process.returncode != 0
        until(lambda: not generators(tmp_path), "no process of it is left")


def generators(place: Path) -> list[int]:
    found = running(f"X-Place: {place}")
    return [one.pid for one in found if not any("null-server" in word for word in one.words)]


@pytest.mark.parametrize("words", [("--rate", "5", "--duration", "1"), ("--source", "127.0.0.2")])
def test_what_it_cannot_do_is_refused(counting: str, words: tuple[str, ...]) -> None:
    argv = list(TOOLS[counting].command(a_load(), "http://127.0.0.1:1/", "/").argv)
    at = argv.index("--requests")
    amount = [] if "--duration" in words else argv[at : at + 2]
    done = subprocess.run(
        [*argv[:at], *amount, *argv[at + 2 :], *words], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


# --- small servers ------------------------------------------------------------------------


@contextmanager
def serving(answer: Callable[[http.server.BaseHTTPRequestHandler], bytes]) -> Iterator[str]:
    """A server whose answers are what `answer` returns."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = answer(self)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def closing_after_each(
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
) -> Iterator[str]:
    """A server that closes the connection after each answer, and does not say so before."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                client, _ = listening.accept()
                with client:
                    if not client.recv(65536):
                        return
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            socket.create_connection(listening.getsockname()).close()
            thread.join()
