"""Finds the line of the app that holds up the worker's event loop: a thread samples the loop's
stack a hundred times a second. Stdlib only, syntax of Python 3.10, loaded like the probe.

Beats show whether the loop is held up, and whether by a call that sleeps (`heartbeat`). This thread
only finds the line: the deepest frame of the app, what it calls there, and what the loop has done
since its last beat. A loop that beats on time is not held up, whatever it runs; so each sample
records how long the beat is overdue, and for how long without a beat the same call of the app has
been on the stack (`stuck`).

Sampling needs the GIL. A computing loop releases it at the end of a switch interval, or when it
makes a call that gives it up. With the default of 5 ms, short bursts would be attributed to the
next such call, so the interval is shortened. During a call that holds the GIL no sample is
possible: the next one is late, by more than its wait for a core, and finds the loop on the line of
that call, since the interpreter hands over the GIL as soon as the call returns.

Sampling costs a few per cent of a core, and a short interval makes threads switch more often, so it
has a trial of its own, in one worker. Samples are stored in a ring buffer in a shared memory map,
like beats; lines are written to a file when first seen, at most MAX_LINES of them.

Rejected: a signal (its handler runs in the thread that sleeps in a call, and ends that call early),
py-spy (needs ptrace), `sys.setprofile` (slows every call), whole stacks (too many different ones).
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import site
import sys
import sysconfig
import time

# The originals: gevent and eventlet patch them later, and a greenlet would not run while the loop
# is held up
from _thread import start_new_thread
from itertools import islice
from os import pread, write
from time import clock_gettime_ns, process_time_ns, sleep
from time import monotonic_ns as now
from types import CodeType, FrameType
from typing import Any

from .families import LOOP_DIRECTORIES
from .maps import STACKS, Ring
from .waits import SCHEDSTAT, queued_ns

RECORDS = 1 << 15  # five minutes
SAMPLE_INTERVAL_NS = 10_000_000
BEAT_NS = 5_000_000  # between beats, while stacks are sampled
SWITCH_INTERVAL_S = 0.0005
LATE_NS = 3_000_000  # if a sample is later than this, some thread may have held the GIL
MAX_LINES = 1000
IDLE, OTHER = 0, 1  # reserved numbers: IDLE, no line (the loop itself); OTHER, beyond MAX_LINES
HERE = os.path.dirname(os.path.realpath(__file__))
# The loop itself: its callers are not part of a request, and a loop in these files is idle
LOOPS = re.compile(r"/(asyncio/(base_events|events|runners|unix_events)|selectors)\.py$")
HUBS = re.compile(rf"/({'|'.join(LOOP_DIRECTORIES)})/[^/]+\.py$")
CALL = re.compile(rb"([A-Za-z_][\w.]*)\s*\(")


class Files:
    """Classifies files: the app's, a library's, or the loop's."""

    def __init__(self, chdir: str, target: str) -> None:
        self.chdir = os.path.realpath(chdir)
        self.package = package_of(target)
        paths = sysconfig.get_paths()
        self.stdlib = [os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")]
        sites = [paths["purelib"], paths["platlib"], *site.getsitepackages()]
        self.sites = [os.path.realpath(path) for path in (*sites, site.getusersitepackages())]
        self.outside = [*self.stdlib, *self.sites]
        prefix = os.path.realpath(sys.prefix)
        if sys.prefix != sys.base_prefix and not is_below(self.chdir, prefix):
            self.outside.append(prefix)  # a virtual environment, perhaps in the app's directory
        self.by_name: dict[str, tuple[str, str]] = {}

    def of(self, code: CodeType) -> tuple[str, str]:
        """(kind, name to show) of a file; kinds are "app", "library", "stdlib" and "loop"."""
        name = code.co_filename
        if name not in self.by_name:
            self.by_name[name] = self._look_up(name)
        return self.by_name[name]

    def _look_up(self, name: str) -> tuple[str, str]:
        path = os.path.realpath(name)
        if os.path.dirname(path) == HERE or LOOPS.search(path) or HUBS.search(path):
            return "loop", path
        if self.package and (path == self.package or is_below(path, self.package)):
            home = self.chdir if is_below(path, self.chdir) else os.path.dirname(self.package)
            return "app", os.path.relpath(path, home)
        if name.startswith("<") or "/site-packages/" in path or "/dist-packages/" in path:
            package_path = path.rpartition("-packages/")[2]
            return ("stdlib", name) if name.startswith("<") else ("library", package_path)
        for kind, directories in (("library", self.sites), ("stdlib", self.outside)):
            for directory in directories:
                if is_below(path, directory):
                    return kind, os.path.relpath(path, directory)
        if is_below(path, self.chdir):
            return "app", os.path.relpath(path, self.chdir)
        return "library", path


def is_below(path: str, place: str) -> bool:
    return path.startswith(place.rstrip("/") + "/")


def package_of(target: str) -> str:
    """The directory of the app's package, or the file of its module; "" if it has none."""
    module = target.partition(":")[0]
    top = sys.modules.get(module.partition(".")[0])
    paths = list(getattr(top, "__path__", ()))
    path = paths[0] if len(paths) == 1 else getattr(top, "__file__", None)
    return os.path.realpath(path) if path else ""


def name_of(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)


def called_by(frame: FrameType) -> str:
    """The name of the function that this frame is calling, as in its source; "" if it is unknown.
    Omits the arguments, which may be secrets."""
    code, number = frame.f_code, frame.f_lineno or 0
    lines = [line.encode() for line in linecache.getlines(code.co_filename)]
    if not 0 < number <= len(lines):
        return ""
    if not hasattr(code, "co_positions"):  # before Python 3.11
        names = CALL.findall(lines[number - 1])
        return names[0].decode() if len(names) == 1 else ""
    first, last, begin, end = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    if first is None or last is None or begin is None or end is None:
        return ""
    text = lines[first - 1][begin:] if last > first else lines[first - 1][begin:end]
    match = CALL.match(text)
    return match[1].decode() if match else ""


class StackSampler:
    """Samples the thread `loop`, whose beats are those of `heart`."""

    def __init__(self, heart: Any, loop: int, files: Files, ring: Ring, lines_fd: int) -> None:
        self.heart, self.loop, self.files = heart, loop, files
        self.ring, self.lines_fd = ring, lines_fd
        self.numbers: dict[tuple[CodeType, int, CodeType], int] = {}
        self.stopped = False
        self.outermost: FrameType | None = None  # frame of the app in the last sample
        self.seen_at = self.seen_beat = 0
        self.thread_cpu: dict[int, int] = {}  # CPU of other threads, by native id

    def run(self) -> None:
        while not self.heart.due:
            sleep(SAMPLE_INTERVAL_NS / 1e9)
        handle = os.open(SCHEDSTAT, os.O_RDONLY)
        clock = time.pthread_getcpuclockid(self.loop)  # on some systems only, like beats
        loop = os.open(f"/proc/self/task/{os.getpid()}/stat", os.O_RDONLY)  # of the main thread
        own_wait, loop_wait = queued_ns(handle), queued_ns(self.heart.schedstat)
        loop_cpu, cpu = clock_gettime_ns(clock), process_time_ns()
        last, due = now(), now() + SAMPLE_INTERVAL_NS
        while not self.stopped:
            sleep(max(0, due - now()) / 1e9)
            # Nothing may release the GIL until all of this is read
            at, heart, frames = now(), self.heart, sys._current_frames()
            previous = loop_cpu, cpu, own_wait, loop_wait
            loop_cpu, cpu = clock_gettime_ns(clock), process_time_ns()
            beat, beat_due, beat_loop_cpu = heart.at, heart.due, heart.cpu
            beat_cpu, beat_loop_wait = heart.process_cpu, heart.core_wait
            number, stuck = self.locate(frames.pop(self.loop, None), at, beat)
            other = self.gil_holder(frames) if at - due > LATE_NS else IDLE
            frames.clear()  # or they would keep the app's objects alive
            sleeps = state(loop) in b"SD"
            own_wait, loop_wait = queued_ns(handle), queued_ns(heart.schedstat)
            ran, ran_since_beat = loop_cpu - previous[0], loop_cpu - beat_loop_cpu
            overdue = at - beat_due if beat_due > beat else 0  # else a beat is in progress
            deltas = at - last, own_wait - previous[2], ran, loop_wait - previous[3]
            others_cpu = cpu - previous[1] - ran
            beat_others_cpu = cpu - beat_cpu - ran_since_beat
            beat_deltas = at - beat, ran_since_beat, loop_wait - beat_loop_wait, beat_others_cpu
            line_values = stuck, sleeps, number, other
            sample = (at, *deltas, others_cpu, at - due, overdue, *beat_deltas, *line_values)
            self.ring.write(*sample)
            last = at
            due = max(due + SAMPLE_INTERVAL_NS, now() + SAMPLE_INTERVAL_NS // 10)

    def locate(self, frame: FrameType | None, at: int, beat: int) -> tuple[int, int]:
        """(number of the line, time for which the same call of the app has been on the stack)."""
        deepest, outermost, library = self.frames_of(frame)
        if outermost is None or outermost is not self.outermost or beat != self.seen_beat:
            self.outermost, self.seen_at, self.seen_beat = outermost, at, beat
        line_frame = deepest or library
        if line_frame is None or frame is None:
            return IDLE, 0
        return self.number(line_frame, frame), at - self.seen_at

    def frames_of(
        self, frame: FrameType | None
    ) -> tuple[FrameType | None, FrameType | None, FrameType | None]:
        """The app's deepest and outermost frame, and a library's deepest, on the stack of
        `frame`."""
        deepest, outermost, library = None, None, None
        while frame is not None and not LOOPS.search(frame.f_code.co_filename):
            kind, _ = self.files.of(frame.f_code)
            if kind == "app":
                deepest, outermost = deepest or frame, frame
            elif kind == "library":
                library = library or frame
            frame = frame.f_back
        return deepest, outermost, library

    def gil_holder(self, frames: dict[int, FrameType]) -> int:
        """The line of the other thread that used the most CPU since the last call: it may have held
        the GIL, and just released it."""
        threads: Any = getattr(sys.modules.get("threading"), "_active", {})
        max_cpu, number, previous = 0, IDLE, self.thread_cpu
        self.thread_cpu = {}
        for ident, frame in frames.items():
            deepest, _, library = self.frames_of(frame)
            line_frame, thread = deepest or library, threads.get(ident)
            native = getattr(thread, "native_id", None)
            if line_frame is None or native is None:
                continue
            with contextlib.suppress(OSError), open(f"/proc/self/task/{native}/schedstat") as file:
                self.thread_cpu[native] = int(file.read().split()[0])
            cpu = self.thread_cpu.get(native, 0) - previous.get(native, 0)
            if cpu > max_cpu:
                max_cpu, number = cpu, self.number(line_frame, frame)
        return number

    def number(self, line_frame: FrameType, innermost: FrameType) -> int:
        key = line_frame.f_code, line_frame.f_lineno or 0, innermost.f_code
        number = self.numbers.get(key)
        if number is None:
            number = OTHER
            if len(self.numbers) < MAX_LINES:
                number = self.numbers[key] = OTHER + 1 + len(self.numbers)
                self.write_line(number, line_frame, innermost)
        return number

    def write_line(self, number: int, line_frame: FrameType, innermost: FrameType) -> None:
        kind, file = self.files.of(line_frame.f_code)
        inner = "" if innermost is line_frame else f"{innermost.f_globals.get('__name__', '')}."
        line = {
            "number": number,
            "file": file,
            "line": line_frame.f_lineno or line_frame.f_code.co_firstlineno,  # f_lineno may be None
            "function": name_of(line_frame.f_code),
            "called": called_by(line_frame),
            "inside": inner and inner + name_of(innermost.f_code),
            "app": kind == "app",
        }
        text = json.dumps(line).encode() + b"\n"
        written = 0
        with contextlib.suppress(OSError):
            written = write(self.lines_fd, text)
        if written < len(text):  # the disk is full; a truncated line must be the last
            self.stopped = True


def state(handle: int) -> bytes:
    """The state in this open `stat`: R is running, or waiting for a core."""
    return pread(handle, 512, 0).rpartition(b")")[2][1:2]


def claims_sampling(directory: str) -> bool:
    """Whether to sample this worker: true for the first that serves a request."""
    with contextlib.suppress(OSError):
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        os.close(os.open(os.path.join(directory, "stacks.pid"), flags, 0o644))
        return True
    return False


def start(worker: Any, heart: Any, loop: int, directory: str) -> None:
    """Sample the thread `loop` from now on. Raises OSError if the disk is full."""
    files = Files(worker.cfg.chdir, getattr(worker.app, "app_uri", None) or "")
    path = os.path.join(directory, f"stacks-{os.getpid()}.jsonl")
    lines = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    sampler = StackSampler(heart, loop, files, Ring(directory, STACKS, RECORDS), lines)
    os.register_at_fork(after_in_child=lambda: setattr(sampler, "stopped", True))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    start_new_thread(sampler.run, ())
