"""Runs Gunicorn with an ordinary configuration file, without the lab's probes, and observes it from
outside.

    with Site(...).start() as site:
        site.ask("/about")          a request on a new connection
        site.pids, site.listeners() facts from /proc and the kernel

From outside, a machine that stalls looks like a slow server: a worker seems to miss its heartbeat,
or a connection to be closed late. Such a measurement is repeated; if the machine stalls in every
attempt, the launch fails.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from workerlab.model.plan import Server
from workerlab.observe import inet_diag
from workerlab.observe.tcp import LISTEN, NOT_CLOSED
from workerlab.server.backends import GUNICORN_VARIABLES
from workerlab.server.process import Guarded
from workerlab.server.running import StartupTurn, TrialFailed, explained, log_lines
from workerlab.server.versions import with_version
from workerlab.server.worker_classes import class_named

TICK_S = 0.05
MIN_STALL_S = 0.25  # far longer than a thread waits for a busy core
MAX_ATTEMPTS = 8

Outcome = TypeVar("Outcome")


class MachineStalled(TrialFailed):
    """The machine stalled in every attempt."""

    def __init__(self) -> None:
        super().__init__("server", "the machine stalled in every attempt")


class StallDetector:
    """Detects that the machine stalls: a thread records how late it wakes up."""

    def __init__(self) -> None:
        self._last_tick_s = time.monotonic()
        self._stalls: list[tuple[float, float]] = []  # (end, length), seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "StallDetector":
        self._last_tick_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            self.tick(time.monotonic())

    def tick(self, now_s: float) -> None:
        if now_s - self._last_tick_s >= MIN_STALL_S:
            self._stalls.append((now_s, now_s - self._last_tick_s))
        self._last_tick_s = now_s

    def repeat(
        self,
        measure: Callable[[], Outcome],
        is_certain: Callable[[Outcome], bool] = lambda _: False,
        attempts: int = MAX_ATTEMPTS,
    ) -> Outcome:
        """The first result without a stall of the machine, or one that is certain despite a stall.
        Raises MachineStalled."""
        for _ in range(attempts):
            began_s = time.monotonic()
            outcome = measure()
            if is_certain(outcome) or self.longest_s(began_s, time.monotonic()) < MIN_STALL_S:
                return outcome
        raise MachineStalled

    def longest_s(self, since_s: float, now_s: float) -> float:
        """The longest stall that ended after `since_s`, including one not yet recorded."""
        recorded_s = [length_s for end_s, length_s in tuple(self._stalls) if end_s > since_s]
        return max([*recorded_s, now_s - self._last_tick_s])


BOOT_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 8.0  # after TERM
EVENT_TIMEOUT_S = 30.0  # for events that happen on any machine, however busy
RESPONSE_TIMEOUT_S = 15.0  # longer than any request of the experiments
POLL_S = 0.02
HOST = "127.0.0.1"
TRUSTED_IP = "127.0.0.2"  # a trusted proxy
FORWARDED_IP = "10.1.2.3"  # client address that the proxy forwards
LISTENING_LINE = re.compile(r"Listening at: http://127\.0\.0\.1:(\d+)")
CLASS_LINE = re.compile(r"Using worker: (\S+)")
# Each hook records its name; post_worker_init also the worker's request limit
HOOKS = """
def _tell(name, limit=None):
    with open({path!r}, "a") as file:
        file.write(f"{{name}} {{limit}}\\n")
def pre_fork(server, worker): _tell("pre_fork")
def post_fork(server, worker): _tell("post_fork")
def post_worker_init(worker): _tell("post_worker_init", worker.max_requests)
def when_ready(server): _tell("when_ready")
def pre_request(worker, request): _tell("pre_request")
def post_request(worker, request, environ, response): _tell("post_request")
def worker_int(worker): _tell("worker_int")
def worker_abort(worker): _tell("worker_abort")
def worker_exit(server, worker): _tell("worker_exit")
def child_exit(server, worker): _tell("child_exit")
def on_exit(server): _tell("on_exit")
"""


class InconclusiveLaunch(ValueError):
    """The launch shows nothing about the server."""


class AppReply(Struct, frozen=True):
    """The response to one request. `status`: None without one; `closes`: the server announced that
    it closes the connection; `error`: the exception's name."""

    status: int | None
    took_s: float
    body: bytes = b""
    closes: bool = False
    error: str = ""

    @property
    def about(self) -> dict[str, Any]:
        """The report of the inspected app. Raises InconclusiveLaunch if the status is not 200."""
        if self.status != 200:
            raise InconclusiveLaunch(f"expected status 200, got {self.error or self.status}")
        return dict(json.loads(self.body))

    @property
    def conclusive_status(self) -> int | None:
        """The status; None if the connection ended without one. Raises InconclusiveLaunch after a
        timeout."""
        if self.error == TimeoutError.__name__:
            raise InconclusiveLaunch("no response in time")
        return self.status


class Site:
    """A Gunicorn server, by default with one worker on a free port. `settings(site)`: settings for
    its file. `code`: added to PYTHONPATH. `directory`: for its files; absolute. `gunicorn`: the
    version, "" for that of `python`'s environment. `turn`: ends the server if the lab stops."""

    def __init__(
        self,
        server: Server,
        python: str,
        gunicorn: str,
        code: Path,
        directory: Path,
        settings: Callable[["Site"], Mapping[str, object]],
        turn: StartupTurn,
    ) -> None:
        self.server, self.directory, self.code = server, directory, code
        self.log, self.hooks = directory / "server.log", directory / "hooks.txt"
        self._settings, self.turn = settings, turn
        self._gunicorn = gunicorn
        self._argv = [python, "-m", "gunicorn", "-c", str(directory / "gunicorn.conf.py")]
        self.port, self.start_s = 0, 0.0
        self.statsd = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # receives metrics
        self.process: Guarded
        self.stalls = StallDetector()

    @contextlib.contextmanager
    def start(self) -> Iterator["Site"]:
        """Start the server; kill it afterwards. Raises TrialFailed if it does not respond."""
        self.directory.mkdir(parents=True)
        self.statsd.bind((HOST, 0))
        self._write_file()
        env = {name: value for name, value in os.environ.items() if name not in GUNICORN_VARIABLES}
        env |= with_version(self._gunicorn, env)
        paths = (env.get("PYTHONPATH"), str(self.code))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        argv = [*self._argv, self.server.app.target]
        began = time.monotonic()
        with (
            self.statsd,
            self.stalls,
            Guarded(
                argv, cwd=self.directory, env=env, stdout=self.log, grace_s=STOP_TIMEOUT_S
            ) as self.process,
        ):
            self.turn.started(self.process)
            self._wait_until_ready()
            self.start_s = time.monotonic() - began
            try:
                yield self
            finally:
                self.process.kill()  # TERM is tested by separate launches

    def stop(self) -> float | None:
        """Stop with SIGTERM. Returns the seconds it took; None if killed after STOP_TIMEOUT_S."""
        began = time.monotonic()
        self.process.stop()
        return None if self.process.exit_code == -signal.SIGKILL else time.monotonic() - began

    def _write_file(self) -> None:
        """Write the Gunicorn file, with the lab's hooks. Sets `port`, to 0 if it is not fixed."""
        worker_class = class_named(self.server.worker_class)
        defaults: dict[str, object] = {
            "bind": f"{HOST}:0",
            "worker_class": worker_class.path or worker_class.name,
            "workers": 1,
            "threads": self.server.threads,
            "control_socket_disable": True,  # else Gunicorn writes below the user's home
        }
        settings = {**defaults, **self._settings(self)}
        bind = settings["bind"]
        self.port = int(bind.rpartition(":")[2]) if isinstance(bind, str) else 0
        lines = [f"{name} = {value!r}" for name, value in settings.items()]
        text = "\n".join(lines) + "\n" + HOOKS.format(path=str(self.hooks))
        (self.directory / "gunicorn.conf.py").write_text(text)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.wait(0.0):
                why = explained("the server did not boot", self.log)
                raise TrialFailed("unavailable", why, f"its log: {self.log}")
            match = LISTENING_LINE.search(self.log_text())
            if match is not None:
                self.port = int(match[1])
            if self.port and self.ask("/about", timeout_s=1.0).status is not None:
                return
            self.wait(POLL_S)
        raise TrialFailed("unavailable", explained("the server does not respond", self.log))

    # --- from outside ------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Sleep. Raises Cancelled if the run is stopped meanwhile."""
        self.turn.sleep(seconds)

    def wait_until(self, condition: Callable[[], object], timeout_s: float) -> float | None:
        """Wait for the condition. Returns the seconds it took; None after a timeout."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > timeout_s:
                return None
            self.wait(POLL_S)
        return time.monotonic() - began

    def replaced_s(self, pids: Collection[int], timeout_s: float) -> float | None:
        """Seconds until other workers have replaced all of these; None after the timeout."""
        return self.wait_until(lambda: self.pids and not set(pids) & set(self.pids), timeout_s)

    def require(self, condition: Callable[[], object], failure: str) -> None:
        """Wait for a condition that any working server meets. Raises InconclusiveLaunch after
        EVENT_TIMEOUT_S."""
        if self.wait_until(condition, EVENT_TIMEOUT_S) is None:
            raise InconclusiveLaunch(f"{failure} within {EVENT_TIMEOUT_S:g} s")

    def wait_until_accepted(self) -> None:
        """Wait until a worker has accepted a connection. Returns at once if the kernel does not
        report connections."""
        with contextlib.suppress(OSError):
            self.require(self.accepted_count, "no worker accepted a connection")

    def closed_after_s(self, connection: socket.socket, timeout_s: float) -> float | None:
        """Seconds until the server closes the connection; None after the timeout. If the machine
        stalled meanwhile, waits that much longer."""
        began = time.monotonic()
        closed_s = _closed_after_s(connection, timeout_s)
        stall_s = self.stalls.longest_s(began, time.monotonic())
        if closed_s is not None or stall_s < MIN_STALL_S:
            return closed_s
        waited_s = time.monotonic() - began
        closed_s = _closed_after_s(connection, stall_s)
        return None if closed_s is None else waited_s + closed_s

    def log_text(self) -> str:
        """The server's log so far."""
        return "\n".join(log_lines(self.log))

    def logged_class(self) -> str:
        """The worker class that Gunicorn logs; "" if unknown."""
        match = CLASS_LINE.search(self.log_text())
        return match[1] if match else ""

    def timeout_kills(self) -> int:
        """Number of workers that Gunicorn logged as killed for not reporting in time."""
        return self.log_text().count("WORKER TIMEOUT")

    @property
    def pids(self) -> list[int]:
        """Pids of the workers, the children of the arbiter."""
        arbiter = self.process.pid
        try:
            children = Path(f"/proc/{arbiter}/task/{arbiter}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in children.split()]

    def listeners(self) -> list[inet_diag.Socket]:
        """The sockets that listen on `port`. Raises OSError if the kernel does not report them."""
        return inet_diag.sockets(socket.AF_INET, 1 << LISTEN, self.port)

    def accepted_count(self) -> int:
        """Open connections that a server process has accepted."""
        sockets = inet_diag.sockets(socket.AF_INET, NOT_CLOSED, self.port)
        return sum(bool(entry.inode) and entry.local[1] == self.port for entry in sockets)

    def called_hooks(self) -> list[list[str]]:
        """The hooks that ran, as [name, limit]; "None" except for post_worker_init."""
        return [line.split() for line in log_lines(self.hooks)]

    def new_metrics(self) -> set[str]:
        """The names of metrics sent to `statsd` since the last call."""
        self.statsd.setblocking(False)
        names: set[str] = set()
        with contextlib.suppress(OSError):
            while data := self.statsd.recv(1 << 16):
                names |= {line.partition(":")[0] for line in data.decode().splitlines()}
        return names

    def connect(self, source: str = HOST, timeout_s: float = RESPONSE_TIMEOUT_S) -> socket.socket:
        address = (HOST, self.port)
        return socket.create_connection(address, timeout=timeout_s, source_address=(source, 0))

    def ask(
        self,
        path: str,
        *headers: str,
        source: str = HOST,
        prefix: str = "",
        timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> AppReply:
        """Send a request on a new connection, closed after the response. `prefix`: text before the
        request."""
        began = time.monotonic()
        try:
            with self.connect(source, timeout_s) as connection:
                return exchange(connection, path, "Connection: close", *headers, prefix=prefix)
        except OSError as error:
            return AppReply(None, time.monotonic() - began, error=type(error).__name__)

    def start_requests(self, paths: Sequence[str]) -> list[Future[AppReply]]:
        """Start requests, each in a thread."""
        pool = ThreadPoolExecutor(len(paths))
        requests = [pool.submit(self.ask, path) for path in paths]
        pool.shutdown(wait=False)
        return requests


def exchange(connection: socket.socket, path: str, *headers: str, prefix: str = "") -> AppReply:
    """Send a request and read the response. `status` is None if the response is incomplete."""
    began = time.monotonic()
    lines = [f"GET {path} HTTP/1.1", "Host: lab", *headers, "", ""]
    try:
        connection.sendall((prefix + "\r\n".join(lines)).encode("latin-1"))
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return AppReply(None, time.monotonic() - began, error=type(error).__name__)
    took_s = time.monotonic() - began
    return AppReply(response.status, took_s, body, response.will_close)


def _closed_after_s(connection: socket.socket, timeout_s: float) -> float | None:
    """Seconds until the server closes the connection; None after the timeout."""
    began = time.monotonic()
    connection.settimeout(timeout_s)
    try:
        while connection.recv(1 << 16):
            connection.settimeout(max(0.01, timeout_s - (time.monotonic() - began)))
    except TimeoutError:
        return None
    except OSError:
        pass
    return time.monotonic() - began
