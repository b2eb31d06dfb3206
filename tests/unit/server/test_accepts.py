"""Timing accept(), for every caller and every wrapper of the socket."""

from __future__ import annotations

import _socket
import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from workerlab.server.inside import probe

pytestmark = pytest.mark.usefixtures("_restored_probe")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def time_accepts(listener: Any) -> dict[int, int]:
    """The times of its accepts from now on, by the client's port."""
    probe.time_accepts(SimpleNamespace(sockets=[listener]))
    return probe.accepted


def connected(listener: socket.socket, port: int = 0) -> socket.socket:
    """A client on `port` that closes with a reset, which frees its port at once."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.bind(("127.0.0.1", port))
    client.connect(listener.getsockname())
    return client


def test_an_accept_is_recorded_by_its_clients_port(listener: socket.socket) -> None:
    accepted = time_accepts(listener)
    with connected(listener) as client:
        started_ns = time.monotonic_ns()
        assert accepted == {}
        connection, address = listener.accept()
        with connection:
            assert type(connection) is socket.socket
            assert address == client.getsockname()
            assert accepted.keys() == {address[1]}
            assert started_ns <= accepted[address[1]] <= time.monotonic_ns()


def test_the_latest_connection_of_a_port_counts(listener: socket.socket) -> None:
    accepted = time_accepts(listener)
    with connected(listener) as client:
        port = client.getsockname()[1]
        listener.accept()[0].close()
    first = dict(accepted)
    with connected(listener, port):
        listener.accept()[0].close()
    assert accepted.keys() == first.keys()
    assert accepted != first


def test_a_failed_accept_is_not_recorded(listener: socket.socket) -> None:
    accepted = time_accepts(listener)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert accepted == {}


def test_an_accept_method_looked_up_earlier_and_the_event_loop_are_timed(
    listener: socket.socket,
) -> None:
    accept, fd = listener.accept, listener.fileno()
    accepted = time_accepts(listener)
    assert listener.fileno() == fd
    with connected(listener):
        accept()[0].close()
    assert len(accepted) == 1

    async def serve() -> None:
        served = asyncio.Event()
        server = await asyncio.start_server(lambda *_: served.set(), sock=listener)
        async with server:
            with connected(listener):
                await asyncio.wait_for(served.wait(), 10)

    asyncio.run(serve())
    assert len(accepted) == 2


@pytest.mark.parametrize("names", [["sock"], ["fd"], ["_sock"], ["sock", "fd"], ["fd", "sock"]])
def test_a_wrapped_socket_is_timed(listener: socket.socket, names: list[str]) -> None:
    wrapped: Any = listener
    for name in reversed(names):
        wrapped = SimpleNamespace(**{name: wrapped})
    accepted = time_accepts(wrapped)
    with connected(listener):
        listener.accept()[0].close()
    assert len(accepted) == 1


def test_a_socket_that_cannot_be_timed_still_accepts(listener: socket.socket) -> None:
    """The class of a bare C socket cannot be replaced."""
    with closing(_socket.socket(fileno=listener.detach())) as bare, socket.socket() as client:
        accepted = time_accepts(bare)
        client.connect(bare.getsockname())
        fd, _ = bare._accept()  # type: ignore[attr-defined]
        socket.close(fd)
    assert accepted == {}


@pytest.mark.parametrize("value", [None, object(), SimpleNamespace(family=socket.AF_INET)])
def test_other_objects_are_ignored(value: object) -> None:
    assert time_accepts(value) == {}


def test_accepts_of_a_listener_without_ports_are_not_recorded(tmp_path: Any) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        accepted = time_accepts(listening)
        client.connect(str(tmp_path / "socket"))
        listening.accept()[0].close()
    assert accepted == {}
