"""The guard, with real processes: whoever dies, in whatever way, nothing below it is left.

Every program writes its own directory into its command line, so that what is left of it is found.
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
from tests.builders.processes import default_signals
from workerlab.server.process import Guarded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are found through /proc")

ROOT = Path(__file__).resolve().parents[3]

# What the programs below are made of. `told` marks a moment for the test to wait for.
PROLOGUE = """
import os, signal, sys, time
from pathlib import Path
place = Path(sys.argv[1])

def told(what):
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
    told("daemon")
    sleep()
"""


def left_of(place: Path) -> list[int]:
    """Pids, zombies included, of all that was started with `place` among its words: guards too."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(place).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def zombies() -> set[int]:
    """Children of this process that nobody has collected."""
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
    of_others = zombies()
    try:
        yield tmp_path
        until(lambda: not left_of(tmp_path), "nothing left")
        assert zombies() <= of_others
    finally:
        for pid in left_of(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def below_a_guard(argv: list[str], place: Path, **more: Any) -> Guarded:
    files = {"stdout": place / "out", "stderr": place / "err"}
    return Guarded(argv, **{"cwd": place, "env": os.environ, "grace_s": LONG_S, **files, **more})


def guarded(place: Path, text: str, **more: Any) -> Guarded:
    argv = [sys.executable, "-I", "-S", "-c", PROLOGUE + text, str(place)]
    return below_a_guard(argv, place, **more)


def with_data(place: Path, text: str, **more: Any) -> Guarded:
    """In a directory that goes with it."""
    return guarded(place / "data", text, cwd=place, remove=place / "data", **more)


def told(place: Path, what: str) -> int:
    """The pid that said `what`, as soon as it has."""
    path = place / what
    return int(until(lambda: path.exists() and path.read_text(), what))


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


# --- ends of its own ------------------------------------------------------------------------


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
def test_how_it_ended(place: Path, text: str, code: int) -> None:
    with guarded(place, text) as process:
        assert process.wait(LONG_S)
        assert not process.running
    assert process.exit_code == code


SPIN = "while time.process_time() < 0.3: pass\n"


@pytest.mark.parametrize(
    ("text", "used_s"),
    [
        (SPIN, 0.3),
        # A child that was awaited counts, one that was not does not
        ("pid = os.fork()\n" + SPIN + "pid and os.waitpid(pid, 0)", 0.6),
        (SPIN + "os.kill(os.getpid(), signal.SIGKILL)", 0.3),
    ],
)
def test_what_cpu_it_used(place: Path, text: str, used_s: float) -> None:
    began = time.monotonic()
    with guarded(place, text) as process:
        assert process.cpu_s is None
        assert process.wait(LONG_S)
    assert process.cpu_s is not None
    # A scheduler may charge a fork's first moments to the parent; two computed at most
    assert used_s * 0.97 <= process.cpu_s <= 2 * (time.monotonic() - began)


def test_what_a_killed_one_used(place: Path) -> None:
    with guarded(place, SPIN + "told('ready'); sleep()") as process:
        told(place, "ready")
        process.kill()
    assert process.cpu_s is not None
    assert process.cpu_s >= 0.29


def test_its_output_stands_in_files(place: Path) -> None:
    with guarded(place, "print('said'); print('cried', file=sys.stderr)") as process:
        assert process.wait(LONG_S)
    assert (place / "out").read_text() == "said\n"
    assert (place / "err").read_text() == "cried\n"


def test_a_program_that_does_not_exist(place: Path) -> None:
    with below_a_guard([str(place / "no such program"), "x"], place) as process:
        assert process.wait(LONG_S)
    assert process.exit_code == 127
    assert "no such program" in (place / "err").read_text()


def test_waiting_gives_up_in_time(place: Path) -> None:
    with guarded(place, "sleep()") as process:
        assert not process.wait(0.01)
        assert process.running
        assert process.exit_code is None


def test_signals_are_as_a_program_expects_them(place: Path) -> None:
    """The guard ignores what would end it, and its parent may ignore and block more; what it runs
    must not inherit that."""
    text = """
names = {name for name in ("HUP", "QUIT", "TERM", "CHLD", "USR1", "INT", "PIPE")
         if signal.getsignal(getattr(signal, "SIG" + name)) != signal.SIG_DFL}
print(sorted(names), signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.getpgrp())
"""
    ignored = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    kept = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
    try:
        process = guarded(place, text)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(ignored, kept, strict=True):
            signal.signal(number, handler)
    with process:
        assert process.wait(LONG_S)
    # Python itself handles SIGINT and ignores SIGPIPE
    assert (place / "out").read_text() == f"['INT', 'PIPE'] set() {process.pid}\n"


# --- ends at our wish -----------------------------------------------------------------------


def test_stop_is_a_term(place: Path) -> None:
    text = """
signal.signal(signal.SIGTERM, lambda *_: (told("terminated"), sys.exit(5)))
told("ready")
sleep()
"""
    with guarded(place, text) as process:
        assert told(place, "ready") == process.pid
        process.stop()
        assert told(place, "terminated") == process.pid
    assert process.exit_code == 5


def test_who_ignores_term_is_killed_after_the_grace(place: Path) -> None:
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN); told('ready'); sleep()"
    with guarded(place, text, grace_s=0.3) as process:
        told(place, "ready")
        began = time.monotonic()
        process.stop()
        assert time.monotonic() - began >= 0.3
    assert process.exit_code == -signal.SIGKILL


def test_kill_does_not_wait_for_the_grace(place: Path) -> None:
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN); told('ready'); sleep()"
    with guarded(place, text, grace_s=10 * LONG_S) as process:
        told(place, "ready")
        process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_last_words_are_heard_where_the_guard_has_gone_already(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing said yet, then all of it at once, and the guard is gone before anybody listens."""
    with guarded(place, "told('ready'); sleep()") as process:
        told(place, "ready")
        listen = process._listen

        def late(timeout_s: float) -> None:
            process._guard.wait(LONG_S)
            monkeypatch.setattr(process, "_listen", listen)
            if not timeout_s:  # on a busy machine it has gone before anybody waits for it
                listen(timeout_s)

        monkeypatch.setattr(process, "_listen", late)
        process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_an_error_inside_the_context_kills(place: Path) -> None:
    process = guarded(place, "told('ready'); sleep()", grace_s=10 * LONG_S)

    def fail() -> None:
        with process:
            told(place, "ready")
            raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        fail()
    assert process.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_daemons_are_found(place: Path, how: str) -> None:
    """A grandchild in a session of its own, whose parent has gone."""
    with guarded(place, "forked(daemon); sleep()") as process:
        pid = told(place, "daemon")
        assert os.getsid(pid) != os.getsid(process.pid or 0)
        getattr(process, how)()
        assert gone(pid)


def test_daemons_of_a_program_that_has_ended_are_found(place: Path) -> None:
    text = """
forked(daemon)
while not (place / "daemon").exists():
    time.sleep(0.001)
"""
    with guarded(place, text) as process:
        assert process.wait(LONG_S)
        assert process.exit_code == 0
    assert gone(told(place, "daemon"))


def test_a_whole_tree_goes(place: Path) -> None:
    """Children that start children in sessions of their own, deeper than one sweep reaches."""
    text = """
for depth in range(5):
    told(f"depth-{depth}")
    if os.fork():
        sleep()
    os.setsid()
told("deepest")
sleep()
"""
    with guarded(place, text) as process:
        told(place, "deepest")
        process.kill()
        assert left_of(place) == []


# --- ends that nobody wished ----------------------------------------------------------------


def test_orphans_of_a_killed_program_are_cleared(place: Path) -> None:
    """As workers whose arbiter was killed: nobody tells them, and they keep the port."""
    with guarded(place, "forked(lambda: (told('orphan'), sleep())); sleep()") as process:
        orphan = told(place, "orphan")
        assert process.pid is not None
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
def harness(place: Path, program: str, more: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """`more`: further arguments of its guard."""
    words = [HARNESS.replace("MORE", more), str(place), PROLOGUE + program]
    argv = [sys.executable, "-c", *words]
    with subprocess.Popen(argv, cwd=ROOT, preexec_fn=default_signals) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_death_of_the_harness_clears_all(place: Path, number: signal.Signals) -> None:
    program = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "forked(daemon); forked(lambda: (told('child'), sleep())); told('ready'); sleep()"
    )
    with harness(place, program) as dying:
        pids = [told(place, what) for what in ("daemon", "child", "ready")]
        dying.send_signal(number)
        assert dying.wait(LONG_S) == -number
    for pid in pids:
        until(lambda pid=pid: gone(pid), "a process of a dead harness ends")


def test_an_interrupt_in_the_terminal_reaches_the_harness_alone(place: Path) -> None:
    """Ctrl-C goes to the whole foreground group: guard and program stand outside it."""
    with guarded(place, "told('ready'); sleep()") as process:
        told(place, "ready")
        groups = {os.getpgid(pid) for pid in left_of(place)}
        assert os.getpgrp() not in groups
        assert len(groups) == 2
        assert process.running


def test_the_death_of_the_guard_is_noticed(place: Path) -> None:
    with guarded(place, "told('ready'); sleep()") as process:
        told(place, "ready")
        (guard,) = [pid for pid in left_of(place) if pid != process.pid]
        os.kill(guard, signal.SIGKILL)
        assert process.wait(LONG_S)
        assert process.exit_code is None
        assert process.cpu_s is None
        os.kill(process.pid or 0, signal.SIGKILL)  # nobody else can any more


# --- as another user, with data of its own ----------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_its_data_goes_with_it(place: Path, how: str) -> None:
    with with_data(
        place, "told('ready'); (place / 'deep' / 'er').mkdir(parents=True); sleep()"
    ) as it:
        told(place / "data", "ready")
        until((place / "data" / "deep" / "er").exists, "there is something to remove")
        getattr(it, how)()
        assert not (place / "data").exists()


def test_data_of_a_program_that_has_ended_goes_too(place: Path) -> None:
    with with_data(place, "sys.exit(3)") as it:
        assert it.wait(LONG_S)
    assert it.exit_code == 3
    assert not (place / "data").exists()


def test_a_directory_that_was_there_goes_as_well(place: Path) -> None:
    (place / "data").mkdir()
    (place / "data" / "mine").touch()
    with with_data(place, "told('ready'); sleep()"):
        told(place / "data", "ready")
        assert (place / "data" / "mine").exists()
    assert not (place / "data").exists()


def test_nothing_but_its_data_goes(place: Path) -> None:
    """A link in it to what lies elsewhere is removed, not followed."""
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "kept").touch()
    text = "(place / 'link').symlink_to(place.parent / 'elsewhere'); told('ready'); sleep()"
    with with_data(place, text):
        told(place / "data", "ready")
    assert not (place / "data").exists()
    assert (place / "elsewhere" / "kept").exists()


def test_a_directory_that_cannot_be_made(place: Path) -> None:
    with below_a_guard(["true"], place, remove=place / "not" / "there") as it:
        assert it.wait(LONG_S)
    assert it.pid is None
    assert it.exit_code is None


root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as somebody else")


@root
def test_root_runs_it_as_somebody_else(stack: ExitStack) -> None:
    """In a directory anybody may enter, and with a program anybody may run: this checkout and its
    interpreter need not be."""
    base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    base.chmod(0o755)
    data = base / "data"
    nobody = pwd.getpwnam("nobody")
    script = 'id -u; id -g; id -G; echo $$ > "$1/ready"; exec sleep 600'
    argv = ["/bin/sh", "-c", script, "sh", str(data)]
    with below_a_guard(argv, data, cwd=base, user="nobody", remove=data) as it:
        assert told(data, "ready") == it.pid
        groups = os.getgrouplist("nobody", nobody.pw_gid)
        user, group, of_these = (data / "out").read_text().splitlines()
        assert [int(user), int(group)] == [nobody.pw_uid, nobody.pw_gid]
        assert {int(word) for word in of_these.split()} == set(groups)
        assert data.stat().st_uid == nobody.pw_uid
    assert not data.exists()


def test_a_user_that_does_not_exist(place: Path) -> None:
    with below_a_guard(["true"], place, user="no-such-user") as it:
        assert it.wait(LONG_S)
    assert it.exit_code == 127
    assert "no-such-user" in (place / "err").read_text()


# --- with a signal of its own to end it -------------------------------------------------------

TIDY = """
import signal
signal.signal(signal.SIGQUIT, lambda *_: (Path(str(place) + "-tidied").touch(), sys.exit(0)))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
told("ready")
sleep()
"""


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_one_that_would_leave_something_behind_is_never_just_killed(place: Path, how: str) -> None:
    with with_data(place, TIDY, end=signal.SIGQUIT) as it:
        told(place / "data", "ready")
        getattr(it, how)()
        assert (place / "data-tidied").exists()
    assert it.exit_code == 0
    assert not (place / "data").exists()


def test_one_that_does_not_heed_its_signal_is_killed_after_the_grace(place: Path) -> None:
    text = "signal.signal(signal.SIGQUIT, signal.SIG_IGN); told('ready'); sleep()"
    with guarded(place, text, grace_s=0.3, end=signal.SIGQUIT) as it:
        told(place, "ready")
        began = time.monotonic()
        it.kill()
        assert time.monotonic() - began >= 0.3
    assert it.exit_code == -signal.SIGKILL


def test_the_death_of_the_harness_takes_the_data_along(place: Path) -> None:
    data = place / "data"
    with harness(data, "forked(daemon)\n" + TIDY, "remove=place, end=signal.SIGQUIT") as dying:
        pids = [told(data, what) for what in ("daemon", "ready")]
        dying.kill()
        assert dying.wait(LONG_S) == -signal.SIGKILL
    until(lambda: not (place / "data").exists(), "its data is gone")
    assert (place / "data-tidied").exists()
    for pid in pids:
        until(lambda pid=pid: gone(pid), "a process of a dead harness ends")
