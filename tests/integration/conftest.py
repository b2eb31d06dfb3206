"""Runs the lab as users do: as a program, in its own directory."""

from __future__ import annotations

import argparse
import fcntl
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    chdir,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from msgspec.structs import replace

from tests.builders.conditions import LONG_S as LONG_S
from tests.builders.conditions import until as until
from tests.builders.launch import launch
from tests.builders.network import make_own_network
from tests.builders.processes import running as running_processes
from tests.builders.schema import validated
from workerlab import __main__ as program
from workerlab.analysis.facts import TrialData
from workerlab.cli import main
from workerlab.experiments import EXPERIMENTS, action_of, add_options
from workerlab.experiments.reading import read_trial
from workerlab.experiments.trial import null_task
from workerlab.experiments.trial import run as run_trial
from workerlab.model.evidence import Span
from workerlab.model.plan import App, Cell, Server, Trial
from workerlab.observe.observations import FILE, read_observations
from workerlab.observe.spans import read_spans
from workerlab.plan import null_plan
from workerlab.server import serve as serving
from workerlab.server.running import Running
from workerlab.server.worker_classes import ASGI_CLASSES

ROOT = Path(__file__).resolve().parents[2]
HARNESS = str(ROOT / "harness")


# --- network namespaces -------------------------------------------------------------------------
#
# The kernel counts dropped handshakes per network namespace. If this user may create namespaces,
# each test process has its own; otherwise tests that read these counters (marked `counters`) run
# exclusively.

COUNTER_LOCK = Path(tempfile.gettempdir()) / f"workerlab-tests-{os.getuid()}.lock"
own_network = False


def pytest_configure(config: pytest.Config) -> None:
    global own_network
    config.addinivalue_line("markers", "counters: reads kernel counters shared by all processes")
    config.addinivalue_line("markers", "once: independent of the class, so tested with sync only")
    config.addinivalue_line("markers", "classes(*names): applies to these worker classes only")
    own_network = make_own_network()
    # dnspython takes a fifth of the CPU of an eventlet launch, and these tests resolve no names.
    # Unit tests launch eventlet with it.
    os.environ["EVENTLET_NO_GREENDNS"] = "yes"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that do not apply to the class under test."""
    worker_class = config.getoption("--worker-class")
    deselected = [item for item in items if not _applies_to(item, worker_class)]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if _applies_to(item, worker_class)]


def _applies_to(item: pytest.Item, worker_class: str) -> bool:
    if item.get_closest_marker("once") is not None and worker_class != "sync":
        return False
    return all(worker_class in mark.args for mark in item.iter_markers("classes"))


@contextmanager
def counter_lock(*, exclusive: bool) -> Iterator[None]:
    if own_network:
        yield
        return
    with COUNTER_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


@pytest.fixture(autouse=True)
def _lock_counters(request: pytest.FixtureRequest) -> Iterator[None]:
    with counter_lock(exclusive=request.node.get_closest_marker("counters") is not None):
        yield


def processes(marker: str) -> list[int]:
    """Live processes with `marker` (such as the run directory) in their environment or command."""
    return [process.pid for process in running_processes(marker)]


def listening_ports() -> set[int]:
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {int(row.split()[1].rpartition(":")[2], 16) for row in rows if row.split()[3] == "0A"}


PROGRAM = [sys.executable, "-m", "workerlab"]
MAX_OUTPUT_CHARS = 20_000  # of standard output in the report of a failed test


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """Standard output: one JSON document, valid by `workerlab schema`."""
        document: dict[str, Any] = validated(json.loads(self.out))
        return document


def answers(report: dict[str, Any]) -> dict[str, Any]:
    """The values of each answer by its code."""
    all_answers = (finding["answer"] for finding in report["findings"])
    return {answer["code"]: answer["values"] for answer in all_answers}


def invalid_reasons(out: str) -> str:
    """One line for each invalid cell of a JSON document."""
    try:
        cells = json.loads(out).get("cells", ())
    except (ValueError, AttributeError):
        return ""
    invalid = [cell["reason"]["text"] for cell in cells if cell["verdict"] == "invalid"]
    return "".join(f"invalid: {reason}\n" for reason in invalid)


def import_command(name: str) -> None:
    """Imports what the program imports to run this command."""
    add_options(name, argparse.ArgumentParser())
    action_of(name)
    import_module("workerlab.project")
    if name in EXPERIMENTS:
        for module in ("command", "document"):
            import_module(f"workerlab.experiments.{name}.{module}")


def run_forked(args: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """In a fork of this process: acts as `python -m workerlab` with these arguments, then exits."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as in a new program; Popen waits for it
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # depends on the environment
    sys.argv = [program.__file__, *args]
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    code: object = 1
    try:
        code = program.main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0)


class Lab:
    """The program, run in `place`; its runs are kept in `place`/results."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.last: CommandResult | None = None
        self.program = PROGRAM
        self.env = {**os.environ, "PYTHONPATH": HARNESS, "NO_COLOR": "1"}

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Forks this process, which has imported the lab, unless the test changes the program or
        PYTHONPATH: starting Python and importing the lab takes a sixth of the CPU of a short
        sweep."""
        preexec = None
        if self.program is PROGRAM and self.env.get("PYTHONPATH") == HARNESS:
            import_command(args[0])
            preexec = partial(run_forked, args, self.env)
        with warnings.catch_warnings():
            # Forking is safe: other threads hold no locks that the program needs
            warnings.simplefilter("ignore", DeprecationWarning)
            return subprocess.Popen(
                [*self.program, *args],
                cwd=self.place,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=preexec,
            )

    def __call__(self, *args: str) -> CommandResult:
        in_process = args[0] == "report"
        return self.run_in_process(*args) if in_process else self.finish(self.start(*args))

    def run_in_process(self, *args: str) -> CommandResult:
        """For commands that start no processes: saves importing the lab again."""
        out, err = StringIO(), StringIO()
        with chdir(self.place), redirect_stdout(out), redirect_stderr(err):
            code = main(args)
        self.last = result = CommandResult(code, out.getvalue(), err.getvalue())
        return result

    def finish(self, process: subprocess.Popen[str]) -> CommandResult:
        """Waits for the command."""
        try:
            out, err = process.communicate(timeout=5 * LONG_S)
        except BaseException:
            process.kill()
            raise
        self.last = result = CommandResult(process.returncode, out, err)
        return result

    def report(self, *args: str, code: int = 0, downloads: bool = False) -> dict[str, Any]:
        """The JSON document of a command that must exit with this code. Skips the test if the
        command `downloads` versions of Gunicorn and cannot."""
        result = self(*args, "--format", "json")
        if downloads and "does not respond" in result.err:
            pytest.skip("no package index, and not in the cache")
        assert result.code == code, result.err + result.out
        return result.report

    def sweep(self, *args: str, code: int = 0) -> list[dict[str, Any]]:
        """The cells of a sweep."""
        cells: list[dict[str, Any]] = self.report("sweep", *args, code=code)["cells"]
        return cells

    def refusal(self, *args: str) -> str:
        """The one-line error for invalid arguments, which create no run."""
        runs = list(self.place.glob("results/*"))
        result = self.run_in_process(*args)
        assert (result.code, result.out) == (2, "")
        assert list(self.place.glob("results/*")) == runs
        (line,) = result.err.splitlines()
        return line

    def at_work(
        self, *args: str, when: Callable[[], object], what: str, timeout_s: float = LONG_S
    ) -> subprocess.Popen[str]:
        """Starts a command and waits until `when()` is true while it runs."""
        process = self.start(*args)

        def reached() -> object:
            value = when()
            assert value or process.poll() is None, process.communicate()
            return value

        try:
            until(reached, what, timeout_s)
        except BaseException:
            process.kill()
            raise
        return process

    def end(self, process: subprocess.Popen[str], number: signal.Signals) -> CommandResult:
        """Sends a signal and waits for the command."""
        process.send_signal(number)
        return self.finish(process)

    def last_output(self) -> str:
        """For the report of a failed test."""
        if self.last is None:
            return ""
        code, out, err = self.last.code, self.last.out, self.last.err
        return f"exit code {code}\n{err}\n{invalid_reasons(out)}\n{out[:MAX_OUTPUT_CHARS]}"

    @property
    def run(self) -> Path:
        (run,) = (self.place / "results").iterdir()
        return run

    def records(self) -> list[dict[str, Any]]:
        lines = (self.run / "trials.jsonl").read_text().split("\n")[:-1]
        entries = map(json.loads, lines)
        return [entry["record"] for entry in entries if "record" in entry]

    def discard_paused_trials(self) -> bool:
        """Removes the lines of trials that a pause of the machine disturbed, so that --resume
        repeats them. Returns whether there were any."""
        paused = {path.parent.name for path in self.run.glob(f"raw/*/{FILE}")
                  if read_observations(path.parent).pauses}  # fmt: skip

        def is_paused(entry: dict[str, Any]) -> bool:
            return (entry["record"]["key"] if "record" in entry else entry.get("began")) in paused

        path = self.run / "trials.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not is_paused(json.loads(line))))
        return bool(paused)

    def workers(self) -> list[int]:
        """Pids of the newest trial's workers."""
        trials = sorted((self.place / "results").glob("*/raw/*"), key=lambda p: p.stat().st_mtime)
        return [int(path.stem.partition("-")[2]) for path in trials[-1].glob("worker-*.json")]

    def loads(self) -> int:
        """The number of trials whose load tool has started."""
        return len(list(self.place.glob("results/*/raw/*/tool/stdout")))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab. After the test, none of its processes and ports may remain."""
    yield Lab(tmp_path)
    until(lambda: not processes(str(tmp_path)), f"no process left of {tmp_path}", 30)
    sockets = (json.loads(path.read_text()) for path in tmp_path.rglob("listening*.json"))
    ports = {socket["address"][1] for socket in sockets}
    until(lambda: not listening_ports() & ports, "no port left", 30)


# --- sweeps shared by many tests ----------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """A finished sweep, shared and therefore read-only."""

    lab: Lab
    report: dict[str, Any]

    @property
    def cells(self) -> list[dict[str, Any]]:
        cells: list[dict[str, Any]] = self.report["cells"]
        return cells


# If all processes are frozen every nine seconds on average, as by `tests/disturb.py`, half of all
# loads of six seconds are undisturbed; twelve disturbed ones in a row occur once in 4,000 times.
# Loads of twenty seconds are hardly ever undisturbed, so the time for attempts is limited, too
ATTEMPTS, ATTEMPTS_S = 12, 90.0


def attempts() -> Iterator[int]:
    """Attempts at a measurement that no pause of the machine may disturb: four, and more if they
    are short."""
    start_s = time.monotonic()
    for attempt in range(ATTEMPTS):
        if attempt >= 4 and time.monotonic() - start_s > ATTEMPTS_S:
            return
        yield attempt


def run_once(
    factory: pytest.TempPathFactory, name: str, *args: str, **env: str
) -> tuple[Lab, CommandResult]:
    """Runs a command once for all test processes: the first runs it, the others wait and read its
    files. Trials disturbed by a pause of the machine are repeated as often as `attempts` allows.
    `args`: the last two are the format."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # shared by all test processes
    place, result_path = base / name, base / f"{name}.json"
    lab = Lab(place)
    lab.env |= env
    with (base / f"{name}.lock").open("w") as lock, counter_lock(exclusive=False):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result_path.exists():
            place.mkdir()
            result = lab(*args)
            for _ in attempts():
                if result.code or not lab.discard_paused_trials():
                    break
                rerun = lab(args[0], "--resume", str(lab.run), *args[-2:])
                result = CommandResult(rerun.code, rerun.out, result.err + rerun.err)
            assert result.code == 0, result.err + result.out
            result_path.write_text(json.dumps(asdict(result)))
    return lab, CommandResult(**json.loads(result_path.read_text()))


def sweep_once(factory: pytest.TempPathFactory, name: str, *args: str) -> Sweep:
    lab, result = run_once(factory, name, "sweep", *args, "--format", "json")
    return Sweep(lab, result.report)


# With gthread, worker_connections leaves connections in the kernel's queue: no worker accepts more
# than 3, and each fills its threads
LIMITED = Server("", 2, 2, 2048, 3)
LIMITED_N, LIMITED_ROUNDS, LIMITED_SLEEP_S = 10, 2, 1.0


def limited_server(worker_class: str) -> Server:
    """One worker with tornado: it accepts as many connections as it can and answers in batches, so
    a second worker may starve for a whole run."""
    workers = 1 if worker_class == "tornado" else LIMITED.workers
    return replace(LIMITED, worker_class=worker_class, workers=workers)


@pytest.fixture(scope="session")
def limited(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Sweep:
    """More connections than slots, if the class limits them, with each tool that is installed and
    can open a new connection per request to the class."""
    server = limited_server(worker_class)
    names = ("ab", "wrk", "oha") if worker_class == "asgi" else ("ab", "wrk", "h2load", "oha")
    tools = [tool for tool in names if shutil.which(tool)]
    return sweep_once(
        tmp_path_factory, "limited", worker_class, str(LIMITED_N),
        "--tool", ",".join(["fast", *tools]), "--workers", str(server.workers),
        "--threads", str(server.threads), "--backlog", str(server.backlog),
        "--worker-connections", str(server.worker_connections),
        "--sleep", str(LIMITED_SLEEP_S), "--rounds", str(LIMITED_ROUNDS),
    )  # fmt: skip


OPEN_WORKERS, OPEN_THREADS, OPEN_N, OPEN_ROUNDS = 2, 2, 6, 3
OPEN_BUSY_S = 0.01  # CPU per request: one kernel tick
# Long enough for a moment at which no request begins or ends, even if all six are out of phase
OPEN_SLEEP_S = 2


@pytest.fixture(scope="session")
def closed_and_kept(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Sweep:
    """Two cells: without and with keep-alive. Asynchronous workers accept without a limit."""
    threads = ("--threads", str(OPEN_THREADS)) if worker_class == "gthread" else ()
    return sweep_once(
        tmp_path_factory, "closed-and-kept", worker_class, str(OPEN_N), "--keepalive", "off,on",
        "--tool", "fast", "--workers", str(OPEN_WORKERS), *threads, "--sleep", str(OPEN_SLEEP_S),
        "--path", f"/?cpu={1000 * OPEN_BUSY_S:.0f}", "--rounds", str(OPEN_ROUNDS),
    )  # fmt: skip


def stood_still(run: Path) -> bool:
    """Whether the lab observed a pause of the machine in any load of a run, which may invalidate
    what a test expects of durations."""
    return any(read_observations(path.parent).pauses for path in run.rglob(FILE))


def cores_taken(lab: Lab) -> bool:
    """Whether the last report, if JSON, says that other programs used cores that a load needed."""
    report = lab.last.out if lab.last else ""
    return any(f'"code": "{code}"' in report for code in ("CoresTaken", "CoresStolen"))


T = TypeVar("T")


def retry_if_disturbed(lab: Lab, attempt: Callable[[], T], is_expected: Callable[[T], bool]) -> T:
    """The outcome of `attempt`, which makes a single run. If the outcome is not as expected, and a
    pause or other programs disturbed the run, it is repeated as often as `attempts` allows."""
    for _ in attempts():
        outcome = attempt()
        if is_expected(outcome) or not (stood_still(lab.run) or cores_taken(lab)):
            break
        shutil.rmtree(lab.run)
    return outcome


def advise(lab: Lab, *args: str) -> dict[str, Any]:
    """The report of `advise`, resumed until it has a recommendation: a busy machine needs longer
    for three launches."""
    for budget in range(40, 241, 40):
        result = lab("advise", *args, "--budget", str(budget), "--format", "json")
        if result.code != 1:
            break
        args = ("--resume", str(lab.run))
    assert result.code == 0, result.err + result.out
    return result.report


def is_keepalive(record: dict[str, Any]) -> bool:
    """Which cell of `closed_and_kept` a record belongs to."""
    return "-fast-k-" in record["key"]


@contextmanager
def fake_program(place: Path, name: str, text: str) -> Iterator[Path]:
    """A directory to put first in PATH, with a program called `name`."""
    directory = place / "fakes"
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(text)
    (directory / name).chmod(0o755)
    yield directory


def run_null_trial(cell: Cell, place: Path) -> TrialData:
    """A trial of this cell on a null server, with `place` as the run directory."""
    trial = Trial(cell, 1)
    record = run_trial(null_task(trial, place))
    return read_trial(trial, record, null_plan("test", [cell]), place)


# --- generated apps -------------------------------------------------------------------------

WSGI_APP = """
import time
{setup}
def app(environ, start_response):
    {work}
    time.sleep({wait_s})
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""
ASGI_APP = """
import asyncio
{setup}
async def app(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError
    {work}
    await asyncio.sleep({wait_s})
    headers = [(b"content-length", b"2")]
    await send({{"type": "http.response.start", "status": 200, "headers": headers}})
    await send({{"type": "http.response.body", "body": b"ok"}})
"""


def app_text(worker_class: str, *, wait_s: object = 0, setup: str = "", work: str = "pass") -> str:
    """A module with an app that answers "ok" after a wait: ASGI for an ASGI class, else WSGI.
    `setup`: lines at module level; `work`: a statement before the wait."""
    text = ASGI_APP if worker_class in ASGI_CLASSES else WSGI_APP
    return text.format(setup=setup, work=work, wait_s=wait_s)


# --- servers for generated apps -------------------------------------------------------------

Serve = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def serve(tmp_path: Path, worker_class: str) -> Serve:
    return serve_in(tmp_path, worker_class)


def serve_in(root: Path, worker_class: str) -> Serve:
    """`serve(text)`: a real server of this class for `app` in the module `text`. Zero records: no
    probe."""

    def start(
        text: str, *, records: int = 1_000, named: bool = False, **app: Any
    ) -> AbstractContextManager[Running]:
        (root / "own.py").write_text(text)
        server = Server(worker_class, 2, 2 if worker_class == "gthread" else 1, 64, 100)
        own_app = App("own:app", str(root), **app)
        place = Path(tempfile.mkdtemp(dir=root))
        return serving.serve(launch(place, server, own_app, records=records, names_requests=named))

    return start


# Returns the request as the app sees it, a stream, or a response like the bundled apps
WSGI_ANSWERS = """
import json
import time
from http import HTTPStatus
from apps.responses import respond_wsgi

def stream(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    for number in range(3):
        time.sleep(0.05)
        yield b"chunk %d\\n" % number

def show(environ, start_response):
    texts = {name: value for name, value in environ.items() if isinstance(value, str)}
    body = json.dumps([sorted(environ), texts]).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]

def app(environ, start_response):
    if environ["PATH_INFO"] == "/stream":
        return stream(environ, start_response)
    if environ["PATH_INFO"] == "/environ":
        return show(environ, start_response)
    return respond_wsgi(environ, start_response, HTTPStatus.OK, "hello")
"""
ASGI_ANSWERS = """
import asyncio
import json
from http import HTTPStatus
from apps.responses import respond_asgi

async def stream(send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(3):
        await asyncio.sleep(0.05)
        body = b"chunk %d\\n" % number
        await send({"type": "http.response.body", "body": body, "more_body": number < 2})
    await asyncio.sleep(60)  # in the background, after the response

async def show(scope, send):
    headers = sorted((name.decode(), value.decode()) for name, value in scope["headers"])
    texts = {name: value for name, value in scope.items() if isinstance(value, str)}
    body = json.dumps([sorted(scope), dict(headers), texts, scope["client"]]).encode()
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})

async def app(scope, receive, send):
    if scope["type"] != "http":
        raise ValueError(scope["type"])
    if scope["path"] == "/stream":
        await stream(send)
    elif scope["path"] == "/environ":
        await show(scope, send)
    else:
        await respond_asgi(scope, receive, send, HTTPStatus.OK, "hello")
"""


def sample_app(worker_class: str) -> str:
    """An app without lifespan support: as ASGI it raises."""
    text = ASGI_ANSWERS if worker_class in ASGI_CLASSES else WSGI_ANSWERS
    return f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{text}"


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Iterator[Running]:
    """A server for all tests that only inspect its responses."""
    start = serve_in(tmp_path_factory.mktemp("answers"), worker_class)
    with start(sample_app(worker_class), named=True) as server:
        yield server


def spans(server: Running) -> list[Span]:
    """By start time."""
    return sorted(read_spans(server.launch.trial).spans, key=lambda span: span.start_ns)


def fetch(server: Running, path: str = "/", method: str = "GET") -> tuple[int, bytes]:
    """The status and body of a request on a new connection."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LONG_S)
    try:
        connection.request(method, path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def finished_spans(server: Running) -> list[Span]:
    """All spans, once each has ended: a response may arrive before the end of its span is
    written."""
    until(lambda: all(span.end_ns for span in spans(server)), "every span ends")
    return spans(server)
