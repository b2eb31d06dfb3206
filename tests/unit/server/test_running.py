"""What became of a server's workers under the load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workerlab.model import App, Finding, Server
from workerlab.server.inside import probe
from workerlab.server.running import Launch, Running, read_proofs


class Alive:
    """Stands for the arbiter, which runs."""

    running = True
    exit_code = None


def ended() -> int:
    """The pid of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def server(trial: Path, pid: int, *, drops: bool) -> Running:
    launch = Launch(
        Server("sync", 1, 1, 2, 1000), App("own:app", ""), "python", trial, trial, None, 10
    )
    (trial / f"worker-{pid}.json").write_text(json.dumps({"pid": pid}))
    process: Any = Alive()
    return Running(
        launch=launch,
        process=process,
        host="127.0.0.1",
        port=1,
        backlog=2,
        log=trial / "server.log",
        proofs=read_proofs(trial),
        drops=drops,
    )


def spans(trial: Path, pid: int, *, busy: bool) -> None:
    shared = probe.create_map(str(trial / f"spans-{pid}-0.map"), 4)
    probe.HEADER.pack_into(shared, 0, probe.MAGIC, pid, probe.RECORD.size, 4, 0)
    probe.RECORD.pack_into(shared, probe.HEADER_BYTES, 10, 0 if busy else 20, 0, b"")
    shared.close()


@pytest.mark.parametrize(
    ("drops", "timeout", "busy", "tolerated"),
    [
        (True, True, False, True),
        (False, True, False, False),  # there is no reason for it to wait in vain
        (True, False, False, False),  # it died of something else
        (True, True, True, False),  # it had a request
    ],
)
def test_a_worker_killed_while_it_waited_in_vain(
    tmp_path: Path, drops: bool, timeout: bool, busy: bool, tolerated: bool
) -> None:
    pid = ended()
    running = server(tmp_path, pid, drops=drops)
    spans(tmp_path, pid, busy=busy)
    said = f"[CRITICAL] WORKER TIMEOUT (pid:{pid})\n" if timeout else "[ERROR] worker exited\n"
    (tmp_path / "server.log").write_text(said)
    (tmp_path / f"worker-{os.getpid()}.json").write_text(json.dumps({"pid": os.getpid()}))
    fault = running.lost()
    assert (fault is None) is tolerated
    if tolerated:
        assert set(running.proofs) == {pid, os.getpid()}
        assert running.warnings == [Finding("note.waited_in_vain", {"workers": 1})]
    else:
        assert fault is not None
        assert "a worker died under the load" in fault.reason
        assert str(pid) not in fault.reason  # so that causes can be told apart
        assert str(pid) in fault.detail
        assert ("setting `timeout` allows" in fault.reason) is timeout
        assert ("with a request in the app" in fault.reason) is (timeout and busy)


def test_a_worker_that_lives_is_not_lost(tmp_path: Path) -> None:
    assert server(tmp_path, os.getpid(), drops=True).lost() is None
