"""The guard, with real processes: whichever process dies, nothing below it is left.

Each program has its directory among its arguments, by which remaining processes are found.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.builders.conditions import LONG_S, until
from tests.builders.processes import default_signals, running, send
from workerlab.server.process import Guarded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are found through /proc")

ROOT = Path(__file__).resolve().parents[3]

# The start of each program below. `mark` creates a file that the test waits for.
PROLOGUE = """
import os, signal, sys, time
from pathlib import Path
place = Path(sys.argv[1])

def mark(what):
    (place / what).write_text(str(os.getpid()))

def forked(then):
    if os.fork() == 0:
        then()
        os._exit(0)

def sleep():
    while True:
        time.sleep(0.02)  # Python runs no handler of a signal that comes just before a sleep

def daemon():
    os.setsid()
    if os.fork():
        os._exit(0)
    mark("daemon")
    sleep()
"""


def left_of(place: Path) -> list[int]:
    """Pids of all processes with `place` among their arguments, guards included."""
    return [process.pid for process in running(str(place))]


def zombies() -> set[int]:
    """Children of this process that have not been waited for."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) == os.getpid():
                    pids.add(int(entry.name))
    return pids


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory whose programs must all be gone after the test."""
    before = zombies()
    try:
        yield tmp_path
        until(lambda: not left_of(tmp_path), "nothing left")
        assert zombies() <= before
    finally:
        send(left_of(tmp_path), signal.SIGKILL)


def below_a_guard(argv: list[str], place: Path, **more: Any) -> Guarded:
    files = {"stdout": place / "out", "stderr": place / "err"}
    return Guarded(argv, **{"cwd": place, "env": os.environ, "grace_s": LONG_S, **files, **more})


def guarded(place: Path, text: str, **more: Any) -> Guarded:
    argv = [sys.executable, "-I", "-S", "-c", PROLOGUE + text, str(place)]
    return below_a_guard(argv, place, **more)


def with_data(place: Path, text: str, **more: Any) -> Guarded:
    """With a data directory that is removed at its end."""
    return guarded(place / "data", text, cwd=place, remove=place / "data", **more)


def marked_pid(place: Path, what: str) -> int:
    """The pid of the process that marked `what`, once it has."""
    path = place / what
    return int(until(lambda: path.exists() and path.read_text(), what))


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


# --- programs that end by themselves --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
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
    place: Path, text: str, code: int
) -> None:
    with with_data(place, text) as process:
        assert process.wait(LONG_S)
        assert not process.running
    assert process.exit_code == code
    assert not (place / "data").exists()


SPIN = "while time.process_time() < 0.3: pass\n"


@pytest.mark.parametrize(
    ("text", "used_s"),
    [
        (SPIN, 0.3),
        # Only a child that was waited for counts
        ("pid = os.fork()\n" + SPIN + "pid and os.waitpid(pid, 0)", 0.6),
        (SPIN + "os.kill(os.getpid(), signal.SIGKILL)", 0.3),
    ],
)
def test_cpu_of_a_program(place: Path, text: str, used_s: float) -> None:
    began = time.monotonic()
    with guarded(place, text) as process:
        assert process.cpu_s is None
        assert process.wait(LONG_S)
    # The first moments of a fork may be charged to the parent; at most two processes compute
    assert used_s * 0.97 <= process.cpu_s <= 2 * (time.monotonic() - began)


def test_cpu_of_a_killed_program(place: Path) -> None:
    with guarded(place, SPIN + "mark('ready'); sleep()") as process:
        marked_pid(place, "ready")
        process.kill()
    assert process.cpu_s >= 0.29


def test_output_goes_to_files(place: Path) -> None:
    with guarded(place, "print('out'); print('error', file=sys.stderr)") as process:
        assert process.wait(LONG_S)
    assert (place / "out").read_text() == "out\n"
    assert (place / "err").read_text() == "error\n"


@pytest.mark.parametrize(
    ("program", "options"),
    [("no-such-program", {}), ("true", {"user": "no-such-user"})],
    ids=["program", "user"],
)
def test_a_program_or_user_that_does_not_exist(
    place: Path, program: str, options: dict[str, Any]
) -> None:
    with below_a_guard([program], place, **options) as process:
        assert process.wait(LONG_S)
    assert process.exit_code == 127
    assert options.get("user", program) in (place / "err").read_text()


def test_a_program_has_default_signals(place: Path) -> None:
    """The guard ignores signals that would end it, and its parent may ignore and block more; the
    program must not inherit that."""
    text = """
names = {name for name in ("HUP", "QUIT", "TERM", "CHLD", "USR1", "INT", "PIPE")
         if signal.getsignal(getattr(signal, "SIG" + name)) != signal.SIG_DFL}
print(sorted(names), signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.getpgrp())
"""
    ignored = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
    try:
        process = guarded(place, text)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(ignored, handlers, strict=True):
            signal.signal(number, handler)
    with process:
        assert process.wait(LONG_S)
    # Python itself handles SIGINT and ignores SIGPIPE
    assert (place / "out").read_text() == f"['INT', 'PIPE'] set() {process.pid}\n"


# --- ended by the harness -------------------------------------------------------------------


def test_a_program_runs_until_it_is_stopped_by_a_term(place: Path) -> None:
    text = """
signal.signal(signal.SIGTERM, lambda *_: (mark("terminated"), sys.exit(5)))
mark("ready")
sleep()
"""
    with guarded(place, text) as process:
        assert marked_pid(place, "ready") == process.pid
        assert not process.wait(0.01)
        assert process.running
        assert process.exit_code is None
        process.stop()
        assert marked_pid(place, "terminated") == process.pid
    assert process.exit_code == 5


@pytest.mark.parametrize(
    ("number", "options", "how"),
    [(signal.SIGTERM, {}, "stop"), (signal.SIGQUIT, {"end": signal.SIGQUIT}, "kill")],
)
def test_a_program_that_ignores_its_end_signal_is_killed_after_the_grace(
    place: Path, number: signal.Signals, options: dict[str, Any], how: str
) -> None:
    text = f"signal.signal(signal.{number.name}, signal.SIG_IGN); mark('ready'); sleep()"
    with guarded(place, text, grace_s=0.3, **options) as process:
        marked_pid(place, "ready")
        began = time.monotonic()
        getattr(process, how)()
        assert time.monotonic() - began >= 0.3
    assert process.exit_code == -signal.SIGKILL


def test_the_report_of_a_guard_that_has_ended_is_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard has reported and ended before its report is read."""
    with guarded(place, "mark('ready'); sleep()") as process:
        marked_pid(place, "ready")
        listen = process._listen

        def late(timeout_s: float) -> None:
            process._guard.wait(LONG_S)
            monkeypatch.setattr(process, "_listen", listen)
            if not timeout_s:  # on a busy machine it may be gone before it is waited for
                listen(timeout_s)

        monkeypatch.setattr(process, "_listen", late)
        process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_an_error_inside_the_context_kills_the_program(place: Path) -> None:
    process = guarded(place, "mark('ready'); sleep()", grace_s=10 * LONG_S)

    def fail() -> None:
        with process:
            marked_pid(place, "ready")
            raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        fail()
    assert process.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_daemons_are_ended(place: Path, how: str) -> None:
    """A grandchild in a session of its own, whose parent has gone."""
    with guarded(place, "forked(daemon); sleep()") as process:
        pid = marked_pid(place, "daemon")
        assert os.getsid(pid) != os.getsid(process.pid or 0)
        getattr(process, how)()
        assert gone(pid)


def test_daemons_of_an_ended_program_are_ended(place: Path) -> None:
    text = """
forked(daemon)
while not (place / "daemon").exists():
    time.sleep(0.001)
"""
    with guarded(place, text) as process:
        assert process.wait(LONG_S)
        assert process.exit_code == 0
    assert gone(marked_pid(place, "daemon"))


def test_a_whole_tree_is_ended(place: Path) -> None:
    """Children that start children in sessions of their own, deeper than one sweep reaches."""
    text = """
for depth in range(5):
    mark(f"depth-{depth}")
    if os.fork():
        sleep()
    os.setsid()
mark("deepest")
sleep()
"""
    with guarded(place, text) as process:
        marked_pid(place, "deepest")
        process.kill()
        assert left_of(place) == []


# --- unexpected ends ------------------------------------------------------------------------


def test_orphans_of_a_killed_program_are_ended(place: Path) -> None:
    """Like workers whose arbiter was killed: they would keep the port."""
    with guarded(place, "forked(lambda: (mark('orphan'), sleep())); sleep()") as process:
        orphan = marked_pid(place, "orphan")
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(LONG_S)
        assert process.exit_code == -signal.SIGKILL
    assert gone(orphan)


HARNESS = """
import os, signal, sys, time
from pathlib import Path
from workerlab.server.process import Guarded
place = Path(sys.argv[1])
argv = [sys.executable, "-I", "-S", "-c", sys.argv[2], str(place)]
with Guarded(argv, cwd=place.parent, env=os.environ, stdout=place / "out", grace_s=600, MORE):
    time.sleep(600)
"""


@contextlib.contextmanager
def harness(place: Path, program: str, options: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A harness with that program below a guard with those options."""
    arguments = [HARNESS.replace("MORE", options), str(place), PROLOGUE + program]
    argv = [sys.executable, "-c", *arguments]
    with subprocess.Popen(argv, cwd=ROOT, preexec_fn=default_signals) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_death_of_the_harness_ends_all(place: Path, number: signal.Signals) -> None:
    program = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "forked(daemon); forked(lambda: (mark('child'), sleep())); mark('ready'); sleep()"
    )
    with harness(place, program) as dying:
        pids = [marked_pid(place, what) for what in ("daemon", "child", "ready")]
        dying.send_signal(number)
        assert dying.wait(LONG_S) == -number
    for pid in pids:
        until(lambda pid=pid: gone(pid), "a process of a dead harness ends")


def test_an_interrupt_in_the_terminal_reaches_the_harness_alone(place: Path) -> None:
    """Ctrl-C goes to the whole foreground group: guard and program stand outside it."""
    with guarded(place, "mark('ready'); sleep()") as process:
        marked_pid(place, "ready")
        groups = {os.getpgid(pid) for pid in left_of(place)}
        assert os.getpgrp() not in groups
        assert len(groups) == 2
        assert process.running


def test_the_death_of_the_guard_is_noticed(place: Path) -> None:
    with guarded(place, "mark('ready'); sleep()") as process:
        marked_pid(place, "ready")
        (guard,) = [pid for pid in left_of(place) if pid != process.pid]
        os.kill(guard, signal.SIGKILL)
        assert process.wait(LONG_S)
        assert process.exit_code is None
        assert process.cpu_s is None
        os.kill(process.pid or 0, signal.SIGKILL)  # there is no guard to do it


# --- as another user, with data of its own ----------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_its_data_is_removed(place: Path, how: str) -> None:
    with with_data(place, "(place / 'deep').mkdir(); mark('deep/ready'); sleep()") as process:
        marked_pid(place / "data", "deep/ready")
        getattr(process, how)()
        assert not (place / "data").exists()


def test_an_existing_data_directory_is_removed_and_nothing_else(place: Path) -> None:
    """A link in it is removed, not followed."""
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "kept").touch()
    (place / "data").mkdir()
    (place / "data" / "file").touch()
    text = "(place / 'link').symlink_to(place.parent / 'elsewhere'); mark('ready'); sleep()"
    with with_data(place, text):
        marked_pid(place / "data", "ready")
        assert (place / "data" / "file").exists()
    assert not (place / "data").exists()
    assert (place / "elsewhere" / "kept").exists()


def test_a_data_directory_that_cannot_be_made(place: Path) -> None:
    with below_a_guard(["true"], place, remove=place / "not" / "there") as process:
        assert process.wait(LONG_S)
    assert process.pid is None
    assert process.exit_code is None


root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as another user")


@root
def test_root_runs_it_as_another_user(stack: ExitStack) -> None:
    """In a directory and with a program open to all users, which this checkout and its interpreter
    may not be."""
    base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    base.chmod(0o755)
    data = base / "data"
    nobody = pwd.getpwnam("nobody")
    script = 'id -u; id -g; id -G; echo $$ > "$1/ready"; exec sleep 600'
    argv = ["/bin/sh", "-c", script, "sh", str(data)]
    with below_a_guard(argv, data, cwd=base, user="nobody", remove=data) as process:
        assert marked_pid(data, "ready") == process.pid
        groups = os.getgrouplist("nobody", nobody.pw_gid)
        user, group, group_ids = (data / "out").read_text().splitlines()
        assert [int(user), int(group)] == [nobody.pw_uid, nobody.pw_gid]
        assert {int(group_id) for group_id in group_ids.split()} == set(groups)
        assert data.stat().st_uid == nobody.pw_uid
    assert not data.exists()


# --- with an end signal of its own ------------------------------------------------------------

TIDY = """
import signal
signal.signal(signal.SIGQUIT, lambda *_: (Path(str(place) + "-tidied").touch(), sys.exit(0)))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mark("ready")
sleep()
"""


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_program_with_an_end_signal_may_clean_up(place: Path, how: str) -> None:
    with with_data(place, TIDY, end=signal.SIGQUIT) as process:
        marked_pid(place / "data", "ready")
        getattr(process, how)()
        assert (place / "data-tidied").exists()
    assert process.exit_code == 0
    assert not (place / "data").exists()


def test_the_death_of_the_harness_removes_the_data(place: Path) -> None:
    data = place / "data"
    with harness(data, "forked(daemon)\n" + TIDY, "remove=place, end=signal.SIGQUIT") as dying:
        pids = [marked_pid(data, what) for what in ("daemon", "ready")]
        dying.kill()
        assert dying.wait(LONG_S) == -signal.SIGKILL
    until(lambda: not (place / "data").exists(), "its data is gone")
    assert (place / "data-tidied").exists()
    for pid in pids:
        until(lambda pid=pid: gone(pid), "a process of a dead harness ends")
