"""A network namespace of its own, for a while."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from workerlab.server import null_server, preflight
from workerlab.server.null_server import own_network


def current() -> str:
    return str(Path("/proc/thread-self/ns/net").readlink())


def test_it_is_left_again_whatever_happens() -> None:
    try:
        with own_network(2):
            pass
    except OSError as error:
        pytest.skip(f"no network namespace can be made: {error}")
    before = current(), preflight.sysctl("net.ipv4.tcp_tw_reuse")
    try:
        with own_network(0):
            assert current() != before[0]
            assert preflight.sysctl("net.ipv4.tcp_tw_reuse") == "0"
            assert preflight.port_range() == (32_768, 60_999)
            with socket.create_server(("127.0.0.1", 0)) as listener:  # its loopback is up
                socket.create_connection(listener.getsockname()).close()
            raise InterruptedError
    except InterruptedError:
        assert (current(), preflight.sysctl("net.ipv4.tcp_tw_reuse")) == before


def test_a_user_who_may_not_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = current()
    monkeypatch.setattr(null_server, "CLONE_NEWNET", 1)  # refused for anybody
    with pytest.raises(OSError, match="Invalid argument"), own_network(2):
        pytest.fail("there is no such namespace")
    assert current() == before
