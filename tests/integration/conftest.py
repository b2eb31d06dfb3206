"""Runs the lab as its users do: as a program, in a directory of its own."""

from __future__ import annotations

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
from workerlab.cli import COMMANDS, load_function, main
from workerlab.experiments import EXPERIMENTS, experiment_module
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


# --- a network of its own ---------------------------------------------------------------------
#
# The kernel counts dropped handshakes for a whole network namespace. Where this user may make one,
# each test process has its own, and tests run side by side; elsewhere those that read the counters
# (marked `counters`) wait until they are alone.

LOCK = Path(tempfile.gettempdir()) / f"workerlab-tests-{os.getuid()}.lock"
own_network = False


def pytest_configure(config: pytest.Config) -> None:
    global own_network
    config.addinivalue_line("markers", "counters: reads what the kernel counts for all processes")
    config.addinivalue_line("markers", "once: the same for every class, so tested with sync alone")
    config.addinivalue_line("markers", "classes(*names): what is so of these worker classes alone")
    own_network = make_own_network()
    # A fifth of the CPU of a launch of eventlet is dnspython, and nothing here resolves a name; the
    # unit tests boot it with that
    os.environ["EVENTLET_NO_GREENDNS"] = "yes"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is not about the class under test is left out: seven environments would skip it."""
    worker_class = config.getoption("--worker-class")
    others = [item for item in items if not _is_about(item, worker_class)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


def _is_about(item: pytest.Item, worker_class: str) -> bool:
    if item.get_closest_marker("once") is not None and worker_class != "sync":
        return False
    return all(worker_class in mark.args for mark in item.iter_markers("classes"))


@contextmanager
def counting(*, alone: bool) -> Iterator[None]:
    if own_network:
        yield
        return
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.fixture(autouse=True)
def _counters_undisturbed(request: pytest.FixtureRequest) -> Iterator[None]:
    with counting(alone=request.node.get_closest_marker("counters") is not None):
        yield


def processes(marker: str) -> list[int]:
    """Live processes whose environment or words hold `marker` (the run's own directory)."""
    return [process.pid for process in running_processes(marker)]


def listening_ports() -> set[int]:
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {int(row.split()[1].rpartition(":")[2], 16) for row in rows if row.split()[3] == "0A"}


PROGRAM = [sys.executable, "-m", "workerlab"]
SAID_CHARS = 20_000  # of what a failed test shows of standard output


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The JSON document, and nothing but it, on standard output; as `workerlab schema` says."""
        document: dict[str, Any] = validated(json.loads(self.out))
        return document


def answers(report: dict[str, Any]) -> dict[str, Any]:
    """The values of each answer, by its code."""
    given = (finding["answer"] for finding in report["findings"])
    return {answer["code"]: answer["values"] for answer in given}


def why_invalid(out: str) -> str:
    """A line for each invalid cell of a JSON document."""
    try:
        cells = json.loads(out).get("cells", ())
    except (ValueError, AttributeError):
        return ""
    invalid = [cell["reason"]["text"] for cell in cells if cell["verdict"] == "invalid"]
    return "".join(f"invalid: {reason}\n" for reason in invalid)


def import_command(name: str) -> None:
    """What the program imports to run this command."""
    command = COMMANDS[name]
    for place in (command.options, command.action, "workerlab.project:with_project"):
        load_function(place)
    if name in EXPERIMENTS:
        experiment_module(name, "command")
        experiment_module(name, "document")


def become_program(words: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """In a fork of this process: run `python -m workerlab` with these words, and end."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as in a new program; Popen waits for it
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # it depends on the environment
    sys.argv = [program.__file__, *words]
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


def key_of(entry: dict[str, Any]) -> object:
    """The trial that a line of trials.jsonl is about."""
    return entry["record"]["key"] if "record" in entry else entry.get("began")


class Lab:
    """The program, run in `place`; its runs are kept in `place`/results."""

    def __init__(self, place: Path, path: Path | None = None) -> None:
        self.place = place
        self.last: Done | None = None
        self.program = PROGRAM
        self.env = {**os.environ, "PYTHONPATH": HARNESS, "NO_COLOR": "1"}
        if path is not None:  # programs that stand before the real ones
            self.env["PATH"] = f"{path}{os.pathsep}{self.env['PATH']}"

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Where the interpreter is the one of this process, a fork of this process, which has
        imported the lab: to start Python and to import the lab takes a sixth of the CPU of a short
        sweep."""
        become = None
        if self.program is PROGRAM and self.env.get("PYTHONPATH") == HARNESS:
            import_command(words[0])
            become = partial(become_program, words, self.env)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold no locks of it
            return subprocess.Popen(
                [*self.program, *words],
                cwd=self.place,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=become,
            )

    def __call__(self, *words: str) -> Done:
        return self.here(*words) if words[0] == "report" else self.finish(self.start(*words))

    def here(self, *words: str) -> Done:
        """What a command that starts nothing prints: another process would import the lab again."""
        out, err = StringIO(), StringIO()
        with chdir(self.place), redirect_stdout(out), redirect_stderr(err):
            code = main(words)
        self.last = done = Done(code, out.getvalue(), err.getvalue())
        return done

    def finish(self, process: subprocess.Popen[str]) -> Done:
        """What it printed and how it ended."""
        try:
            out, err = process.communicate(timeout=5 * LONG_S)
        except BaseException:
            process.kill()
            raise
        self.last = done = Done(process.returncode, out, err)
        return done

    def report(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The JSON document of a command that ends with this exit code."""
        done = self(*words, "--format", "json")
        assert done.code == code, done.err + done.out
        return done.report

    def sweep(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        """The cells of a sweep."""
        cells: list[dict[str, Any]] = self.report("sweep", *words, code=code)["cells"]
        return cells

    def report_on_versions(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Skips the test where no package index has the versions of Gunicorn."""
        done = self(*words, "--format", "json")
        if "does not respond" in done.err:
            pytest.skip("no package index, and not in the cache")
        assert done.code == code, done.err + done.out
        return done.report

    def refusal(self, *words: str) -> str:
        """The only line that is printed of invalid words; no run is made."""
        runs = list(self.place.glob("results/*"))
        done = self.here(*words)
        assert (done.code, done.out) == (2, "")
        assert list(self.place.glob("results/*")) == runs
        (line,) = done.err.splitlines()
        return line

    def at_work(
        self, *words: str, when: Callable[[], object], what: str, timeout_s: float = LONG_S
    ) -> subprocess.Popen[str]:
        """A command that runs, and of which `when` has become true."""
        process = self.start(*words)

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

    def end(self, process: subprocess.Popen[str], number: signal.Signals) -> Done:
        """What a signal makes of a command."""
        process.send_signal(number)
        return self.finish(process)

    def what_it_said(self) -> str:
        """For the report of a test that failed."""
        if self.last is None:
            return ""
        code, out, err = self.last.code, self.last.out, self.last.err
        return f"exit code {code}\n{err}\n{why_invalid(out)}\n{out[:SAID_CHARS]}"

    @property
    def run(self) -> Path:
        (only,) = (self.place / "results").iterdir()
        return only

    def records(self) -> list[dict[str, Any]]:
        lines = (self.run / "trials.jsonl").read_text().split("\n")[:-1]
        entries = (json.loads(line) for line in lines)
        return [entry["record"] for entry in entries if "record" in entry]

    def forget_paused_trials(self) -> bool:
        """Leaves the trials in whose load the machine stood still to be run again; whether there
        are any."""
        paused = {path.parent.name for path in self.run.glob(f"raw/*/{FILE}")
                  if read_observations(path.parent).pauses}  # fmt: skip
        path = self.run / "trials.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if key_of(json.loads(line)) not in paused))
        return bool(paused)

    def workers(self) -> list[int]:
        """Pids of the workers of the trial that is running now, newest trial first."""
        trials = sorted((self.place / "results").glob("*/raw/*"), key=lambda p: p.stat().st_mtime)
        return [int(path.stem.partition("-")[2]) for path in trials[-1].glob("worker-*.json")]

    def loads(self) -> int:
        """Trials whose load tool is or was at work (its directory exists)."""
        return len(list(self.place.glob("results/*/raw/*/tool/stdout")))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose every process and port must be gone after the test."""
    yield Lab(tmp_path)
    until(lambda: not processes(str(tmp_path)), f"no process left of {tmp_path}", 30)
    taken = {
        json.loads(path.read_text())["address"][1] for path in tmp_path.rglob("listening*.json")
    }
    until(lambda: not listening_ports() & taken, "no port left", 30)


# --- sweeps that many tests read ----------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: for reading only, other tests do so, too."""

    lab: Lab
    report: dict[str, Any]

    @property
    def cells(self) -> list[dict[str, Any]]:
        cells: list[dict[str, Any]] = self.report["cells"]
        return cells


# If all processes are frozen every nine seconds on average, as by `tests/disturb.py`, every second
# load of six seconds is spared: that none of twelve is happens once in 4,000 times. A load of
# twenty seconds is hardly ever spared, and is not repeated for longer than this
ATTEMPTS, ATTEMPTS_S = 12, 90.0


def attempts() -> Iterator[int]:
    """Of a measurement in which the machine must not stand still: four, and more if they are
    short."""
    began = time.monotonic()
    for attempt in range(ATTEMPTS):
        if attempt >= 4 and time.monotonic() - began > ATTEMPTS_S:
            return
        yield attempt


def run_once(
    factory: pytest.TempPathFactory, name: str, *words: str, **env: str
) -> tuple[Lab, Done]:
    """`words`: the last two are the format. Run by the first test process that asks for it; the
    others wait, and read what it left. A trial in whose load the machine stood still is run again,
    as often as `attempts` allows: no test could use it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all test processes
    place, done_path = base / name, base / f"{name}.json"
    lab = Lab(place)
    lab.env |= env
    with (base / f"{name}.lock").open("w") as lock, counting(alone=False):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done_path.exists():
            place.mkdir()
            done = lab(*words)
            for _ in attempts():
                if done.code or not lab.forget_paused_trials():
                    break
                again = lab(words[0], "--resume", str(lab.run), *words[-2:])
                done = Done(again.code, again.out, done.err + again.err)
            assert done.code == 0, done.err + done.out
            done_path.write_text(json.dumps(asdict(done)))
    return lab, Done(**json.loads(done_path.read_text()))


def sweep_once(factory: pytest.TempPathFactory, name: str, *words: str) -> Sweep:
    lab, done = run_once(factory, name, "sweep", *words, "--format", "json")
    return Sweep(lab, done.report)


# For gthread worker_connections keeps connections in the kernel's queue, so that no worker hoards
# more than 3, and each fills its threads
LIMITED = Server("", 2, 2, 2048, 3)
LIMITED_N, LIMITED_ROUNDS, LIMITED_SLEEP_S = 10, 2, 1.0


def limited_server(worker_class: str) -> Server:
    """tornado accepts all it can get and answers in batches, so that a second worker may starve
    for a whole run: nothing guarantees that both serve at once."""
    workers = 1 if worker_class == "tornado" else LIMITED.workers
    return replace(LIMITED, worker_class=worker_class, workers=workers)


@pytest.fixture(scope="session")
def limited(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Sweep:
    """More connections than slots, where the class has a limit, by every tool that is installed and
    can renew connections to the class."""
    server = limited_server(worker_class)
    able = ("ab", "wrk", "oha") if worker_class == "asgi" else ("ab", "wrk", "h2load", "oha")
    tools = [tool for tool in able if shutil.which(tool)]
    return sweep_once(
        tmp_path_factory, "limited", worker_class, str(LIMITED_N),
        "--tool", ",".join(["fast", *tools]), "--workers", str(server.workers),
        "--threads", str(server.threads), "--backlog", str(server.backlog),
        "--worker-connections", str(server.worker_connections),
        "--sleep", str(LIMITED_SLEEP_S), "--rounds", str(LIMITED_ROUNDS),
    )  # fmt: skip


OPEN_WORKERS, OPEN_THREADS, OPEN_N, OPEN_ROUNDS = 2, 2, 6, 3
OPEN_BUSY_S = 0.01  # what a request computes: the kernel counts CPU in as much
# So long that there is a moment at which nothing begins or ends, even where each request of the six
# has moved to a time of its own
OPEN_SLEEP_S = 2


@pytest.fixture(scope="session")
def closed_and_kept(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Sweep:
    """Two cells, of connections closed and kept; nothing limits what an asynchronous worker
    accepts."""
    threads = ("--threads", str(OPEN_THREADS)) if worker_class == "gthread" else ()
    return sweep_once(
        tmp_path_factory, "closed-and-kept", worker_class, str(OPEN_N), "--keepalive", "off,on",
        "--tool", "fast", "--workers", str(OPEN_WORKERS), *threads, "--sleep", str(OPEN_SLEEP_S),
        "--path", f"/?cpu={1000 * OPEN_BUSY_S:.0f}", "--rounds", str(OPEN_ROUNDS),
    )  # fmt: skip


def stood_still(run: Path) -> bool:
    """Whether the lab noted that it was not run for a while, though it waited for no core, in any
    load of a run: what a test says of time may then not be so."""
    observations = (read_observations(path.parent) for path in run.rglob(FILE))
    return any(observed.pauses for observed in observations)


def cores_taken(lab: Lab) -> bool:
    """Whether the last report, if JSON, says that others used the cores that a load needed."""
    report = lab.last.out if lab.last else ""
    return any(f'"code": "{code}"' in report for code in ("CoresTaken", "CoresStolen"))


T = TypeVar("T")


def right_unless_still(lab: Lab, attempt: Callable[[], T], right: Callable[[T], bool]) -> T:
    """What `attempt` gives. Where that is not `right`, and the machine stood still in the only run
    that it leaves or others used the cores, it is made again, as often as `attempts` allows."""
    for _ in attempts():
        outcome = attempt()
        if right(outcome) or not (stood_still(lab.run) or cores_taken(lab)):
            break
        shutil.rmtree(lab.run)
    return outcome


def advised(lab: Lab, *words: str) -> dict[str, Any]:
    """The report of `advise` with a recommendation: a busy machine takes longer until there are
    three launches."""
    for budget in range(40, 241, 40):
        done = lab("advise", *words, "--budget", str(budget), "--format", "json")
        if done.code != 1:
            break
        words = ("--resume", str(lab.run))
    assert done.code == 0, done.err + done.out
    return done.report


def kept(record: dict[str, Any]) -> bool:
    """Which of the two cells."""
    return "-fast-k-" in record["key"]


@contextmanager
def fake_program(place: Path, name: str, text: str) -> Iterator[Path]:
    """A directory for the front of PATH with a program called `name`."""
    directory = place / "fakes"
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(text)
    (directory / name).chmod(0o755)
    yield directory


# --- a load on a null server ----------------------------------------------------------------


def loaded(cell: Cell, place: Path) -> TrialData:
    """A trial of this cell, whose run is in `place`."""
    trial = Trial(cell, 1)
    record = run_trial(null_task(trial, place))
    return read_trial(trial, record, null_plan("test", [cell]), place)


# --- apps of a test's own -------------------------------------------------------------------

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
    """A module with an app that answers "ok" after a wait: an ASGI app for a class that takes one,
    else a WSGI app. `setup`: lines of the module; `work`: a statement before the wait."""
    text = ASGI_APP if worker_class in ASGI_CLASSES else WSGI_APP
    return text.format(setup=setup, work=work, wait_s=wait_s)


# --- a server with an app of ours -----------------------------------------------------------

Serve = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def serve(tmp_path: Path, worker_class: str) -> Serve:
    return serve_in(tmp_path, worker_class)


def serve_in(root: Path, worker_class: str) -> Serve:
    """`serve(text)`: a real server of this class, for the app that `text` calls `app`. No records:
    without the probe."""

    def start(
        text: str, *, records: int = 1_000, named: bool = False, **app: Any
    ) -> AbstractContextManager[Running]:
        (root / "own.py").write_text(text)
        server = Server(worker_class, 2, 2 if worker_class == "gthread" else 1, 64, 100)
        own = App("own:app", str(root), **app)
        place = Path(tempfile.mkdtemp(dir=root))
        return serving.serve(launch(place, server, own, records=records, names_requests=named))

    return start


# Returns the request as the app sees it, a stream, or a response of the bundled apps
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

def shown(environ, start_response):
    texts = {name: value for name, value in environ.items() if isinstance(value, str)}
    body = json.dumps([sorted(environ), texts]).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]

def app(environ, start_response):
    if environ["PATH_INFO"] == "/stream":
        return stream(environ, start_response)
    if environ["PATH_INFO"] == "/environ":
        return shown(environ, start_response)
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
    await asyncio.sleep(60)  # in the background: nobody waits for it

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


def answering_app(worker_class: str) -> str:
    """An app without lifespan, which an ASGI app shows by raising."""
    text = ASGI_ANSWERS if worker_class in ASGI_CLASSES else WSGI_ANSWERS
    return f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{text}"


@pytest.fixture(scope="session")
def answering(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Iterator[Running]:
    """A server for all tests that only look at its responses."""
    start = serve_in(tmp_path_factory.mktemp("answers"), worker_class)
    with start(answering_app(worker_class), named=True) as server:
        yield server


def spans(server: Running) -> list[Span]:
    """In the order in which they began."""
    all_spans = read_spans(server.launch.trial).spans
    return sorted(all_spans, key=lambda span: span.start_ns)


def fetch(server: Running, path: str = "/", method: str = "GET") -> tuple[int, bytes]:
    """A request on a connection of its own, and the whole answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LONG_S)
    try:
        connection.request(method, path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def settled(server: Running) -> list[Span]:
    """All spans, once each has ended: an answer may arrive before its end is written."""
    until(lambda: all(span.end_ns for span in spans(server)), "every span ends")
    return spans(server)
