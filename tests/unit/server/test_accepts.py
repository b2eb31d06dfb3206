"""Timing accept(), whoever calls it and however the socket is wrapped."""

from __future__ import annotations

import _socket
import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from workerlab.server.inside import probe


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture(autouse=True)
def accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "accepted", {})


def timing(*listeners: Any) -> dict[int, int]:
    probe.time_accepts(SimpleNamespace(sockets=listeners))
    return probe.accepted


def connected(listener: socket.socket, port: int = 0) -> socket.socket:
    """A client, from `port`, that resets when it closes: its port is free again at once."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.bind(("127.0.0.1", port))
    client.connect(listener.getsockname())
    return client


def test_an_accept_is_noted_by_its_clients_port(listener: socket.socket) -> None:
    accepted = timing(listener)
    with connected(listener) as client:
        before = time.monotonic_ns()
        assert accepted == {}
        connection, address = listener.accept()
        with connection:
            assert type(connection) is socket.socket
            assert address == client.getsockname()
            assert accepted.keys() == {address[1]}
            assert before <= accepted[address[1]] <= time.monotonic_ns()


def test_the_newest_connection_of_a_port_counts(listener: socket.socket) -> None:
    accepted = timing(listener)
    with connected(listener) as client:
        port = client.getsockname()[1]
        listener.accept()[0].close()
    first = dict(accepted)
    with connected(listener, port):
        listener.accept()[0].close()
    assert accepted.keys() == first.keys()
    assert accepted != first


def test_a_failed_accept_is_not_noted(listener: socket.socket) -> None:
    accepted = timing(listener)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert accepted == {}


def test_existing_holders_of_the_socket_are_timed(listener: socket.socket) -> None:
    """An accept method that was looked up before, and the event loop."""
    accept, number = listener.accept, listener.fileno()
    accepted = timing(listener)
    assert listener.fileno() == number
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


class Wrapped:
    """A socket inside another object, under an attribute that a wrapper uses."""

    def __init__(self, name: str, sock: Any) -> None:
        setattr(self, name, sock)
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(getattr(self, self._name), name)


@pytest.mark.parametrize("names", [["sock"], ["fd"], ["_sock"], ["sock", "fd"], ["fd", "sock"]])
def test_a_wrapped_socket_is_timed(listener: socket.socket, names: list[str]) -> None:
    outer: Any = listener
    for name in reversed(names):
        outer = Wrapped(name, outer)
    assert probe.innermost(outer) is listener
    accepted = timing(outer)
    with connected(listener):
        outer.accept()[0].close()
    assert len(accepted) == 1


def test_a_socket_that_cannot_be_timed_serves_on(listener: socket.socket) -> None:
    """The class of a bare C socket cannot be replaced."""
    bare = _socket.socket(fileno=listener.detach())
    accepted = timing(bare)
    try:
        with socket.socket() as client:
            client.connect(bare.getsockname())
            handle, _ = bare._accept()  # type: ignore[attr-defined]
            socket.close(handle)
    finally:
        bare.close()
    assert accepted == {}


@pytest.mark.parametrize("other", [None, object(), SimpleNamespace(family=socket.AF_INET)])
def test_other_objects_are_ignored(other: object) -> None:
    assert timing(other) == {}


def test_a_listener_without_ports_serves_on(tmp_path: Any) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        accepted = timing(listening)
        client.connect(str(tmp_path / "socket"))
        listening.accept()[0].close()
    assert accepted == {}
