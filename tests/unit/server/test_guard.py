"""The guard, with real processes: no process is left, whichever dies first.

The arguments of each program contain its directory, by which remaining processes are found.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.builders.conditions import LONG_S, until
from tests.builders.processes import default_signals, running, send
from workerlab.server.process import Guarded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are found through /proc")

# The start of each program below. `mark` creates a file for which the test waits.
PROLOGUE = """
import os, signal, sys, time
from pathlib import Path
directory = Path(sys.argv[1])

def mark(name):
    (directory / name).write_text(str(os.getpid()))

def forked(then):
    if os.fork() == 0:
        then()
        os._exit(0)

def sleep():
    while True:
        time.sleep(0.02)  # a signal that arrives just before a sleep is handled after it

def daemon():
    os.setsid()
    if os.fork():
        os._exit(0)
    mark("daemon")
    sleep()
"""


def remaining_pids(directory: Path) -> list[int]:
    """Pids of all processes with `directory` in their arguments, including guards."""
    return [process.pid for process in running(str(directory))]


def zombies() -> set[int]:
    """Pids of children that have ended and were not waited for."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) == os.getpid():
                    pids.add(int(entry.name))
    return pids


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose programs must all have ended after the test."""
    earlier_zombies = zombies()
    try:
        yield tmp_path
        until(lambda: not remaining_pids(tmp_path), "all programs have ended")
        assert zombies() <= earlier_zombies
    finally:
        send(remaining_pids(tmp_path), signal.SIGKILL)


def guarded_command(argv: list[str], directory: Path, **options: Any) -> Guarded:
    defaults = {"cwd": directory, "stdout": directory / "out", "stderr": directory / "err"}
    return Guarded(argv, **{**defaults, "env": os.environ, "grace_s": LONG_S, **options})


def guarded(directory: Path, program: str, **options: Any) -> Guarded:
    argv = [sys.executable, "-I", "-S", "-c", PROLOGUE + program, str(directory)]
    return guarded_command(argv, directory, **options)


def guarded_with_data(directory: Path, program: str, **options: Any) -> Guarded:
    """Its data directory is removed at its end."""
    return guarded(directory / "data", program, cwd=directory, remove=directory / "data", **options)


def marked_pid(directory: Path, name: str) -> int:
    """Waits for the mark, and returns the pid of the process that made it."""
    path = directory / name
    return int(until(lambda: path.exists() and path.read_text(), name))


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_for_ends(pids: list[int]) -> None:
    until(lambda: not any(map(exists, pids)), "all processes have ended")


# --- programs that end by themselves --------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os._exit(255)", 255),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGINT); sleep()", -signal.SIGINT),
    ],
)
def test_a_program_that_ends_leaves_its_exit_code_and_no_data(
    directory: Path, program: str, code: int
) -> None:
    with guarded_with_data(directory, program) as process:
        assert process.wait(LONG_S)
        assert not process.running
    assert process.exit_code == code
    assert not (directory / "data").exists()


SPIN = "while time.process_time() < 0.3: pass\n"


@pytest.mark.parametrize(
    ("program", "used_s"),
    [
        (SPIN, 0.3),
        # Children count only if the program waited for them
        ("pid = os.fork()\n" + SPIN + "pid and os.waitpid(pid, 0)", 0.6),
        (SPIN + "os.kill(os.getpid(), signal.SIGKILL)", 0.3),
    ],
)
def test_cpu_of_a_program_that_ends_is_known(directory: Path, program: str, used_s: float) -> None:
    began_s = time.monotonic()
    with guarded(directory, program) as process:
        assert process.cpu_s is None
        assert process.wait(LONG_S)
    # The first moments of a fork may be charged to the parent; at most two processes compute
    assert used_s * 0.97 <= process.cpu_s <= 2 * (time.monotonic() - began_s)


def test_cpu_of_a_killed_program_is_known(directory: Path) -> None:
    with guarded(directory, SPIN + "mark('ready'); sleep()") as process:
        marked_pid(directory, "ready")
        process.kill()
    assert process.cpu_s >= 0.29


def test_output_goes_to_files(directory: Path) -> None:
    with guarded(directory, "print('out'); print('error', file=sys.stderr)") as process:
        assert process.wait(LONG_S)
    assert (directory / "out").read_text() == "out\n"
    assert (directory / "err").read_text() == "error\n"


@pytest.mark.parametrize(
    ("program", "options"),
    [("no-such-program", {}), ("true", {"user": "no-such-user"})],
    ids=["program", "user"],
)
def test_a_program_or_user_that_does_not_exist_is_named(
    directory: Path, program: str, options: dict[str, Any]
) -> None:
    with guarded_command([program], directory, **options) as process:
        assert process.wait(LONG_S)
    assert process.exit_code == 127
    assert options.get("user", program) in (directory / "err").read_text()


def test_a_program_has_default_signals(directory: Path) -> None:
    """It must not inherit the signals that the guard and its parent ignore or block."""
    program = """
names = {name for name in ("HUP", "QUIT", "TERM", "CHLD", "USR1", "INT", "PIPE")
         if signal.getsignal(getattr(signal, "SIG" + name)) != signal.SIG_DFL}
print(sorted(names), signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.getpgrp())
"""
    ignored = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
    try:
        process = guarded(directory, program)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(ignored, handlers, strict=True):
            signal.signal(number, handler)
    with process:
        assert process.wait(LONG_S)
    # Python handles SIGINT and ignores SIGPIPE
    assert (directory / "out").read_text() == f"['INT', 'PIPE'] set() {process.pid}\n"


# --- ended by the harness -------------------------------------------------------------------


def test_a_program_runs_until_sigterm_stops_it(directory: Path) -> None:
    program = """
signal.signal(signal.SIGTERM, lambda *_: (mark("terminated"), sys.exit(5)))
mark("ready")
sleep()
"""
    with guarded(directory, program) as process:
        assert marked_pid(directory, "ready") == process.pid
        assert not process.wait(0.01)
        assert process.running
        assert process.exit_code is None
        process.stop()
        assert marked_pid(directory, "terminated") == process.pid
    assert process.exit_code == 5


@pytest.mark.parametrize(
    ("number", "options", "method"),
    [(signal.SIGTERM, {}, "stop"), (signal.SIGQUIT, {"end": signal.SIGQUIT}, "kill")],
)
def test_a_program_that_ignores_its_end_signal_is_killed_after_the_grace(
    directory: Path, number: signal.Signals, options: dict[str, Any], method: str
) -> None:
    program = f"signal.signal(signal.{number.name}, signal.SIG_IGN); mark('ready'); sleep()"
    with guarded(directory, program, grace_s=0.3, **options) as process:
        marked_pid(directory, "ready")
        began_s = time.monotonic()
        getattr(process, method)()
        assert time.monotonic() - began_s >= 0.3
    assert process.exit_code == -signal.SIGKILL


def test_the_report_is_read_after_the_guard_has_ended(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded(directory, "mark('ready'); sleep()") as process:
        marked_pid(directory, "ready")
        listen = process._listen

        def listen_late(timeout_s: float) -> None:
            process._guard.wait(LONG_S)
            monkeypatch.setattr(process, "_listen", listen)
            if not timeout_s:  # on a busy machine the guard may have ended before
                listen(timeout_s)

        monkeypatch.setattr(process, "_listen", listen_late)
        process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_an_error_inside_the_context_kills_the_program(directory: Path) -> None:
    process = guarded(directory, "mark('ready'); sleep()", grace_s=10 * LONG_S)

    def fail() -> None:
        with process:
            marked_pid(directory, "ready")
            raise RuntimeError("in the lab")

    with pytest.raises(RuntimeError, match="in the lab"):
        fail()
    assert process.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("method", ["stop", "kill"])
def test_a_daemon_of_a_running_program_is_ended(directory: Path, method: str) -> None:
    """A grandchild in its own session, whose parent has ended."""
    with guarded(directory, "forked(daemon); sleep()") as process:
        pid = marked_pid(directory, "daemon")
        assert os.getsid(pid) != os.getsid(process.pid or 0)
        getattr(process, method)()
        assert not exists(pid)


def test_a_daemon_of_an_ended_program_is_ended(directory: Path) -> None:
    program = """
forked(daemon)
while not (directory / "daemon").exists():
    time.sleep(0.001)
"""
    with guarded(directory, program) as process:
        assert process.wait(LONG_S)
        assert process.exit_code == 0
    assert not exists(marked_pid(directory, "daemon"))


def test_a_whole_tree_is_ended(directory: Path) -> None:
    """Children start children in their own sessions, deeper than one sweep reaches."""
    program = """
for depth in range(5):
    mark(f"depth-{depth}")
    if os.fork():
        sleep()
    os.setsid()
mark("deepest")
sleep()
"""
    with guarded(directory, program) as process:
        marked_pid(directory, "deepest")
        process.kill()
        assert remaining_pids(directory) == []


# --- unexpected ends ------------------------------------------------------------------------


def test_orphans_of_a_killed_program_are_ended(directory: Path) -> None:
    """Workers whose arbiter was killed would keep the port."""
    with guarded(directory, "forked(lambda: (mark('orphan'), sleep())); sleep()") as process:
        orphan = marked_pid(directory, "orphan")
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(LONG_S)
        assert process.exit_code == -signal.SIGKILL
    assert not exists(orphan)


HARNESS = """
import os, signal, sys, time
from pathlib import Path
from workerlab.server.process import Guarded
directory = Path(sys.argv[1])
argv = [sys.executable, "-I", "-S", "-c", sys.argv[2], str(directory)]
files = {"cwd": directory.parent, "stdout": directory / "out"}
with Guarded(argv, **files, env=os.environ, grace_s=600, OPTIONS):
    time.sleep(600)
"""


@contextmanager
def harness(directory: Path, program: str, options: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A harness that runs the program below a guard with these options."""
    code = HARNESS.replace("OPTIONS", options)
    argv = [sys.executable, "-c", code, str(directory), PROLOGUE + program]
    with subprocess.Popen(argv, preexec_fn=default_signals) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_death_of_the_harness_ends_all_programs(
    directory: Path, number: signal.Signals
) -> None:
    program = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "forked(daemon); forked(lambda: (mark('child'), sleep())); mark('ready'); sleep()"
    )
    with harness(directory, program) as dying:
        pids = [marked_pid(directory, name) for name in ("daemon", "child", "ready")]
        dying.send_signal(number)
        assert dying.wait(LONG_S) == -number
    wait_for_ends(pids)


def test_an_interrupt_in_the_terminal_reaches_only_the_harness(directory: Path) -> None:
    """Ctrl-C signals the foreground process group, which contains neither guard nor program."""
    with guarded(directory, "mark('ready'); sleep()") as process:
        marked_pid(directory, "ready")
        groups = {os.getpgid(pid) for pid in remaining_pids(directory)}
        assert os.getpgrp() not in groups
        assert len(groups) == 2
        assert process.running


def test_the_death_of_the_guard_is_noticed(directory: Path) -> None:
    with guarded(directory, "mark('ready'); sleep()") as process:
        marked_pid(directory, "ready")
        (guard,) = [pid for pid in remaining_pids(directory) if pid != process.pid]
        os.kill(guard, signal.SIGKILL)
        assert process.wait(LONG_S)
        assert process.exit_code is None
        assert process.cpu_s is None
        os.kill(process.pid or 0, signal.SIGKILL)  # no guard is left to do it


# --- with a data directory, or as another user -------------------------------------------------


@pytest.mark.parametrize("method", ["stop", "kill"])
def test_data_is_removed_without_following_links(directory: Path, method: str) -> None:
    for name in ("data", "elsewhere"):
        (directory / name).mkdir()
        (directory / name / "file").touch()
    program = """
(directory / "link").symlink_to(directory.parent / "elsewhere")
(directory / "deep").mkdir()
mark("deep/ready")
sleep()
"""
    with guarded_with_data(directory, program) as process:
        marked_pid(directory / "data", "deep/ready")
        assert (directory / "data" / "file").exists()
        getattr(process, method)()
        assert not (directory / "data").exists()
    assert (directory / "elsewhere" / "file").exists()


def test_a_program_whose_data_directory_cannot_be_made_is_not_started(directory: Path) -> None:
    with guarded_command(["true"], directory, remove=directory / "not" / "there") as process:
        assert process.wait(LONG_S)
    assert process.pid is None
    assert process.exit_code is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as another user")
def test_root_runs_a_program_as_another_user(stack: ExitStack) -> None:
    """The other user may not be able to read this checkout or its interpreter."""
    base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    base.chmod(0o755)
    data = base / "data"
    nobody = pwd.getpwnam("nobody")
    script = 'id -u; id -g; id -G; echo $$ > "$1/ready"; exec sleep 600'
    argv = ["/bin/sh", "-c", script, "sh", str(data)]
    with guarded_command(argv, data, cwd=base, user="nobody", remove=data) as process:
        assert marked_pid(data, "ready") == process.pid
        groups = os.getgrouplist("nobody", nobody.pw_gid)
        user, group, group_ids = (data / "out").read_text().splitlines()
        assert [int(user), int(group)] == [nobody.pw_uid, nobody.pw_gid]
        assert {int(group_id) for group_id in group_ids.split()} == set(groups)
        assert data.stat().st_uid == nobody.pw_uid
    assert not data.exists()


# --- with another end signal ------------------------------------------------------------------

TIDY = """
import signal
signal.signal(signal.SIGQUIT, lambda *_: (Path(str(directory) + "-tidied").touch(), sys.exit(0)))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mark("ready")
sleep()
"""


@pytest.mark.parametrize("method", ["stop", "kill"])
def test_a_program_with_another_end_signal_may_clean_up(directory: Path, method: str) -> None:
    with guarded_with_data(directory, TIDY, end=signal.SIGQUIT) as process:
        marked_pid(directory / "data", "ready")
        getattr(process, method)()
        assert (directory / "data-tidied").exists()
    assert process.exit_code == 0
    assert not (directory / "data").exists()


def test_the_death_of_the_harness_removes_the_data(directory: Path) -> None:
    data = directory / "data"
    with harness(data, "forked(daemon)\n" + TIDY, "remove=directory, end=signal.SIGQUIT") as dying:
        pids = [marked_pid(data, name) for name in ("daemon", "ready")]
        dying.kill()
        assert dying.wait(LONG_S) == -signal.SIGKILL
    until(lambda: not data.exists(), "its data is removed")
    assert (directory / "data-tidied").exists()
    wait_for_ends(pids)
