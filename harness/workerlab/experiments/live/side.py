"""One server of the live lesson and the load on it: up, changed, looked at, gone.

A thread brings up the load's process, whose guard removes the directory of both whatever becomes of
the lab, then the server, and waits until it is to stop. Others change the load and look.
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
from workerlab.analysis.places import Answer, Event, Move, Places, Sample
from workerlab.analysis.samples import NS
from workerlab.experiments.lesson.settings import LoadAsked, ServerAsked
from workerlab.load.programs import GENERATORS
from workerlab.model import Breakdown
from workerlab.observe.cpu import Services, host_cpu
from workerlab.observe.spans import Following
from workerlab.observe.tcp import AcceptQueues, Unseen
from workerlab.server.gunicorn import running
from workerlab.server.process import Guarded
from workerlab.server.running import Faulty, Launch, Running
from workerlab.server.worker_classes import class_named, configured_slots

Phase = Literal["stopped", "starting", "running", "failed"]

RECORDS = 200_000  # of a worker, 8 MB; then the server is started anew
LOST_S = 0.5  # how often it is looked at whether the server is still whole
STEP_S = 0.05
PIPE_S = 5.0  # the load's process comes up
AT_ONCE = 1 << 20  # bytes of events


class Looked(Struct, frozen=True):
    """Since the look before. `connections`: of the clients, None: not told yet. `counts`: as in
    `Places`."""

    moves: list[Move]
    queue: int | None
    connections: int | None
    every: int
    counts: list[int]


class Seen(Struct, frozen=True):
    """What was measured; the slowest request, which may still wait, and the fastest answer; where
    the answered ones spent their time, on average; how many were answered in that time, and how
    many served although their client had given up; whether the slowest still waits."""

    sample: Sample
    slowest_s: float | None
    fastest_s: float | None
    where: Breakdown | None = None
    answered: int = 0
    wasted: int = 0
    slowest_waits: bool = False


def _where(answers: Sequence[Answer]) -> Breakdown | None:
    """None where not of all of them everything was told."""
    every = [one.parts for one in answers if one.parts is not None]
    if not every or len(every) < len(answers):
        return None
    connect_s, queue_s, worker_s, app_s = (fmean(part) / NS for part in zip(*every, strict=True))
    return Breakdown(
        connect_s=connect_s, accept_queue_s=queue_s, in_worker_s=worker_s, service_s=app_s
    )


class CoresBusy:
    """How many cores the server, its load, this process and the whole machine keep busy."""

    def __init__(self, server: int | None, load: int | None) -> None:
        self._services = Services({"server": server, "load": load})
        self._before = self._used_s()

    def look(self) -> dict[str, float]:
        """Since the look before. Raises psutil.Error where one is hidden or has ended."""
        before, self._before = self._before, self._used_s()
        passed_s = self._before["clock"] - before["clock"]
        used = {name: at_s - before.get(name, at_s) for name, at_s in self._before.items()}
        return {name: round(used_s / passed_s, 2) for name, used_s in used.items()}

    def _used_s(self) -> dict[str, float]:
        used = {name: cpu_s for name, (cpu_s, _) in self._services.used().items()}
        machine_s = host_cpu().busy_s
        return {**used, "lab": process_time(), "machine": machine_s, "clock": monotonic()}


class Live:
    """A server that runs, and the ends of the load's pipes."""

    def __init__(self, server: Running, tool: Guarded, commands: int, events: int) -> None:
        self._server, self._commands, self._events = server, commands, events
        self._busy = CoresBusy(server.process.pid, tool.pid)
        asked = server.launch.server
        first = class_named(asked.worker_class).accepts_first
        self.places = Places(accepts_first=first, slots=configured_slots(asked))
        self._spans = Following(server.launch.trial)
        self._queues = AcceptQueues(((server.host, server.port),))
        self._unread, self._later = b"", list[Event]()
        self._connections: int | None = None
        for pid in sorted(server.proofs):
            self.places.worker(pid)
        self.look()  # what the accept queue holds is known before the first connection is up

    @property
    def full(self) -> bool:
        return self._spans.full

    def load(self, asked: LoadAsked, seed: int) -> None:
        """From now on."""
        url = f"http://{self._server.host}:{self._server.port}/{asked.query}"
        closed = asked.model == "closed"
        words = {"url": url, "keepalive": asked.keepalive, "seed": seed}
        words |= {"clients": asked.clients} if closed else {"rate": asked.rate}
        words |= {"patience": asked.patience_s} if asked.patience_s else {}
        os.write(self._commands, json.dumps(words).encode() + b"\n")
        self.places.recent_s = asked.recent_s
        self.places.change(time.monotonic_ns())

    def look(self) -> Looked:
        now_ns = time.monotonic_ns()
        spans = self._spans.look()
        events = [*self._later, *self._heard()]
        for span in spans:
            if span.request_id and span.request_id.isdecimal():
                number = int(span.request_id)
                accept_ns = span.accept_ns or 0
                events.append(Event(span.start_ns, "s", number, span.pid, accept_ns=accept_ns))
                if span.end_ns:
                    events.append(Event(span.end_ns, "x", number, span.pid))
        # What the clients said after the spans were read may be about spans nobody has seen yet
        self._later = [one for one in events if one.at_ns > now_ns]
        self.places.hear(one for one in events if one.at_ns <= now_ns)
        queue = limit = None
        with contextlib.suppress(Unseen):
            seen = self._queues.sample()
            queue, limit = seen.length, seen.limit
        self.places.settle(now_ns, queue, limit)
        moves = self.places.moves()
        return Looked(moves, queue, self._connections, self.places.drawn_of, self.places.counts)

    def sample(self) -> dict[str, object]:
        """What was measured, and `busy`: cores, as in `CoresBusy`; None: nobody knows."""
        busy = None
        with contextlib.suppress(psutil.Error):
            busy = self._busy.look()
        return {**asdict(self.places.sample(time.monotonic_ns())), "busy": busy}

    def _heard(self) -> list[Event]:
        heard = self._unread
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._events, AT_ONCE):
                heard += data
        *lines, self._unread = heard.split(b"\n")
        found = []
        for line in lines:
            kind, number, at_ns, cause = line.decode("ascii").split(" ", 3)
            if kind == "o":
                self._connections = int(number)
            else:
                found.append(Event(int(at_ns), kind, int(number), cause=cause))
        return found


class Side:
    """`changed` is called from any thread when `phase` has changed."""

    def __init__(
        self, asked: ServerAsked, python: str, gunicorn: str, changed: Callable[[], None]
    ) -> None:
        self.asked, self._python, self._gunicorn, self._changed = asked, python, gunicorn, changed
        self.phase: Phase = "stopped"
        self.why: str | None = None
        self.live: Live | None = None
        self._load, self._seed = LoadAsked(), 0
        self._lock = threading.Lock()  # of all that is here
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, load: LoadAsked, seed: int = 0) -> None:
        """Anew where it runs. Returns at once."""
        with self._lock:
            self._stop.set()
            self._stop = threading.Event()
            self._load, self._seed = load, seed
        self._set("starting")
        waits_for = self._thread
        self._thread = threading.Thread(
            target=self._run, args=(self._stop, self.asked, waits_for), daemon=True
        )
        self._thread.start()

    def change(self, load: LoadAsked, seed: int = 0) -> None:
        """The load, at once."""
        with self._lock:
            self._load, self._seed = load, seed
            if self.live is not None:
                self.live.load(load, seed)

    def stop(self) -> None:
        """Returns at once; `join` waits for the end."""
        with self._lock:
            self._stop.set()
        self._set("stopped")

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def look(self) -> tuple[Looked, Live] | None:
        """None while no server runs."""
        with self._lock:
            if self.live is None:
                return None
            return self.live.look(), self.live

    def now(self) -> list[Move] | None:
        """As in `Places`. None while no server runs."""
        with self._lock:
            return None if self.live is None else self.live.places.now(time.monotonic_ns())

    def measured(self, over_s: float) -> Seen | None:
        """Of the last so many seconds. None while no server runs."""
        with self._lock:
            if self.live is None:
                return None
            now_ns, places = time.monotonic_ns(), self.live.places
            since_ns = now_ns - int(over_s * NS)
            answers = places.latest(since_ns)
            times_s = [one.response_s for one in answers]
            oldest_s, answered_s = places.oldest_s(now_ns), max(times_s, default=0.0)
            sample, fastest_s = places.sample(now_ns, over_s), min(times_s, default=None)
            wasted = places.wasted(since_ns)
            return Seen(
                sample=sample, slowest_s=max(oldest_s, answered_s), fastest_s=fastest_s,
                where=_where(answers), answered=len(answers), wasted=wasted,
                slowest_waits=oldest_s > answered_s,
            )  # fmt: skip

    # --- its thread ------------------------------------------------------------------------------

    def _run(
        self, stop: threading.Event, asked: ServerAsked, before: threading.Thread | None
    ) -> None:
        if before is not None:
            before.join()
        if stop.is_set():
            return
        try:
            self._serve(stop, asked)
        except Faulty as fault:
            self._end(stop, fault.fault.reason)
        except (OSError, psutil.Error) as error:
            self._end(stop, f"the server could not be started: {error}")

    def _serve(self, stop: threading.Event, asked: ServerAsked) -> None:
        place = Path(tempfile.gettempdir()) / f"workerlab-live-{os.urandom(8).hex()}"
        commands, events = place / "commands", place / "events"
        argv = [sys.executable, "-I", "-S", str(GENERATORS), "live", str(commands), str(events)]
        with contextlib.ExitStack() as stack:
            tool = stack.enter_context(Guarded(
                argv, cwd=Path("/"), env=os.environ, grace_s=0.2,
                stdout=place / "load.out", remove=place,
            ))  # fmt: skip
            for path in (commands, events):
                os.mkfifo(path)
            ends = [os.open(commands, os.O_RDWR), os.open(events, os.O_RDONLY | os.O_NONBLOCK)]
            for end in ends:
                stack.callback(os.close, end)
            run_store.copy_code(place / "code")
            (place / "trial").mkdir()
            launch = Launch(
                server=asked.server, app=asked.server.app, python=self._python,
                code=place / "code", trial=place / "trial", config=None, records=RECORDS,
                named=True, kept=True, beats=False, gunicorn=self._gunicorn,
            )  # fmt: skip
            server = stack.enter_context(running(launch))
            try:
                if not stop.is_set():
                    self._while_it_runs(stop, server, Live(server, tool, *ends), tool)
            finally:
                self._set_live(None)

    def _while_it_runs(
        self, stop: threading.Event, server: Running, live: Live, tool: Guarded
    ) -> None:
        self._set("running", stop=stop)  # before it is looked at: what is heard earlier is stale
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
        """It failed, unless somebody had stopped it."""
        self._set_live(None)
        self._set("failed", why, stop)

    def _set_live(self, live: Live | None) -> None:
        with self._lock:
            self.live = live
            if live is not None:
                live.load(self._load, self._seed)

    def _set(
        self, phase: Phase, why: str | None = None, stop: threading.Event | None = None
    ) -> None:
        """Unless somebody has stopped it meanwhile."""
        with self._lock:
            if stop is not None and stop.is_set():
                return
            self.phase, self.why = phase, why
        self._changed()
