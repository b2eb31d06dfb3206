"""Durations of bursts of requests: below, at and above the slots of a class.

All classes have the same sizes, so each benchmark group, "burst of N", compares the classes. Only
bounds that hold on any machine are asserted.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.builders.launch import launch
from tests.integration.conftest import LONG_S
from workerlab.model.plan import App, Server
from workerlab.server.running import Running
from workerlab.server.serve import serve
from workerlab.server.worker_classes import ASGI_CLASSES, configured_slots

SLEEP_S = 0.05


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("burst")
    style = "asgi" if worker_class in ASGI_CLASSES else "wsgi"
    # Slots: sync and tornado 2, gthread 4, gevent and eventlet 8, asgi and uvicorn without limit
    planned = Server(worker_class, 2, 2 if worker_class == "gthread" else 1, 64, 4)
    env = (("WORKERLAB_SLEEP", str(SLEEP_S)),)
    app = App(f"apps.sleep_{style}:app", "", env=env, sleep_s=SLEEP_S)
    with serve(launch(place, planned, app, records=1_000)) as running:
        yield running


def burst(server: Running, size: int) -> float:
    """Seconds until `size` requests, sent at once on separate connections, have a response."""
    address = (server.host, server.port)
    request = f"GET / HTTP/1.1\r\nHost: {server.host}\r\nConnection: close\r\n\r\n".encode()
    start_s = time.monotonic()
    connections = [socket.create_connection(address, timeout=LONG_S) for _ in range(size)]
    for connection in connections:
        connection.sendall(request)
    for connection in connections:
        with connection, connection.makefile("rb") as response:
            assert response.read().startswith(b"HTTP/1.1 200 ")
    return time.monotonic() - start_s


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_a_burst_takes_no_less_than_the_ideal_time(
    benchmark: BenchmarkFixture, server: Running, worker_class: str, size: int
) -> None:
    slots = configured_slots(server.launch.server) or size
    where = "below" if size < slots else "at" if size == slots else "above"
    benchmark.group = f"burst of {size:2}"
    benchmark.name = worker_class
    benchmark.extra_info.update(worker_class=worker_class, slots=slots, size=size, where=where)
    durations_s: list[float] = []
    benchmark.pedantic(lambda: durations_s.append(burst(server, size)), rounds=4)
    # A timer may fire 1 ms early
    assert min(durations_s) >= math.ceil(size / slots) * (SLEEP_S - 0.001)
    assert server.lost() is None
