"""How long a burst of requests takes: below, at and above what a class serves at once.

The sizes are the same for every class, so that a group of the benchmark, "burst of N", holds the
classes side by side. Asserted is only what no machine can beat.
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

WORKERS, THREADS, CONNECTIONS = 2, 2, 4
# Slots: sync and tornado 2, gthread 4, gevent and eventlet 8, asgi and uvicorn without limit
SIZES = (1, 2, 4, 8, 16)
SLEEP_S = 0.05
EARLY_S = 0.001  # a timer may fire so much before its time
ROUNDS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("burst")
    style = "asgi" if worker_class in ASGI_CLASSES else "wsgi"
    threads = THREADS if worker_class == "gthread" else 1
    planned = Server(worker_class, WORKERS, threads, 64, CONNECTIONS)
    env = (("WORKERLAB_SLEEP", str(SLEEP_S)),)
    app = App(f"apps.sleep_{style}:app", "", env=env, sleep_s=SLEEP_S)
    with serve(launch(place, planned, app, records=1_000)) as started:
        yield started


def burst(server: Running, size: int) -> float:
    """Seconds until `size` requests, sent together on connections of their own, are answered."""
    address = (server.host, server.port)
    request = f"GET / HTTP/1.1\r\nHost: {server.host}\r\nConnection: close\r\n\r\n".encode()
    began = time.monotonic()
    connections = [socket.create_connection(address, timeout=LONG_S) for _ in range(size)]
    for connection in connections:
        connection.sendall(request)
    for connection in connections:
        with connection, connection.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 200 ")
    return time.monotonic() - began


@pytest.mark.parametrize("size", SIZES)
def test_burst(benchmark: BenchmarkFixture, server: Running, worker_class: str, size: int) -> None:
    slots = configured_slots(server.launch.server) or size
    where = "below" if size < slots else "at" if size == slots else "above"
    benchmark.group = f"burst of {size:2}"
    benchmark.name = worker_class
    benchmark.extra_info.update(worker_class=worker_class, slots=slots, size=size, where=where)
    took_s: list[float] = []
    benchmark.pedantic(lambda: took_s.append(burst(server, size)), rounds=ROUNDS)
    rounds = math.ceil(size / slots)
    assert min(took_s) >= rounds * (SLEEP_S - EARLY_S)
    assert server.lost() is None
