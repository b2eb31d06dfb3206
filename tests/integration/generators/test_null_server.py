"""The null server as clients see it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.null import serving
from tests.builders.processes import started
from tests.integration.conftest import HARNESS, LONG_S, run_null_trial, until
from workerlab.analysis.facts import why_unusable
from workerlab.experiments.reading import null_counts
from workerlab.experiments.trial import null_task, run
from workerlab.model.plan import Cell, Load, NullServer, Trial
from workerlab.numbers.histogram import Histogram
from workerlab.plan import null_cell
from workerlab.server.null_server import COUNTS, PROGRAM, RunningNull
from workerlab.server.running import Serving

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GET_AND_CLOSE = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"


def connect(server: Serving) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=LONG_S)


def http_client(server: Serving) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection(server.host, server.port, timeout=LONG_S))


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


def ask(connection: http.client.HTTPConnection, **headers: str) -> tuple[int, bytes]:
    connection.request("GET", "/", headers=headers)
    response = connection.getresponse()
    return response.status, response.read()


@pytest.mark.parametrize("delay_s", [(0.0, 0.0), (0.01, 0.01)])
def test_connections_close_after_n_requests(tmp_path: Path, delay_s: tuple[float, float]) -> None:
    null = NullServer(requests_per_connection=3, delay_s=delay_s)
    with serving(tmp_path, null) as server:
        with http_client(server) as client:
            responses = [(ask(client)[0], client.sock is not None) for _ in range(7)]
        assert responses == [(200, number % 3 > 0) for number in range(1, 8)]
        with connect(server) as pipelined:  # requests after the third have no response
            pipelined.sendall(GET * 5)
            assert read_all(pipelined).count(b"200 OK") == 3
    assert null_counts(tmp_path).connections == 4


def test_connections_are_reused_and_counted(tmp_path: Path) -> None:
    with (
        serving(tmp_path, NullServer(body_bytes=1000)) as server,
        http_client(server) as client,
        http_client(server) as other,
    ):
        responses = [ask(connection) for _ in range(10) for connection in (client, other)]
        assert {(status, len(body)) for status, body in responses} == {(200, 1000)}
        assert client.sock is not None
        ask(client, Connection="close")
        assert client.sock is None
        assert server.lost() is None
    counts = null_counts(tmp_path)
    assert (counts.requests, counts.connections, counts.most_connections) == (21, 2, 2)
    assert counts.answers == 21
    assert 0 < counts.service.max < 60
    assert counts.cpu_s > 0
    assert counts.delays_s == 0


def test_split_and_pipelined_requests_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path, NullServer()) as server, connect(server) as client:
        for byte in GET:
            client.sendall(bytes([byte]))
        client.sendall(GET * 3)
        client.sendall(b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhe")
        client.sendall(b"llo")
        assert read_all(client).count(b"HTTP/1.1 200 OK") == 5
    assert null_counts(tmp_path).requests == 5


def test_delayed_requests_of_one_connection_are_answered_in_order(tmp_path: Path) -> None:
    null = NullServer(delay_s=(0.0, 0.05))
    with serving(tmp_path, null) as server, connect(server) as client:
        client.sendall(GET * 9 + GET_AND_CLOSE)
        assert read_all(client).count(b"HTTP/1.1 200 OK") == 10


def test_malformed_requests_are_rejected(tmp_path: Path) -> None:
    with serving(tmp_path, NullServer()) as server, connect(server) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 400 ")


def test_delays_are_seeded_and_minimum_service_times(tmp_path: Path) -> None:
    sums = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        (tmp_path / name).mkdir()
        null = NullServer(delay_s=(0.01, 0.05), seed=seed)
        with serving(tmp_path / name, null) as server, http_client(server) as client:
            for _ in range(5):
                ask(client)
        counts = null_counts(tmp_path / name)
        assert 0.01 * 5 <= counts.delays_s <= 0.05 * 5
        assert counts.service.mean * 5 >= counts.delays_s * 0.999  # no response was early
        sums.append(counts.delays_s)
    assert sums[0] == sums[1] != sums[2]


def test_slow_readers_of_large_bodies_do_not_block_others(tmp_path: Path) -> None:
    size = 20 << 20  # more than the socket buffers of both sides
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, NullServer(body_bytes=size)))
        clients = [stack.enter_context(connect(server)) for _ in range(3)]
        for client in clients:
            client.sendall(GET_AND_CLOSE)
        with connect(server) as fast_client:  # the others have not read a byte
            fast_client.sendall(GET_AND_CLOSE)
            assert len(read_all(fast_client).partition(b"\r\n\r\n")[2]) == size
        for client in clients:
            assert len(read_all(client).partition(b"\r\n\r\n")[2]) == size


def test_clients_that_disconnect_early_do_no_harm(tmp_path: Path) -> None:
    with serving(tmp_path, NullServer(delay_s=(0.2, 0.2))) as server:
        for _ in range(20):
            with connect(server) as client:
                client.sendall(GET)
        with connect(server) as client:
            client.sendall(GET_AND_CLOSE)
            assert read_all(client).startswith(b"HTTP/1.1 200 OK")
        assert server.lost() is None


def test_a_stalled_server_counts_requests_while_it_runs(tmp_path: Path) -> None:
    with serving(tmp_path, NullServer(fault="stall")) as server, connect(server) as client:
        client.sendall(GET)
        counts = server.log.with_name(COUNTS)
        until(lambda: json.loads(counts.read_text())["requests"] == 1, "the request is read")
        assert select.select([client], [], [], 0) == ([], [], [])
    assert null_counts(tmp_path).answers == 0


def test_more_connections_than_open_files_are_served_in_turn(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    args = [sys.executable, "-I", "-S", PROGRAM, "--ready", str(ready)]
    limit_files = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (20, 20))
    with started(args, preexec_fn=limit_files):
        until(ready.exists, "it listens")
        address = "127.0.0.1", json.loads(ready.read_text())["port"]
        clients = [socket.create_connection(address, timeout=LONG_S) for _ in range(40)]
        for client in clients:  # each makes room for another one
            with client:
                client.sendall(GET_AND_CLOSE)
                assert read_all(client).startswith(b"HTTP/1.1 200 OK")


def test_the_server_ends_when_its_harness_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from workerlab.model.plan import NullServer, Server\n"
        "from workerlab.server.null_server import null_server\n"
        "server = Server('null', 1, 1, 4096, 0, null=NullServer())\n"
        "with null_server(server, Path(sys.argv[1])): time.sleep(1000)"
    )
    args = [sys.executable, "-c", program, str(tmp_path)]
    with started(args, env={**os.environ, "PYTHONPATH": HARNESS}):
        until((tmp_path / "ready.json").exists, "it listens")
        pid = json.loads((tmp_path / "ready.json").read_text())["pid"]
    until(lambda: not Path(f"/proc/{pid}").exists(), "it is gone")


# --- loads ----------------------------------------------------------------------------------


def cell_of(null: NullServer, requests: int = 500, keepalive: bool = True) -> Cell:
    load = Load(10, requests, duration_s=1.0, deadline_s=LONG_S, keepalive=keepalive)
    return null_cell("a", null, "fast", load)


@pytest.mark.parametrize("keepalive", [True, False])
def test_counts_of_server_and_client_agree(tmp_path: Path, keepalive: bool) -> None:
    cell = cell_of(NullServer(delay_s=(0.0, 0.02)), keepalive=keepalive)
    for _ in range(5):
        measured = run_null_trial(cell, Path(tempfile.mkdtemp(dir=tmp_path)))
        if any(sample.tool_rss_bytes for sample in measured.observations.processes):
            break  # on a busy machine such a short load may have no sample
    assert measured.record.fault is None
    assert why_unusable(measured) is None
    assert (measured.measurement.requests, measured.measurement.failed) == (500, 0)
    assert measured.null.requests == measured.null.answers == 500
    assert measured.null.connections == measured.measurement.connections
    assert measured.null.most_connections <= 10
    # The client starts timing earlier and stops later
    assert measured.measurement.response.mean >= measured.null.service.mean * 0.996
    # The load takes at least the delays, shared by 10 connections
    assert measured.measurement.duration_s * 10 >= measured.null.delays_s
    assert measured.observations.missing == {}
    assert any(sample.tool_rss_bytes for sample in measured.observations.processes)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("status500", "non_2xx"), ("reset", "reset"), ("close", "closed"), ("garbage", "protocol"),
     ("half", "truncated")],
)  # fmt: skip
def test_faults_are_counted_by_cause(tmp_path: Path, fault: str, cause: str) -> None:
    cell = cell_of(NullServer(fault=fault), requests=100)
    measurement = run_null_trial(cell, tmp_path).measurement
    assert (measurement.failed, measurement.errors) == (100, {cause: 100})


def test_the_death_of_the_server_under_load_is_a_fault(tmp_path: Path) -> None:
    def kill(server: RunningNull, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # already dead
            os.kill(server.process.pid, signal.SIGKILL)

    trial = Trial(cell_of(NullServer(delay_s=(1.0, 1.0))), 1)
    record = run(replace(null_task(trial, tmp_path), watch=kill))
    assert record.fault.kind == "server"


def test_a_server_that_cannot_start_is_unavailable(tmp_path: Path) -> None:
    measured = run_null_trial(cell_of(NullServer(core=9999)), tmp_path)
    assert measured.record.fault.kind == "unavailable"
    assert (measured.measurement, measured.null) == (None, None)


def test_truncated_counts_are_none(tmp_path: Path) -> None:
    run_null_trial(cell_of(NullServer()), tmp_path)
    raw = tmp_path / "raw" / "a-1"
    counts = json.loads((raw / COUNTS).read_text())
    assert Histogram.from_json(counts["service"]).count == 500
    (raw / COUNTS).write_text((raw / COUNTS).read_text()[:-20])
    assert null_counts(raw) is None
