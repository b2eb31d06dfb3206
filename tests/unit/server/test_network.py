"""A temporary network namespace."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from workerlab.server import null_server, preflight
from workerlab.server.null_server import own_network


def current_namespace() -> str:
    return str(Path("/proc/thread-self/ns/net").readlink())


def test_a_network_has_its_own_settings_and_is_left_after_an_error() -> None:
    try:
        with own_network(2):
            pass
    except OSError as error:
        pytest.skip(f"cannot make a network namespace: {error}")
    before = current_namespace(), preflight.sysctl("net.ipv4.tcp_tw_reuse")
    with suppress(InterruptedError), own_network(0):
        assert current_namespace() != before[0]
        assert preflight.sysctl("net.ipv4.tcp_tw_reuse") == "0"
        assert preflight.port_range() == (32_768, 60_999)
        with socket.create_server(("127.0.0.1", 0)) as listener:  # the loopback interface is up
            socket.create_connection(listener.getsockname()).close()
        raise InterruptedError
    assert (current_namespace(), preflight.sysctl("net.ipv4.tcp_tw_reuse")) == before


def test_a_refused_namespace_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = current_namespace()
    monkeypatch.setattr(null_server, "CLONE_NEWNET", 1)  # refused for any user
    with pytest.raises(OSError, match="Invalid argument"), own_network(2):
        pytest.fail("the namespace was made")
    assert current_namespace() == before
