"""One server of the live page and its load: start, change, observe and stop them.

A thread starts the load's process, then the server, and watches both. The guard of the load's
process removes their directory, even if the lab is killed. Other threads change the load and read
the state.
"""

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from time import monotonic, process_time
from typing import Literal, TypeVar

import psutil
from msgspec import Struct
from msgspec.structs import asdict, replace

from workerlab import run_store
from workerlab.analysis.samples import NS
from workerlab.experiments.lesson.settings import LoadSettings, Message, ServerSettings
from workerlab.experiments.lesson.texts import PART_NAMES, LiveFigures
from workerlab.load.programs import GENERATORS
from workerlab.model.result import Breakdown
from workerlab.observe.cpu import ServiceCpus, host_cpu
from workerlab.observe.spans import SpanFollower
from workerlab.observe.tcp import AcceptQueues, SocketsUnreadable
from workerlab.report.player.places import (
    ClientAnswer,
    Event,
    Move,
    Places,
    app_events,
)
from workerlab.server.preflight import Interpreter
from workerlab.server.process import Guarded
from workerlab.server.running import Launch, Running, TrialFailed
from workerlab.server.serve import serve
from workerlab.server.worker_classes import class_named, configured_slots

T = TypeVar("T")
Phase = Literal["stopped", "starting", "running", "failed"]

MAX_SPANS_PER_WORKER = 200_000  # 8 MB; when they are used up, the server is restarted
CHECK_INTERVAL_S = 0.5  # between checks that load and server still run
SPANS_CHECK_INTERVAL_S = 0.05
READ_BYTES = 1 << 20  # of events, in one read
OPEN_CONNECTIONS = "o"  # kind of a line that reports how many connections the clients have


class LiveUpdate(Struct, frozen=True):
    """The changes since the previous poll. `connections`: of the clients; None: not yet known.
    `drawn_one_in`, `counts`: as in `Places`."""

    moves: list[Move]
    queue: int | None
    connections: int | None
    drawn_one_in: int
    counts: list[int]


def _mean_parts(answers: Sequence[ClientAnswer]) -> Breakdown | None:
    """The mean of each part; None unless all parts of all responses are known."""
    parts = [answer.parts_ns for answer in answers if answer.parts_ns is not None]
    if not parts or len(parts) < len(answers):
        return None
    means_s = (fmean(part) / NS for part in zip(*parts, strict=True))
    return replace(Breakdown(), **dict(zip(PART_NAMES, means_s, strict=True)))


class CoreUsage:
    """Cores used by the server, its load, this process, and the whole machine."""

    def __init__(self, server: int | None, load: int | None) -> None:
        self._services = ServiceCpus({"server": server, "load": load})
        self._latest = self._used_s()

    def since_last(self) -> dict[str, float]:
        """Cores used since the last call. Raises psutil.Error if a process is hidden or has
        ended."""
        last, self._latest = self._latest, self._used_s()
        elapsed_s = self._latest["clock"] - last["clock"]
        used = {name: total_s - last.get(name, total_s) for name, total_s in self._latest.items()}
        return {name: round(used_s / elapsed_s, 2) for name, used_s in used.items()}

    def _used_s(self) -> dict[str, float]:
        used = {name: cpu_s for name, (cpu_s, _) in self._services.usage().items()}
        machine_s = host_cpu().busy_s
        return {**used, "lab": process_time(), "machine": machine_s, "clock": monotonic()}


class LiveServer:
    """A running server, and the lab's ends of the load's pipes, as file descriptors."""

    def __init__(self, server: Running, tool: Guarded, commands: int, events: int) -> None:
        self._server, self._commands, self._events = server, commands, events
        self._cores_used = CoreUsage(server.process.pid, tool.pid)
        settings = server.launch.server
        accepts_first = class_named(settings.worker_class).accepts_first
        self.places = Places(accepts_first=accepts_first, slots=configured_slots(settings))
        self._spans = SpanFollower(server.launch.trial)
        self._queues = AcceptQueues(((server.host, server.port),))
        self._incomplete, self._future_events = b"", list[Event]()
        self._connections: int | None = None
        for pid in sorted(server.proofs):
            self.places.worker_number(pid)
        self.poll()  # the limit of the accept queue must be known before the first connection

    @property
    def spans_used_up(self) -> bool:
        return self._spans.full

    def change_load(self, load: LoadSettings, seed: int) -> None:
        """Change the load at once."""
        url = f"http://{self._server.host}:{self._server.port}/{load.query}"
        command = {"url": url, "keepalive": load.keepalive, "seed": seed}
        command |= {"rate": load.rate} if load.is_open else {"clients": load.clients}
        command |= {"patience": load.patience_s} if load.patience_s else {}
        os.write(self._commands, json.dumps(command).encode() + b"\n")
        self.places.recent_s = load.recent_s
        self.places.start_load(time.monotonic_ns())

    def poll(self) -> LiveUpdate:
        now_ns = time.monotonic_ns()
        spans = self._spans.poll()
        events = [*self._future_events, *self._new_events()]
        for span in spans:
            if span.request_id and span.request_id.isdecimal():
                events += app_events(span, int(span.request_id))
        # Events after `now_ns` may belong to spans that are not read yet
        self._future_events = [event for event in events if event.at_ns > now_ns]
        self.places.process(event for event in events if event.at_ns <= now_ns)
        queue = limit = None
        with contextlib.suppress(SocketsUnreadable):
            sample = self._queues.sample()
            queue, limit = sample.length, sample.limit
        self.places.infer_queue(now_ns, queue, limit)
        return LiveUpdate(
            moves=self.places.take_moves(),
            queue=queue,
            connections=self._connections,
            drawn_one_in=self.places.drawn_one_in,
            counts=self.places.counts,
        )

    def sample(self) -> Message:
        """Current figures, and `busy`: as in `CoreUsage`, None if unknown."""
        busy = None
        with contextlib.suppress(psutil.Error):
            busy = self._cores_used.since_last()
        return {**asdict(self.places.sample(time.monotonic_ns())), "busy": busy}

    def _new_events(self) -> list[Event]:
        data = self._incomplete
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._events, READ_BYTES):
                data += chunk
        *lines, self._incomplete = data.split(b"\n")
        events = []
        for line in lines:
            kind, number, at_ns, cause = line.decode("ascii").split(" ", 3)
            if kind == OPEN_CONNECTIONS:
                self._connections = int(number)
            else:
                events.append(Event(int(at_ns), kind, int(number), cause=cause))
        return events

    def figures(self, over_s: float) -> LiveFigures:
        """Figures of the last `over_s` seconds."""
        now_ns, places = time.monotonic_ns(), self.places
        since_ns = now_ns - int(over_s * NS)
        answers = places.answers_since(since_ns)
        response_times_s = [answer.response_s for answer in answers]
        oldest_s, slowest_answer_s = places.oldest_s(now_ns), max(response_times_s, default=0.0)
        return LiveFigures(
            sample=places.sample(now_ns, over_s),
            slowest_s=max(oldest_s, slowest_answer_s),
            fastest_s=min(response_times_s, default=None),
            where=_mean_parts(answers),
            answered=len(answers),
            wasted=places.wasted_count(since_ns),
            slowest_waits=oldest_s > slowest_answer_s,
        )


class Side:
    """A server and its load. `on_change` is called, from any thread, when `phase` has changed."""

    def __init__(
        self,
        settings: ServerSettings,
        interpreter: Interpreter,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self._interpreter, self._on_change = settings, interpreter, on_change
        self.phase: Phase = "stopped"
        self.why: str | None = None
        self.live: LiveServer | None = None
        self._load, self._seed = LoadSettings(), 0
        self._lock = threading.Lock()  # guards the attributes above
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, load: LoadSettings, seed: int = 0) -> None:
        """Start or restart the server. Returns at once."""
        with self._lock:
            self._stop.set()
            self._stop = threading.Event()
            self._load, self._seed = load, seed
        self._set_phase("starting")
        self._thread = threading.Thread(
            target=self._run, args=(self._stop, self.settings, self._thread), daemon=True
        )
        self._thread.start()

    def change_load(self, load: LoadSettings, seed: int = 0) -> None:
        """Change the load at once."""
        with self._lock:
            self._load, self._seed = load, seed
            if self.live is not None:
                self.live.change_load(load, seed)

    def stop(self) -> None:
        """Stop the server. Returns at once; `join` waits for the end."""
        with self._lock:
            self._stop.set()
        self._set_phase("stopped")

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def read(self, value_of: Callable[[LiveServer], T]) -> T | None:
        """A value of the running server; None while no server runs."""
        with self._lock:
            return None if self.live is None else value_of(self.live)

    def poll(self) -> tuple[LiveUpdate, LiveServer] | None:
        """The changes since the last poll, and the server; None while no server runs."""
        return self.read(lambda live: (live.poll(), live))

    # --- the thread ------------------------------------------------------------------------------

    def _run(
        self, stop: threading.Event, settings: ServerSettings, previous: threading.Thread | None
    ) -> None:
        if previous is not None:
            previous.join()
        if stop.is_set():
            return
        try:
            self._serve(stop, settings)
        except TrialFailed as failure:
            self._fail(stop, failure.fault.reason)
        except (OSError, psutil.Error) as error:
            self._fail(stop, f"the server could not be started: {error}")

    def _serve(self, stop: threading.Event, settings: ServerSettings) -> None:
        directory = Path(tempfile.gettempdir()) / f"workerlab-live-{os.urandom(8).hex()}"
        commands, events = directory / "commands", directory / "events"
        argv = [sys.executable, "-I", "-S", str(GENERATORS), "live", str(commands), str(events)]
        with contextlib.ExitStack() as stack:
            tool = stack.enter_context(Guarded(
                argv, cwd=Path("/"), env=os.environ, grace_s=0.2,
                stdout=directory / "load.out", remove=directory,
            ))  # fmt: skip
            for path in (commands, events):
                os.mkfifo(path)
            fds = [os.open(commands, os.O_RDWR), os.open(events, os.O_RDONLY | os.O_NONBLOCK)]
            for fd in fds:
                stack.callback(os.close, fd)
            run_store.copy_code(directory / "code")
            (directory / "trial").mkdir()
            server_settings = settings.server()
            launch = Launch(
                server=server_settings, app=server_settings.app, python=self._interpreter.python,
                code=directory / "code", trial=directory / "trial", config=None,
                records=MAX_SPANS_PER_WORKER,
                names_requests=True, keepalive=True, beats=False,
                gunicorn=self._interpreter.requested,
            )  # fmt: skip
            server = stack.enter_context(serve(launch))
            try:
                if not stop.is_set():
                    self._watch(stop, server, LiveServer(server, tool, *fds), tool)
            finally:
                self._set_live(None)

    def _watch(
        self, stop: threading.Event, server: Running, live: LiveServer, tool: Guarded
    ) -> None:
        # Before the first poll: the page ignores earlier moves
        self._set_phase("running", stop=stop)
        self._set_live(live)
        checked_s = time.monotonic()
        while not stop.wait(SPANS_CHECK_INTERVAL_S):
            if live.spans_used_up:
                self._set_live(None)
                self.start(self._load, self._seed)
                return
            if time.monotonic() - checked_s < CHECK_INTERVAL_S:
                continue
            checked_s = time.monotonic()
            if not tool.running:
                self._fail(stop, "the load generator has ended")
                return
            if (fault := server.lost()) is not None:
                self._fail(stop, fault.reason)
                return

    def _fail(self, stop: threading.Event, why: str) -> None:
        """Report a failure, unless the side was stopped."""
        self._set_live(None)
        self._set_phase("failed", why, stop)

    def _set_live(self, live: LiveServer | None) -> None:
        with self._lock:
            self.live = live
            if live is not None:
                live.change_load(self._load, self._seed)

    def _set_phase(
        self, phase: Phase, why: str | None = None, stop: threading.Event | None = None
    ) -> None:
        """Set the phase, unless the side was stopped meanwhile."""
        with self._lock:
            if stop is not None and stop.is_set():
                return
            self.phase, self.why = phase, why
        self._on_change()
