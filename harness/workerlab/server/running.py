"""A server as the harness sees it: its launch, its state, and why it failed."""

from __future__ import annotations

import json
import linecache
import os
import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from msgspec import Struct

from workerlab.finding import Finding, StoredFinding, stored
from workerlab.model.evidence import Fault, FaultKind
from workerlab.model.plan import App, Inside, Server
from workerlab.observe.spans import read_spans
from workerlab.server.process import Guarded

EXCEPTION = re.compile(
    r"(?P<what>((\w+\.)*\w*(Error|Exception|Exit|Interrupt)\b"
    r"|Failed to (find (attribute|application object)|parse) ).*)"
)
TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)')
DUMP_PREFIX = "Timeout ("  # each dump of faulthandler begins with this
# Lines of a server's log, and files that are not the app's
LOG_LINE = re.compile(r"\[\d{4}-\d\d-\d\d |\[(INFO|WARNING|ERROR|CRITICAL)\] |(INFO|ERROR): ")
OUTSIDE_APP = re.compile(
    r"site-packages|dist-packages|/lib/python3|/server/inside/|/alone/workerlab_app|^<|/gunicorn/"
)
MAX_PRINTED_LINES = 3
PID = re.compile(r" \(pid:\d+\)")
ERROR = re.compile(r"(.*\[(ERROR|CRITICAL)\] |ERROR: +|(?=Error: ))(?P<what>.*)")
WARNING = re.compile(r".*\[WARNING\] (?P<what>.*)")


class TrialFailed(Exception):
    """A trial cannot continue; `fault` has the reason in one sentence, and details of the trial."""

    def __init__(self, kind: FaultKind, reason: str, detail: str = "") -> None:
        self.fault = Fault(kind, reason, detail)
        super().__init__(reason)


class Launch(Struct, frozen=True):
    """The parameters for starting a server. Paths are absolute."""

    server: Server
    app: App
    python: str
    code: Path  # the run's copy of probe, configuration, configs/ and apps/
    trial: Path  # this trial's directory
    config: str | None  # the user's own Gunicorn file
    records: int  # capacity for spans, per worker
    warmup_path: str | None = None  # a cheaper request, for bundled apps
    names_requests: bool = False  # whether requests carry ids
    keepalive: bool = False  # whether the load reuses connections
    beats: bool = True  # whether the beats of the workers' event loops are recorded
    inside: Inside = ""  # other measurements in the workers, as in Cell
    host: str = "127.0.0.1"  # the address it listens on
    env: tuple[tuple[str, str], ...] = ()  # added to the app's; contains passwords: never written
    services: Mapping[str, int] = {}  # pids of the app's services, by name
    gunicorn: str = ""  # the version to run; "": that of the interpreter's environment


class Cancelled(BaseException):
    """The lab is ending. Not an Exception: a handler might swallow it."""


class StartupTurn:
    """Lets parallel trials start their servers one at a time, and ends them when the lab ends:
    its methods then raise Cancelled. This base class neither waits nor raises."""

    def wait_to_start(self) -> None:
        """Called before the server starts."""

    def started(self, process: Guarded) -> None:
        """Called once the process exists: another thread may have to end it."""

    def raise_if_ended(self) -> None:
        """Called repeatedly while the server boots."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def watch(self, server: object, observer: object) -> None:
        """Called repeatedly while a load runs."""

    def wait_to_measure(self) -> float:
        """Called after the warm-up, before the measurement. Returns the seconds it waited."""
        return 0.0


class Serving(Struct, kw_only=True):
    """A ready server of any kind, as a trial sees it."""

    process: Guarded
    host: str
    port: int
    path: str = "/"
    backlog: int
    log: Path
    proofs: dict[int, dict[str, object]] = {}  # of its workers, by pid
    start_s: float = 0.0
    warmup_s: float = 0.0
    lone_s: list[float] = []  # response times of lone requests
    lone_begun_ns: list[int] = []  # their starts, CLOCK_MONOTONIC
    lone_weights: tuple[float, ...] = ()  # as in Record
    warnings: list[StoredFinding] = []
    drops: bool = False  # whether the load has more connections than the accept queue holds
    other_instances: list[Serving] = []

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.path}"

    def lost(self) -> Fault | None:
        """The fault if a process has ended or was replaced since the server was ready, or None."""
        raise NotImplementedError


class WorkersKilledWaiting(Finding):
    """{workers:# worker was/workers were} killed by Gunicorn's timeout while waiting for a request
    that never came: a client may hold connections that it opened late and never uses"""

    workers: int


class Running(Serving, kw_only=True):
    """A server under test that is ready."""

    launch: Launch
    earlier_pids: frozenset[int] = frozenset()  # pids of the workers of earlier instances

    def lost(self) -> Fault | None:
        for server in (self, *self.other_instances):
            if not server.process.running:
                why = f"the server exited under load ({_ending(server.process.exit_code)})"
                return Fault("server", explained(why, server.log))
        import psutil  # the import takes 20 ms, and reading a saved run does not need it

        current = read_proofs(self.launch.trial)
        gone_pids = {pid for pid in self.proofs if not psutil.pid_exists(pid)}  # zombies exist
        new_pids = current.keys() - self.proofs.keys()
        if not gone_pids and not new_pids:
            return None
        idle_pids = self._killed_idle() if self.drops else set[int]()
        if gone_pids <= idle_pids and len(new_pids) <= len(idle_pids):
            self.proofs = current
            # ab opens new connections while earlier ones still connect. One established after its
            # last request stays open and unused, and blocks a sync worker that accepts it
            self.warnings.append(stored(WorkersKilledWaiting(len(idle_pids))))
            return None
        pids = ", ".join(map(str, gone_pids)) or "unknown"
        why = explained("a worker died under load", self.log)
        if self._timed_out() & gone_pids:
            why += "; it sent no heartbeat within Gunicorn's `timeout`"
        if self._timed_out() & gone_pids & self._workers_in_app():
            why += ", with a request in the app: raise `timeout` in --config"
        return Fault("server", why, f"pid {pids}")

    def _timed_out(self) -> set[int]:
        log = self.log.read_text(errors="replace")
        return {int(pid) for pid in re.findall(r"WORKER TIMEOUT \(pid:(\d+)\)", log)}

    def _workers_in_app(self) -> set[int]:
        """Workers with a request in the app, including those that died with one."""
        return {span.pid for span in read_spans(self.launch.trial).spans if span.end_ns is None}

    def _killed_idle(self) -> set[int]:
        """Workers that Gunicorn's timeout killed while no request was in their app."""
        return self._timed_out() - self._workers_in_app()


def _ending(code: int | None) -> str:
    if code is None:
        return "exit code unknown"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def instance_path(trial: Path, name: str, number: int) -> Path:
    """The file `name` of the instance `number`: all instances share the trial's directory."""
    path = trial / name
    return path if number == 1 else path.with_stem(f"{path.stem}-{number}")


def read_proofs(trial: Path, excluded: Container[int] = ()) -> dict[int, dict[str, object]]:
    """The proof of each worker, by pid; `excluded`: pids to leave out."""
    # Called 100 times a second while a server boots: `glob` takes three times as long
    names = (name for name in os.listdir(trial) if name.startswith("worker-"))
    paths = (trial / name for name in names if name.endswith(".json"))
    proofs = (json.loads(path.read_text()) for path in paths)
    return {proof["pid"]: proof for proof in proofs if proof["pid"] not in excluded}


def log_lines(log: Path) -> list[str]:
    """The lines of a server's log; none if it cannot be read."""
    try:
        return log.read_text(errors="replace").splitlines()
    except OSError:
        return []


def explained(why: str, log: Path, *, printed: bool = False) -> str:
    """`why` with the exception of the last traceback in the server's log, and where in the app it
    was raised; else with an exception outside tracebacks; else, if `printed`, the last lines that
    the app printed (`sys.exit` prints its reason); else the last error; else the last warning."""
    lines = log_lines(log)
    if exception := last_exception(lines):
        if any("WORKER TIMEOUT" in line for line in lines):
            exception = exception.replace("SystemExit: 1", "Gunicorn's timeout killed the worker")
        return f"{why}: {exception}"
    lines = list(outside_tracebacks(lines))
    printed_by_app = [
        list(dict.fromkeys(line.strip() for line in group))
        for is_log_line, group in groupby(
            filter(str.strip, lines), lambda line: bool(LOG_LINE.match(line))
        )
        if not is_log_line
    ]
    for pattern in (EXCEPTION, ERROR, WARNING):
        if pattern is ERROR and printed and printed_by_app:
            return f"{why}: {' '.join(printed_by_app[-1][-MAX_PRINTED_LINES:]).rstrip('.')[:300]}"
        for line in reversed(lines):
            if match := pattern.match(line):
                what = PID.sub("", match["what"])  # differs in each launch
                return f"{why}: {what.strip().rstrip('.')[:300]}"
    return why


def importing_at(dumps: str) -> str:
    """The line of the app at which faulthandler's last dump shows the import, as the end of a
    sentence; "" if no frame is the app's."""
    threads = dumps.rpartition(DUMP_PREFIX)[2].split("\nThread ")
    import_thread = next((thread for thread in threads if "in import_app" in thread), "")
    for frame in FRAME.finditer(import_thread):  # the most recent call first
        path, line = frame["file"], int(frame["line"])
        if not OUTSIDE_APP.search(path):
            source = linecache.getline(path, line).strip()
            return f"; it was at {Path(path).name} line {line}" + (f": {source}" if source else "")
    return ""


def outside_tracebacks(lines: Iterable[str]) -> Iterator[str]:
    """The lines outside tracebacks, without the exception that ends a traceback."""
    in_traceback = False
    for line in lines:
        if line.endswith(TRACEBACK):
            in_traceback = True
        elif in_traceback:
            in_traceback = line.startswith(" ")
        elif not line.startswith("During handling of the above exception"):
            yield line


def last_exception(lines: Iterable[str]) -> str | None:
    """The exception of the last traceback, with the app's last frame in it."""
    exception, location, in_traceback = None, "", False
    for line in lines:
        if line.endswith(TRACEBACK):
            in_traceback, location = True, ""
        elif in_traceback and (frame := FRAME.match(line)):
            if not OUTSIDE_APP.search(frame["file"]):
                location = f" ({Path(frame['file']).name} line {frame['line']})"
        elif in_traceback and not line.startswith(" "):
            in_traceback = False
            if not line.startswith("gunicorn.errors."):  # these only report another exception
                exception = f"{line.strip().rstrip('.')[:300]}{location}"
    return exception
