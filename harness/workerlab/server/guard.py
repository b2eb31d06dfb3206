"""A process that outlives the harness, to clean up after it.

    harness --(control pipe)--> guard --(fork, own session)--> gunicorn or a load tool

The harness can end without running any `finally`: SIGKILL, an interpreter crash, a lost terminal.
The kernel then closes its end of the control pipe; the guard reads end-of-file and kills all its
descendants. It is a child subreaper (Linux), so orphans of a killed arbiter and daemonised
grandchildren become its children. Rejected: PR_SET_PDEATHSIG (reaches only the direct child;
workers lived on for seconds).

A separate program (`python -I -S guard.py [OPTIONS] GRACE_S OUT ERR PROGRAM ARGS…`) that imports
little, since every trial starts two. It prints lines to stdout: `started PID`, `exited CODE CPU_S
WAIT_S` (a negative code is the signal; CPU seconds of the program and the children it waited for;
seconds that its main thread waited for a core, `-` if unknown), and `cleared` once it has no
descendants. On stdin it reads `stop` (TERM, then KILL after the grace) and end-of-file (KILL).
OPTIONS:

    --as USER      run the program as this user; for root only
    --remove DIR   create it if missing, owned by that user, and remove it with its contents once
                   no descendants are left and the harness has closed stdin: a program's data does
                   not outlive a killed harness, and the harness can read its output until then
    --end SIGNAL   (QUIT, INT, ...) instead of TERM; also sent at end-of-file, with the grace: for
                   programs that leave something behind when killed
"""

import contextlib
import os
import pwd
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

PR_SET_CHILD_SUBREAPER = 36
GIVE_UP_S = 10.0  # a process in uninterruptible sleep cannot be killed


def launch(out: str, err: str, argv: Sequence[str], user: str | None = None) -> int:
    """Fork and exec `argv` in a new session, with its output in files. Returns its pid after the
    exec: a signal between fork and exec would run inherited handlers."""
    read_end, write_end = os.pipe()  # the child's exec closes write_end
    pid = os.fork()
    if pid:
        os.close(write_end)
        os.read(read_end, 1)
        os.close(read_end)
        return pid
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(out, flags, 0o644), 1)
        os.dup2(os.open(err, flags, 0o644), 2)
        if user is not None:  # with only that user's groups
            account = pwd.getpwnam(user)
            if os.geteuid() != account.pw_uid:
                os.initgroups(user, account.pw_gid)
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
        os.execvp(argv[0], list(argv))
    except (OSError, KeyError) as error:
        with contextlib.suppress(OSError):
            os.write(2, f"cannot run {argv[0]}: {error}\n".encode())
    os._exit(127)


def children() -> list[int]:
    """Pids whose parent is this process, including adopted orphans; none without Linux's /proc."""
    own_pid, pids = os.getpid(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                # comm may contain spaces and brackets: the fields start after the last ")"
                if int(stat.read().rpartition(b")")[2].split()[1]) == own_pid:
                    pids.append(int(name))
    return pids


def waited_s(pid: int) -> float | None:
    """Seconds that the main thread waited for a core, even if it is a zombie. Like
    `observe.cpu.waited_ns`, which this program cannot import."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/schedstat", "rb") as file:
        ran, waited, slices = map(int, file.read().split())
        if ran or waited or slices:
            return waited / 1e9
    return None


def send(pid: int, number: int, kill: Callable[[int, int], None] = os.kill) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(pid, number)


class Guard:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self.childless = False

    def reap(self) -> None:
        """Reap all children that have ended; report the end of the guarded program."""
        while True:
            wait_s = waited_s(self.pid) if self.code is None else None
            try:
                pid, status, rusage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.code = os.waitstatus_to_exitcode(status)
                waited = "-" if wait_s is None else f"{wait_s:.6f}"
                say(f"exited {self.code} {rusage.ru_utime + rusage.ru_stime:.6f} {waited}")

    def clear(self) -> None:
        """KILL all descendants. A killed child's own children are adopted, so killing children
        repeatedly reaches every depth."""
        if not self.childless or sys.platform != "linux":  # else the pid may have been reused
            send(self.pid, signal.SIGKILL, os.killpg)
        give_up = time.monotonic() + GIVE_UP_S
        while not self.childless and time.monotonic() < give_up:
            for pid in children():
                send(pid, signal.SIGKILL)
            self.reap()
            if not self.childless:
                time.sleep(0.002)
        say("cleared")


def say(line: str) -> None:
    """Report to the harness, which may have ended."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


def watch(guard: Guard, wakeup: int, grace_s: float, end: int | None = None) -> None:
    """Return when the guarded process has ended or must be killed."""
    deadline: float | None = None
    control = [0]
    while guard.code is None:
        timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([*control, wakeup], [], [], timeout_s)
        if wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
        if 0 in ready:
            message = os.read(0, 4096)
            if not message:  # the harness is gone, or requests a kill
                if end is None:
                    return
                control.clear()
            if (b"stop" in message or not message) and deadline is None:
                deadline = time.monotonic() + grace_s
                send(guard.pid, signal.SIGTERM if end is None else end)
        if deadline is not None and time.monotonic() >= deadline:
            return
        guard.reap()


def make_directory(directory: str, user: str | None) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    if user is not None and os.geteuid() == 0:
        account = pwd.getpwnam(user)
        os.chown(directory, account.pw_uid, account.pw_gid)


def remove_directory(directory: str) -> None:
    """Try to remove it until it is gone: processes that are about to end may still write to it."""
    import shutil

    give_up = time.monotonic() + GIVE_UP_S
    while os.path.lexists(directory) and time.monotonic() < give_up:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.002)


def main(argv: Sequence[str]) -> None:
    options = {}
    while argv[0].startswith("--"):
        options[argv[0]], argv = argv[1], argv[2:]
    user, directory = options.get("--as"), options.get("--remove")
    end = signal.Signals[f"SIG{options['--end']}"] if "--end" in options else None
    grace_s, out, err = float(argv[0]), argv[1], argv[2]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the inherited mask may block SIGCHLD
    wakeup, write_end = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    if sys.platform == "linux":  # adopt orphans; elsewhere, killing the group has to suffice
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        if directory is not None:
            make_directory(directory, user)
        guard = Guard(launch(out, err, argv[3:], user))
        say(f"started {guard.pid}")
        watch(guard, wakeup, grace_s, end)
        guard.clear()
        while directory is not None and os.read(0, 4096):
            pass  # the harness may still read the directory
    finally:
        if directory is not None:
            remove_directory(directory)


if __name__ == "__main__":
    main(sys.argv[1:])
