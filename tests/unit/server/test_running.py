"""Workers that die under load, and what the server's log explains."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.processes import ended_pid
from workerlab.finding import stored
from workerlab.model.plan import App, Server
from workerlab.server.inside.maps import HEADER, HEADER_BYTES, SPANS, create_map
from workerlab.server.running import Launch, Running, WorkersKilledWaiting, explained, read_proofs


def running_server(trial: Path, pid: int, *, drops: bool) -> Running:
    server = Server("sync", 1, 1, 2, 1000)
    (trial / f"worker-{pid}.json").write_text(json.dumps({"pid": pid}))
    process: Any = SimpleNamespace(running=True, exit_code=None)
    return Running(
        launch=Launch(server, App("own:app", ""), "python", trial, trial, None, 10),
        process=process,
        host="127.0.0.1",
        port=1,
        backlog=2,
        log=trial / "server.log",
        proofs=read_proofs(trial),
        drops=drops,
    )


def write_span(trial: Path, pid: int, *, busy: bool) -> None:
    """One request of this worker; `busy`: it has not ended."""
    shared = create_map(str(trial / f"spans-{pid}-0.map"), SPANS, 4)
    HEADER.pack_into(shared, 0, SPANS.magic, pid, SPANS.record.size, 4, 0)
    SPANS.record.pack_into(shared, HEADER_BYTES, 10, 0 if busy else 20, 0, b"")
    shared.close()


@pytest.mark.parametrize(
    ("drops", "timeout", "busy", "tolerated"),
    [
        (True, True, False, True),
        (False, True, False, False),  # clients do not hold unused connections
        (True, False, False, False),  # the worker died for another reason
        (True, True, True, False),  # the worker was serving a request
    ],
)
def test_a_worker_is_lost_unless_it_was_killed_while_waiting_on_an_unused_connection(
    tmp_path: Path, drops: bool, timeout: bool, busy: bool, tolerated: bool
) -> None:
    pid = ended_pid()
    running = running_server(tmp_path, pid, drops=drops)
    write_span(tmp_path, pid, busy=busy)
    log = f"[CRITICAL] WORKER TIMEOUT (pid:{pid})\n" if timeout else "[ERROR] worker exited\n"
    (tmp_path / "server.log").write_text(log)
    (tmp_path / f"worker-{os.getpid()}.json").write_text(json.dumps({"pid": os.getpid()}))
    fault = running.lost()
    if tolerated:
        assert fault is None
        assert set(running.proofs) == {pid, os.getpid()}
        assert running.warnings == [stored(WorkersKilledWaiting(1))]
    else:
        assert "a worker died under load" in fault.reason
        assert str(pid) not in fault.reason  # reports group equal reasons
        assert str(pid) in fault.detail
        assert ("sent no heartbeat" in fault.reason) is timeout
        assert ("with a request in the app" in fault.reason) is (timeout and busy)


def test_a_live_worker_is_not_lost(tmp_path: Path) -> None:
    assert running_server(tmp_path, os.getpid(), drops=True).lost() is None


BOOTS = "[2026-11-20 09:00:00 +0000] [12] [INFO] Booting worker with pid: 12\n"
HALTS = "[2026-11-20 09:00:01 +0000] [11] [ERROR] Reason: Worker failed to boot.\n"
DJANGO = """\
[2026-11-20 09:00:00 +0000] [12] [ERROR] Exception in worker process
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/gunicorn/arbiter.py", line 608, in spawn_worker
    worker.init_process()
  File "/srv/shop/wsgi.py", line 7, in <module>
    application = get_wsgi_application()
  File "/venv/lib/python3.11/site-packages/django/conf/__init__.py", line 68, in _setup
    raise ImproperlyConfigured(
django.core.exceptions.ImproperlyConfigured: KEY is not set
"""
HALTED = """\
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/gunicorn/arbiter.py", line 686, in reap_workers
    raise HaltServer(reason, self.APP_LOAD_ERROR)
gunicorn.errors.HaltServer: <HaltServer 'App failed to load.' 4>
"""
NO_APP = "Failed to find application object: 'app'"
LATE = "[x] [1] [WARNING] late\n"
KILLED = """\
[x] [1] [CRITICAL] WORKER TIMEOUT (pid:12)
Traceback (most recent call last):
  File "/srv/slow.py", line 3, in app
SystemExit: 1
"""
BOOT_LOGS = {
    "an exception with the app's line": (
        BOOTS + DJANGO + HALTS,
        ": django.core.exceptions.ImproperlyConfigured: KEY is not set (wsgi.py line 7)",
    ),
    "what sys.exit printed": (f"{BOOTS}no KEY\n{HALTS}", ": no KEY"),
    "several lines": (f"{BOOTS}no KEY.\n\nSee README\n{HALTS}", ": no KEY. See README"),
    "before another server's error": ("no KEY\n[ERROR] Unexpected exit\n", ": no KEY"),
    "before Gunicorn halted": (f"{BOOTS}no KEY\n{HALTED}", ": no KEY"),
    "no such app": (f"{BOOTS}{NO_APP}\n{HALTED}", f": {NO_APP}"),
    "nothing but Gunicorn's": (BOOTS + HALTS, ": Reason: Worker failed to boot"),
}
# Servers that ended later: the app's output does not explain why
LOGS = {
    "a worker without heartbeats": (
        KILLED,
        ": Gunicorn's timeout killed the worker (slow.py line 3)",
    ),
    "empty": ("", ""),
    "information": (BOOTS, ""),
    "output of the app": (f"{BOOTS}GET /cart\n", ""),
    "debugging": (BOOTS.replace("INFO", "DEBUG"), ""),
    "a warning": (BOOTS + LATE + BOOTS, ": late"),
    "an error": (f"[x] [1] [ERROR] no memory\n{LATE}{BOOTS}", ": no memory"),
    "an error of a worker": ("[x] [1] [ERROR] Worker (pid:12) was killed", ": Worker was killed"),
    "a traceback": (f"Traceback (most recent call last):\nOSError: x\n{BOOTS}", ": OSError: x"),
}


@pytest.mark.parametrize(
    ("log", "cause", "printed"),
    [*((*case, True) for case in BOOT_LOGS.values()), *((*case, False) for case in LOGS.values())],
    ids=[*BOOT_LOGS, *LOGS],
)
def test_the_log_explains_the_end_of_a_server(
    tmp_path: Path, log: str, cause: str, printed: bool
) -> None:
    path = tmp_path / "server.log"
    assert explained("it ended", path, printed=printed) == "it ended"  # without a log
    path.write_text(log)
    assert explained("it ended", path, printed=printed) == f"it ended{cause}"
