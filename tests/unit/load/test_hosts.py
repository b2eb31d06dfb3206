"""Load from other machines: rejected hosts, the deadline, and how Ctrl-C ends the load tool."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from tests.builders.conditions import until
from tests.builders.plan import SERVER, plan
from tests.builders.processes import default_signals
from workerlab.errors import UsageError
from workerlab.load.locust import JOIN_S, host_command
from workerlab.model.plan import Cell
from workerlab.options import hosts as parse_hosts
from workerlab.plan import load_for
from workerlab.server import preflight

CELL = Cell(SERVER, "locust", 4)
PLAN = plan((CELL,))


def test_names_and_addresses() -> None:
    assert parse_hosts("a,10.0.0.2, b-2.example,a") == ("a", "10.0.0.2", "b-2.example")


@pytest.mark.parametrize("text", ["", "a,,b", "-x", "a;b", "a b", "http://a", "a:5557"])
def test_invalid_host_lists_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|empty entry"):
        parse_hosts(text)


def test_without_hosts_everything_stays_on_loopback() -> None:
    assert preflight.address_facing(()) == "127.0.0.1"
    assert preflight.address_facing(("localhost",)) == "127.0.0.1"


def test_an_unknown_host_is_rejected() -> None:
    for check in (preflight.address_facing, lambda hosts: preflight.check_load_hosts(hosts, 0)):
        with pytest.raises(UsageError, match=r"--load-hosts: unknown host a\.\.b"):
            check(("a..b",))


def test_a_port_in_use_is_rejected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}"):
            preflight.check_load_hosts(("localhost",), port)


def test_the_deadline_includes_the_time_for_hosts_to_connect() -> None:
    local_load = load_for(PLAN, CELL, 1.0)
    remote_load = load_for(replace(PLAN, load_hosts=("a", "b")), CELL, 1.0)
    assert (local_load.hosts, remote_load.hosts) == ((), ("a", "b"))
    assert remote_load.deadline_s == local_load.deadline_s + JOIN_S


def has_ended(pid: int) -> bool:
    """Whether a process has ended, even if it has not been waited for."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("signal_trap", ["", "trap '' INT TERM; "])
def test_ctrl_c_ends_the_load_tool_on_a_host(tmp_path: Path, signal_trap: str) -> None:
    """Even if the load tool ignores signals, as one that arrives during its start may be lost."""
    tool, pid_file, temporary = (tmp_path / name for name in ("locust", "pid", "tmp"))
    tool.write_text(f"#!/bin/sh\n{signal_trap}echo $$ > '{pid_file}'\nexec sleep 600\n")
    tool.chmod(0o755)
    temporary.mkdir()
    shell = subprocess.Popen(
        ["sh", "-c", f"exec {host_command((str(tool),))}"],
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
        preexec_fn=default_signals,
    )
    try:
        pid = until(lambda: pid_file.exists() and pid_file.read_text(), "the load tool runs")
        assert len(list(temporary.iterdir())) == 1
        os.killpg(shell.pid, signal.SIGINT)  # to the whole process group, as a terminal does
        shell.wait(60)
        until(lambda: has_ended(int(pid)), "the load tool has ended")
        assert list(temporary.iterdir()) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
