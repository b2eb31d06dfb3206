"""The probe: what it records, when, and what it must not change."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import wsgiref.util
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gunicorn.http.wsgi
import pytest

from tests.builders.conditions import LONG_S
from tests.builders.processes import python
from workerlab.model.evidence import Span, Spans
from workerlab.observe.spans import read_spans
from workerlab.server.inside import probe
from workerlab.server.inside.maps import HEADER_BYTES, SPANS, create_map

ROOT = Path(__file__).resolve().parents[3]
INSIDE = ROOT / "harness" / "workerlab" / "server" / "inside"
FOREIGN = (*sorted(INSIDE.glob("[!_]*.py")), ROOT / "harness" / "workerlab" / "server" / "guard.py")


class Recording:
    """The probe, started in this process, and the spans in its map so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.first_requests = 0

    def begin(self, capacity: int = 64, *, names: bool = False, keepalive: bool = False) -> None:
        probe.start(str(self.directory), capacity, self._first, names=names, keepalive=keepalive)

    def _first(self) -> None:
        self.first_requests += 1

    def read(self) -> Spans:
        return read_spans(self.directory)

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.read().spans

    @property
    def only(self) -> Span:
        (span,) = self.spans
        return span

    @property
    def map(self) -> Path:
        (path,) = self.directory.glob("spans-*.map")
        return path


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    for name in ("cells", "take", "first_request", "has_names", "look_up"):
        monkeypatch.setattr(probe, name, getattr(probe, name))
    monkeypatch.setattr(probe, "accepted", {})
    # Fork hooks cannot be unregistered and would run in every later child
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    started = Recording(tmp_path)
    started.begin()
    return started


def ended(span: Span) -> bool:
    return span.end_ns is not None and span.end_ns >= span.start_ns


# --- WSGI -----------------------------------------------------------------------------------


def wsgi(body: Any, handled: tuple[object, ...] = (), environ: dict[str, Any] | None = None) -> Any:
    """What the server gets from a probed app that returns `body`."""
    return probe.wrap_wsgi(lambda *_: body, handled)(environ or {}, lambda *_: None)


def stream() -> Iterator[bytes]:
    yield b"one"
    yield b"two"


@pytest.mark.parametrize(
    ("make", "chunks"),
    [
        (lambda: [b"one", b"two"], [b"one", b"two"]),
        (lambda: (b"one",), [b"one"]),
        (stream, [b"one", b"two"]),
        (list, []),
        (lambda: iter(()), []),
        (lambda: BytesIO(b"one\ntwo"), [b"one\n", b"two"]),
    ],
    ids=["list", "tuple", "generator", "empty list", "empty iterator", "file"],
)
def test_a_body_ends_when_it_is_closed(
    recording: Recording, make: Callable[[], Any], chunks: list[bytes]
) -> None:
    body = wsgi(make())
    assert recording.only.end_ns is None
    assert list(body) == chunks
    assert recording.only.end_ns is None
    body.close()
    assert ended(recording.only)
    assert recording.only.pid == os.getpid()


def test_the_apps_own_close_is_called_first(recording: Recording) -> None:
    end_times = []

    class Body(list[bytes]):
        def close(self) -> None:
            end_times.append(recording.only.end_ns)

    wsgi(Body([b"x"])).close()
    assert end_times == [None]
    assert ended(recording.only)


def test_a_close_that_raises_still_ends_the_span(recording: Recording) -> None:
    class Body(list[bytes]):
        def close(self) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        wsgi(Body()).close()
    assert ended(recording.only)


def test_length_and_attributes_pass_through(recording: Recording) -> None:
    class Body(list[bytes]):
        name = "report.pdf"

    body = wsgi(Body([b"one", b"two"]))
    assert len(body) == 2
    assert body.name == "report.pdf"
    endless, plain = wsgi(stream()), wsgi([])
    with pytest.raises(TypeError):
        len(endless)
    assert not hasattr(plain, "fileno")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
def test_an_app_that_raises_ends_the_span(recording: Recording, error: BaseException) -> None:
    def app(*_: Any) -> Any:
        raise error

    with pytest.raises(type(error)):
        probe.wrap_wsgi(app)({}, lambda *_: None)
    assert ended(recording.only)


@pytest.mark.parametrize("kind", [wsgiref.util.FileWrapper, gunicorn.http.wsgi.FileWrapper])
def test_a_file_wrapper_is_returned_unchanged(recording: Recording, kind: type[Any]) -> None:
    """Servers use sendfile only for their own wrapper."""
    file = BytesIO(b"all of it")
    wrapper = kind(file)
    body = wsgi(wrapper, environ={"wsgi.file_wrapper": kind})
    assert body is wrapper
    assert recording.only.end_ns is None
    body.close()
    assert file.closed
    assert ended(recording.only)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (wsgiref.util.FileWrapper(SimpleNamespace(read=lambda _: b"")), wsgiref.util.FileWrapper),
        ([b"x"], lambda file: file),
    ],
    ids=["a file without close", "a function"],
)
def test_other_file_wrappers_end_when_they_are_closed(
    recording: Recording, body: Any, kind: Callable[..., Any]
) -> None:
    wsgi(body, environ={"wsgi.file_wrapper": kind}).close()
    assert ended(recording.only)


@pytest.mark.parametrize("marker", [object(), None, ()])
def test_an_already_handled_marker_is_the_same_object(recording: Recording, marker: Any) -> None:
    """The server compares by identity."""
    assert wsgi(marker, handled=(object(), marker)) is marker
    assert ended(recording.only)


def test_arguments_and_headers_are_the_servers_own(recording: Recording) -> None:
    environ, calls = {"PATH_INFO": "/"}, []

    def start_response(*arguments: Any) -> None:
        calls.append(arguments)

    def app(given: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        assert given is environ
        assert start is start_response
        start("200 OK", [])
        return []

    probe.wrap_wsgi(app)(environ, start_response)
    assert calls == [("200 OK", [])]


# --- ASGI -----------------------------------------------------------------------------------

HTTP = {"type": "http"}
START = {"type": "http.response.start", "status": 200, "headers": []}


def body_message(more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"x", "more_body": more}


async def receive() -> dict[str, Any]:
    return {"type": "http.request"}


class Sent:
    """A server's `send`: each message type, and whether the span was open at that moment."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.messages: list[tuple[str, bool]] = []

    async def __call__(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)  # like a server that waits for its client
        self.messages.append((message["type"], self._recording.only.end_ns is None))


def test_an_asgi_span_ends_with_the_last_body_and_not_with_the_app(recording: Recording) -> None:
    async def run() -> None:
        background, finish = asyncio.Event(), asyncio.Event()

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await send(START)
            await send(body_message(more=True))
            assert recording.only.end_ns is None
            await send(body_message())
            background.set()
            await finish.wait()

        sent = Sent(recording)
        serving = asyncio.create_task(probe.wrap_asgi(app)(HTTP, receive, sent))
        await background.wait()
        end_ns = recording.only.end_ns
        assert ended(recording.only)
        finish.set()
        await serving
        assert recording.only.end_ns == end_ns
        assert sent.messages == [("http.response.start", True)] + 2 * [("http.response.body", True)]

    asyncio.run(run())


def serve_asgi(app: Any, send: Any, scope: Any = HTTP, wrap: Any = probe.wrap_asgi) -> None:
    asyncio.run(wrap(app)(scope, receive, send))


@pytest.mark.parametrize(
    ("message", "ends"),
    [
        (body_message(), True),
        ({"type": "http.response.pathsend", "path": "/x"}, True),
        ({"type": "http.response.debug"}, False),
        ({**START, "trailers": True}, False),
    ],
    ids=["last body", "pathsend", "debug", "trailers"],
)
def test_messages_that_end_an_asgi_span_before_the_app_ends(
    recording: Recording, message: dict[str, Any], ends: bool
) -> None:
    after = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(START)
        await send(message)
        after.append(recording.only.end_ns is not None)

    serve_asgi(app, Sent(recording))
    assert after == [ends]
    assert ended(recording.only)


async def returns(*_: Any) -> None:
    return None


async def fails(*_: Any) -> None:
    raise OSError("client disconnected")


async def cancelled(*_: Any) -> None:
    raise asyncio.CancelledError


async def answers(_scope: Any, _receive: Any, send: Any) -> None:
    await send(body_message())


@pytest.mark.parametrize(
    ("app", "send", "error"),
    [
        (returns, returns, None),
        (fails, returns, OSError),
        (answers, fails, OSError),
        (cancelled, returns, asyncio.CancelledError),
    ],
    ids=["no body", "error", "failed send", "cancelled"],
)
def test_an_asgi_app_that_ends_without_a_body_ends_the_span(
    recording: Recording, app: Any, send: Any, error: type[BaseException] | None
) -> None:
    with pytest.raises(error) if error else nullcontext():
        serve_asgi(app, send)
    assert ended(recording.only)


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_other_asgi_scopes_are_not_recorded(recording: Recording, kind: str) -> None:
    given = []

    async def app(*arguments: Any) -> None:
        given.extend(arguments)

    arguments = ({"type": kind}, receive, Sent(recording))
    asyncio.run(probe.wrap_asgi(app)(*arguments))
    assert all(actual is expected for actual, expected in zip(given, arguments, strict=True))
    assert recording.spans == ()
    assert recording.first_requests == 0


def test_an_asgi2_app_is_recorded(recording: Recording) -> None:
    class App:
        def __init__(self, scope: Any) -> None:
            assert scope is HTTP

        async def __call__(self, _receive: Any, send: Any) -> None:
            await send(START)
            assert recording.only.end_ns is None
            await send(body_message())
            assert ended(recording.only)

    serve_asgi(App, Sent(recording), wrap=lambda app: probe.wrap_asgi(probe.asgi3_app(app)))
    assert ended(recording.only)


PORT = 4000
PEER = ("127.0.0.1", PORT)


def tornado_request(address: object = PEER) -> Any:
    return SimpleNamespace(
        connection=SimpleNamespace(context=SimpleNamespace(address=address)),
        headers={"X-Workerlab-Request": "17"},
    )


def test_a_tornado_application_is_recorded_and_otherwise_unchanged(recording: Recording) -> None:
    recording.begin(names=True)
    probe.accepted[PORT] = 7
    request = tornado_request()
    logged = []
    application = SimpleNamespace(
        find_handler=lambda given, **names: (given, names), log_request=logged.append
    )
    probed = probe.probe_tornado(application)
    assert probed is application
    assert probed.find_handler(request, extra=1) == (request, {"extra": 1})
    assert recording.only.end_ns is None
    handler = SimpleNamespace(request=request)
    probed.log_request(handler)
    assert logged == [handler]
    assert ended(recording.only)
    assert (recording.only.accept_ns, recording.only.request_id) == (7, "17")


# --- accepts and names ----------------------------------------------------------------------

ENVIRON = {"REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "4000"}


def ask_wsgi(**changes: Any) -> None:
    wsgi([], environ={**ENVIRON, **changes}).close()


def ask_asgi(**changes: Any) -> None:
    serve_asgi(returns, returns, {**HTTP, "client": PEER, "headers": [], **changes})


def test_every_request_of_a_kept_connection_has_its_accept(recording: Recording) -> None:
    recording.begin(keepalive=True)
    probe.accepted[PORT] = 7
    for _ in range(2):
        ask_wsgi()
        ask_asgi()
    probe.accepted[PORT] = 9
    ask_wsgi()
    assert [span.accept_ns for span in recording.spans] == [7, 7, 7, 7, 9]
    assert recording.first_requests == 1


def test_an_accept_is_dropped_after_its_only_request(recording: Recording) -> None:
    """The table does not grow, and a second request has no accept instead of a wrong one."""
    probe.accepted[PORT] = 7
    ask_wsgi()
    ask_wsgi()
    probe.accepted[PORT] = 8
    ask_asgi()
    ask_asgi()
    assert [span.accept_ns for span in recording.spans] == [7, None, 8, None]
    assert probe.accepted == {}


@pytest.mark.parametrize(
    "environ", [{}, *({**ENVIRON, "REMOTE_PORT": port} for port in ("4001", "0", "", "http"))]
)
def test_an_unknown_wsgi_port_has_no_accept(recording: Recording, environ: dict[str, Any]) -> None:
    probe.accepted[PORT] = 7
    wsgi([], environ=environ).close()
    assert recording.only.accept_ns is None
    assert ended(recording.only)


@pytest.mark.parametrize("client", [None, ("10.0.0.1", 0), ("127.0.0.1", 4001)])
def test_an_unknown_asgi_port_has_no_accept(recording: Recording, client: object) -> None:
    probe.accepted[PORT] = 7
    ask_asgi(client=client)
    assert recording.only.accept_ns is None


class Container:
    """The part of tornado's WSGI container that the probe uses."""

    def __init__(self, app: Any) -> None:
        self.wsgi_application = app

    def environ(self, request: Any) -> dict[str, Any]:
        return {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_WORKERLAB_REQUEST": "17", "request": request}

    def __call__(self, request: Any) -> None:
        body = self.wsgi_application(self.environ(request), lambda *_: None)
        list(body)
        body.close()


def test_tornados_container_provides_accept_and_name(recording: Recording) -> None:
    recording.begin(names=True)
    probe.accepted[PORT] = 7
    environs = []

    def app(environ: dict[str, Any], _: Any) -> list[bytes]:
        environs.append(environ)
        return []

    container, request = Container(app), tornado_request((*PEER, 0, 0))
    assert probe.probe_container(container) is container
    container(request)
    assert (recording.only.accept_ns, recording.only.request_id) == (7, "17")
    assert environs == [Container(app).environ(request)]


@pytest.mark.parametrize("address", ["0.0.0.0", None])
def test_tornado_on_a_unix_socket_has_no_accept(address: str | None) -> None:
    # The address is then a string or None
    assert probe.accepted.get(probe.tornado_port(tornado_request(address))) is None
    assert probe.tornado_port(SimpleNamespace(connection=None)) == 0


def test_names_of_requests_are_recorded_on_request(recording: Recording) -> None:
    ask_wsgi(HTTP_X_WORKERLAB_REQUEST="17")
    ask_asgi(headers=[(b"x-workerlab-request", b"18")])
    assert [span.request_id for span in recording.spans] == [None, None]
    recording.begin(names=True)
    ask_wsgi(HTTP_X_WORKERLAB_REQUEST="17")
    ask_wsgi()
    ask_wsgi(HTTP_X_WORKERLAB_REQUEST="1234567890123456789")
    ask_asgi(headers=[(b"host", b"x"), (b"x-workerlab-request", b"18")])
    ask_asgi()
    names = [span.request_id for span in recording.spans[2:]]
    assert names == ["17", None, "1234567890123456", "18", None]


def test_names_beyond_the_capacity_overwrite_nothing(recording: Recording) -> None:
    recording.map.unlink()
    recording.begin(1, names=True)
    probe.accepted[PORT] = 7
    ask_wsgi(HTTP_X_WORKERLAB_REQUEST="17")
    first = recording.only
    for _ in range(2):
        ask_wsgi(HTTP_X_WORKERLAB_REQUEST="18")
    assert recording.spans == (first,)
    assert recording.read().full == (os.getpid(),)


# --- the map --------------------------------------------------------------------------------


def test_threads_lose_and_overwrite_nothing(recording: Recording) -> None:
    threads, requests = 8, 400
    recording.map.unlink()
    recording.begin(threads * requests)
    together = threading.Barrier(threads)
    app = probe.wrap_wsgi(lambda *_: [b"x"])

    def client() -> None:
        together.wait()
        for _ in range(requests):
            app({}, lambda *_: None).close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        clients = [threading.Thread(target=client) for _ in range(threads)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(recording.spans) == threads * requests
    assert all(map(ended, recording.spans))
    assert recording.read().full == ()
    assert recording.first_requests == 1


def test_a_full_map_is_reported_and_the_app_serves_on(recording: Recording) -> None:
    recording.map.unlink()
    recording.begin(3)
    recorded = [wsgi([b"x"]) for _ in range(2)]
    ask_asgi()
    assert recording.read().full == ()
    for _ in range(3):
        body = wsgi([b"x"])
        assert list(body) == [b"x"]
        body.close()
        ask_asgi()
    assert recording.read().full == (os.getpid(),)
    assert [span.end_ns is None for span in recording.spans] == [True, True, False]
    for body in recorded:  # requests with a record still end
        body.close()
    assert all(map(ended, recording.spans))
    assert len(recording.spans) == 3


def test_the_map_is_allocated_and_not_sparse(recording: Recording) -> None:
    """A hole would end the worker with SIGBUS when the disk fills up."""
    recording.map.unlink()
    recording.begin(100_000)
    file = recording.map.stat()
    assert file.st_size == HEADER_BYTES + 100_000 * SPANS.record.size
    assert file.st_blocks * 512 >= file.st_size


def test_a_full_disk_leaves_no_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room, raising=False)
    with pytest.raises(OSError, match="No space"):
        create_map(str(tmp_path / "spans-1-0.map"), SPANS, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_reused_pid_gets_another_map(recording: Recording) -> None:
    wsgi([]).close()
    recording.begin()
    wsgi([]).close()
    assert len(list(recording.directory.glob("spans-*.map"))) == 2
    assert len(recording.spans) == 2


# --- processes ------------------------------------------------------------------------------

PROLOGUE = """
import os, sys, time
from workerlab.server.inside import probe
probe.start(sys.argv[1], 16, lambda: None)
"""


FORKING = """
def app(environ, start_response):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
    return [b"x"]

parent, probed = os.getpid(), probe.wrap_wsgi(app)
for _ in range(2):
    body = probed({}, None)
    body.close()                     # a child that leaves the request it was forked in
    if os.getpid() != parent:
        again = probe.wrap_wsgi(lambda *_: [])({}, None)
        again.close()
        os._exit(0)
print(parent)
"""


def test_it_is_off_in_children_the_app_forks(tmp_path: Path) -> None:
    with python(PROLOGUE + FORKING, tmp_path, isolated=False) as process:
        out, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0
    spans = read_spans(tmp_path).spans
    assert [span.pid for span in spans] == 2 * [int(out)]
    assert all(map(ended, spans))


KILLED = """
probed = probe.wrap_wsgi(lambda *_: [b"x"])
probed({}, None).close()
open_one = probed({}, None)
print("inside", flush=True)
time.sleep(600)
"""


def test_a_killed_process_leaves_its_open_spans(tmp_path: Path) -> None:
    with python(PROLOGUE + KILLED, tmp_path, isolated=False) as process:
        assert process.stdout.readline() == "inside\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    first, second = read_spans(tmp_path).spans
    assert ended(first)
    assert second.start_ns >= first.start_ns
    assert second.end_ns is None


# --- foreign interpreters -------------------------------------------------------------------


def test_the_guard_has_the_syntax_of_python_3_10() -> None:
    """That of the other modules and of the apps is checked by ruff, as pyproject.toml says."""
    ast.parse(FOREIGN[-1].read_text(), feature_version=(3, 10))


# As a server loads them: the configuration file loads `boot`, which loads the others
IMPORTING = """
import json, os, runpy, sys
here, trial = sys.argv[1:]
settings = {"configs": [f"{here}/class.py"], "settings": {"workers": 3}, "env": [], "records": 1}
settings |= {"worker_class": None, "inside": "stacks", "cores": None}
os.environ["WORKERLAB_TRIAL"] = trial
for name in ("introspect", "guard"):
    runpy.run_path(f"{here}/{name}.py")
for workers in (3, 5):  # the second is a reload
    settings["settings"]["workers"] = workers
    with open(f"{trial}/launch.json", "w") as file:
        json.dump(settings, file)
    loaded = runpy.run_path(f"{here}/gunicorn_conf.py")
    assert loaded["workers"] == workers and loaded["worker_class"] == "sync", loaded
print("{}.{}".format(*sys.version_info))
"""


@pytest.mark.parametrize("name", ["python3.10", sys.executable], ids=["3.10", "own"])
def test_modules_load_without_the_lab_and_again_on_a_reload(tmp_path: Path, name: str) -> None:
    program = shutil.which(name)
    if program is None or subprocess.run([program, "-V"], capture_output=True).returncode:
        pytest.skip(f"no {name} on PATH that runs")
    here, trial = tmp_path / "code", tmp_path / "trial"
    here.mkdir()
    trial.mkdir()
    for path in FOREIGN:
        shutil.copy(path, here)
    (here / "class.py").write_text("worker_class = 'sync'\nworkers = 1\n")
    argv = [program, "-I", "-c", IMPORTING, str(here), str(trial)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    version = "3.10" if name == "python3.10" else "{}.{}".format(*sys.version_info)
    assert result.stdout == f"{version}\n", result.stderr
