"""One server of the live page and its load: start, change, observe and stop them.

A thread starts the load's process, then the server, and waits for the end. The guard of the load's
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
from typing import Literal

import psutil
from msgspec import Struct
from msgspec.structs import asdict

from workerlab import run_store
from workerlab.analysis.samples import NS
from workerlab.experiments.lesson.settings import LoadSettings, ServerSettings
from workerlab.experiments.lesson.words import LiveFigures
from workerlab.load.programs import GENERATORS
from workerlab.model import Breakdown
from workerlab.observe.cpu import ServiceCpus, host_cpu
from workerlab.observe.spans import Following
from workerlab.observe.tcp import AcceptQueues, Unseen
from workerlab.report.player.places import ClientAnswer, Event, Move, Places
from workerlab.server.gunicorn import running
from workerlab.server.process import Guarded
from workerlab.server.running import Launch, Running, TrialFailed
from workerlab.server.worker_classes import class_named, configured_slots

Phase = Literal["stopped", "starting", "running", "failed"]

RECORDS = 200_000  # per worker, 8 MB; when they are used up, the server is restarted
LOST_S = 0.5  # between checks that the server still runs
STEP_S = 0.05
AT_ONCE = 1 << 20  # bytes of events in one read


class Look(Struct, frozen=True):
    """What is new since the previous look. `connections`: of the clients; None: not known yet.
    `drawn_one_in`, `counts`: as in `Places`."""

    moves: list[Move]
    queue: int | None
    connections: int | None
    drawn_one_in: int
    counts: list[int]


def _parts_of(answers: Sequence[ClientAnswer]) -> Breakdown | None:
    """The mean of each part; None unless all parts of all answers are known."""
    parts = [answer.parts_ns for answer in answers if answer.parts_ns is not None]
    if not parts or len(parts) < len(answers):
        return None
    connect_s, queue_s, worker_s, app_s = (fmean(part) / NS for part in zip(*parts, strict=True))
    return Breakdown(
        connect_s=connect_s, accept_queue_s=queue_s, in_worker_s=worker_s, service_s=app_s
    )


class CoresBusy:
    """Cores used by the server, its load, this process, and the whole machine."""

    def __init__(self, server: int | None, load: int | None) -> None:
        self._services = ServiceCpus({"server": server, "load": load})
        self._before = self._used_s()

    def look(self) -> dict[str, float]:
        """Since the last call. Raises psutil.Error if a process is hidden or has ended."""
        before, self._before = self._before, self._used_s()
        elapsed_s = self._before["clock"] - before["clock"]
        used = {name: at_s - before.get(name, at_s) for name, at_s in self._before.items()}
        return {name: round(used_s / elapsed_s, 2) for name, used_s in used.items()}

    def _used_s(self) -> dict[str, float]:
        used = {name: cpu_s for name, (cpu_s, _) in self._services.used().items()}
        machine_s = host_cpu().busy_s
        return {**used, "lab": process_time(), "machine": machine_s, "clock": monotonic()}


class LiveServer:
    """A running server, and the lab's ends of the load's pipes."""

    def __init__(self, server: Running, tool: Guarded, commands: int, events: int) -> None:
        self._server, self._commands, self._events = server, commands, events
        self._busy = CoresBusy(server.process.pid, tool.pid)
        settings = server.launch.server
        accepts_first = class_named(settings.worker_class).accepts_first
        self.places = Places(accepts_first=accepts_first, slots=configured_slots(settings))
        self._spans = Following(server.launch.trial)
        self._queues = AcceptQueues(((server.host, server.port),))
        self._incomplete, self._later = b"", list[Event]()
        self._connections: int | None = None
        for pid in sorted(server.proofs):
            self.places.worker_number(pid)
        self.look()  # the limit of the accept queue must be known before the first connection

    @property
    def full(self) -> bool:
        return self._spans.full

    def load(self, load: LoadSettings, seed: int) -> None:
        """Change the load, from now on."""
        url = f"http://{self._server.host}:{self._server.port}/{load.query}"
        command = {"url": url, "keepalive": load.keepalive, "seed": seed}
        command |= {"rate": load.rate} if load.is_open else {"clients": load.clients}
        command |= {"patience": load.patience_s} if load.patience_s else {}
        os.write(self._commands, json.dumps(command).encode() + b"\n")
        self.places.recent_s = load.recent_s
        self.places.start_load(time.monotonic_ns())

    def look(self) -> Look:
        now_ns = time.monotonic_ns()
        spans = self._spans.look()
        events = [*self._later, *self._new_events()]
        for span in spans:
            if span.request_id and span.request_id.isdecimal():
                number = int(span.request_id)
                accept_ns = span.accept_ns or 0
                events.append(Event(span.start_ns, "s", number, span.pid, accept_ns=accept_ns))
                if span.end_ns:
                    events.append(Event(span.end_ns, "x", number, span.pid))
        # Events newer than this reading of the spans may belong to spans that are not read yet
        self._later = [event for event in events if event.at_ns > now_ns]
        self.places.process(event for event in events if event.at_ns <= now_ns)
        queue = limit = None
        with contextlib.suppress(Unseen):
            sample = self._queues.sample()
            queue, limit = sample.length, sample.limit
        self.places.infer_queue(now_ns, queue, limit)
        return Look(
            moves=self.places.take_moves(),
            queue=queue,
            connections=self._connections,
            drawn_one_in=self.places.drawn_one_in,
            counts=self.places.counts,
        )

    def sample(self) -> dict[str, object]:
        """Current figures, and `busy`: cores, as in `CoresBusy`; None: not known."""
        busy = None
        with contextlib.suppress(psutil.Error):
            busy = self._busy.look()
        return {**asdict(self.places.sample(time.monotonic_ns())), "busy": busy}

    def _new_events(self) -> list[Event]:
        data = self._incomplete
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._events, AT_ONCE):
                data += part
        *lines, self._incomplete = data.split(b"\n")
        events = []
        for line in lines:
            kind, number, at_ns, cause = line.decode("ascii").split(" ", 3)
            if kind == "o":
                self._connections = int(number)
            else:
                events.append(Event(int(at_ns), kind, int(number), cause=cause))
        return events

    def measured(self, over_s: float) -> LiveFigures:
        """Figures of the last `over_s` seconds."""
        now_ns, places = time.monotonic_ns(), self.places
        since_ns = now_ns - int(over_s * NS)
        answers = places.answers_since(since_ns)
        times_s = [answer.response_s for answer in answers]
        oldest_s, answered_s = places.oldest_s(now_ns), max(times_s, default=0.0)
        return LiveFigures(
            sample=places.sample(now_ns, over_s),
            slowest_s=max(oldest_s, answered_s),
            fastest_s=min(times_s, default=None),
            where=_parts_of(answers),
            answered=len(answers),
            wasted=places.wasted(since_ns),
            slowest_waits=oldest_s > answered_s,
        )


class Side:
    """A server and its load. `changed` is called, from any thread, when `phase` has changed."""

    def __init__(
        self, settings: ServerSettings, python: str, gunicorn: str, changed: Callable[[], None]
    ) -> None:
        self.settings, self._python, self._gunicorn = settings, python, gunicorn
        self._changed = changed
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
        self._set("starting")
        self._thread = threading.Thread(
            target=self._run, args=(self._stop, self.settings, self._thread), daemon=True
        )
        self._thread.start()

    def change(self, load: LoadSettings, seed: int = 0) -> None:
        """Change the load at once."""
        with self._lock:
            self._load, self._seed = load, seed
            if self.live is not None:
                self.live.load(load, seed)

    def stop(self) -> None:
        """Stop the server. Returns at once; `join` waits for the end."""
        with self._lock:
            self._stop.set()
        self._set("stopped")

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def look(self) -> tuple[Look, LiveServer] | None:
        """What is new, and the server. None while no server runs."""
        with self._lock:
            return None if self.live is None else (self.live.look(), self.live)

    def now(self) -> list[Move] | None:
        """As `Places.snapshot`. None while no server runs."""
        with self._lock:
            return None if self.live is None else self.live.places.snapshot(time.monotonic_ns())

    def measured(self, over_s: float) -> LiveFigures | None:
        """Figures of the last `over_s` seconds. None while no server runs."""
        with self._lock:
            return None if self.live is None else self.live.measured(over_s)

    # --- its thread ------------------------------------------------------------------------------

    def _run(
        self, stop: threading.Event, settings: ServerSettings, before: threading.Thread | None
    ) -> None:
        if before is not None:
            before.join()
        if stop.is_set():
            return
        try:
            self._serve(stop, settings)
        except TrialFailed as fault:
            self._end(stop, fault.fault.reason)
        except (OSError, psutil.Error) as error:
            self._end(stop, f"the server could not be started: {error}")

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
            served = settings.server()
            launch = Launch(
                server=served, app=served.app, python=self._python,
                code=directory / "code", trial=directory / "trial", config=None, records=RECORDS,
                named=True, kept=True, beats=False, gunicorn=self._gunicorn,
            )  # fmt: skip
            server = stack.enter_context(running(launch))
            try:
                if not stop.is_set():
                    self._while_it_runs(stop, server, LiveServer(server, tool, *fds), tool)
            finally:
                self._set_live(None)

    def _while_it_runs(
        self, stop: threading.Event, server: Running, live: LiveServer, tool: Guarded
    ) -> None:
        self._set("running", stop=stop)  # before the first look: the page ignores earlier moves
        self._set_live(live)
        looked_s = time.monotonic()
        while not stop.wait(STEP_S):
            if live.full:
                self._set_live(None)
                self.start(self._load, self._seed)
                return
            if time.monotonic() - looked_s < LOST_S:
                continue
            looked_s = time.monotonic()
            if not tool.running:
                self._end(stop, "the load ended")
                return
            if (fault := server.lost()) is not None:
                self._end(stop, fault.reason)
                return

    def _end(self, stop: threading.Event, why: str) -> None:
        """Report a failure, unless the side was stopped."""
        self._set_live(None)
        self._set("failed", why, stop)

    def _set_live(self, live: LiveServer | None) -> None:
        with self._lock:
            self.live = live
            if live is not None:
                live.load(self._load, self._seed)

    def _set(
        self, phase: Phase, why: str | None = None, stop: threading.Event | None = None
    ) -> None:
        """Set the phase, unless the side was stopped meanwhile."""
        with self._lock:
            if stop is not None and stop.is_set():
                return
            self.phase, self.why = phase, why
        self._changed()
