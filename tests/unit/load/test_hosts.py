"""Load from other machines, planned: what is refused, and what the harness allows for."""

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
from workerlab import codec
from workerlab.load.locust import JOIN_S, host_command
from workerlab.model import Cell, Plan, UsageError
from workerlab.options import hosts as read
from workerlab.plan import load_for
from workerlab.server import preflight

CELL = Cell(SERVER, "locust", 4)
PLAN = plan((CELL,))


def test_names_and_addresses() -> None:
    assert read("a,10.0.0.2, b-2.example,a") == ("a", "10.0.0.2", "b-2.example")


@pytest.mark.parametrize("text", ["", "a,,b", "-x", "a;b", "a b", "http://a", "a:5557"])
def test_no_host_is_called_that(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|empty entry"):
        read(text)


def test_without_hosts_everything_stays_on_loopback() -> None:
    assert preflight.address_facing(()) == "127.0.0.1"
    assert preflight.address_facing(("localhost",)) == "127.0.0.1"


def test_an_unknown_host_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"--load-hosts: unknown host a\.\.b"):
        preflight.address_facing(("a..b",))
    with pytest.raises(UsageError, match=r"--load-hosts: unknown host a\.\.b"):
        preflight.check_load_hosts(("a..b",), 0)


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}"):
            preflight.check_load_hosts(("localhost",), port)


def test_the_deadline_allows_for_the_hosts_to_come() -> None:
    here = load_for(PLAN, CELL, 1.0)
    away = load_for(replace(PLAN, load_hosts=("a", "b")), CELL, 1.0)
    assert (here.hosts, away.hosts) == ((), ("a", "b"))
    assert away.deadline_s == here.deadline_s + JOIN_S


def test_a_resumed_run_still_knows_its_hosts() -> None:
    away = replace(PLAN, load_hosts=("a", "b"))
    assert codec.decode(codec.encode(away), Plan) == away


def dead(pid: int) -> bool:
    """Ended, though nobody has collected it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("deaf", ["", "trap '' INT TERM; "])
def test_ctrl_c_ends_what_runs_on_a_host(tmp_path: Path, deaf: str) -> None:
    """Also a load tool that hears nothing: a signal in the instant of its start may be lost."""
    tool = tmp_path / "locust"
    tool.write_text(f"#!/bin/sh\n{deaf}echo $$ > '{tmp_path}/pid'\nexec sleep 600\n")
    tool.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    shell = subprocess.Popen(
        ["sh", "-c", f"exec {host_command((str(tool),))}"],
        env={**os.environ, "TMPDIR": f"{tmp_path}/tmp"},
        start_new_session=True,
        preexec_fn=default_signals,
    )
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it runs")
        started = int((tmp_path / "pid").read_text())
        assert len(list((tmp_path / "tmp").iterdir())) == 1
        os.killpg(shell.pid, signal.SIGINT)  # as a terminal sends it, to all that runs in it
        shell.wait(60)
        until(lambda: dead(started), "the load tool is gone")
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
