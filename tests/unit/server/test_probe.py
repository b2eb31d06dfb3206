"""The probe: what it records, and what it must not change."""

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
from concurrent.futures import ThreadPoolExecutor
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
from workerlab.server.inside import costs, probe
from workerlab.server.inside.maps import HEADER_BYTES, SPANS, create_map

INSIDE = Path(probe.__file__).parent
GUARD = INSIDE.parent / "guard.py"


class Recording:
    """The probe in this process, and the spans in its maps so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.first_requests = 0

    def begin(self, capacity: int = 64, *, names: bool = False, keepalive: bool = False) -> None:
        def first_request() -> None:
            self.first_requests += 1

        directory = str(self.directory)
        probe.start(directory, capacity, first_request, names=names, keepalive=keepalive)

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
    def maps(self) -> list[Path]:
        return list(self.directory.glob("spans-*.map"))


@pytest.fixture
def recording(tmp_path: Path, _restored_probe: None) -> Recording:
    recording = Recording(tmp_path)
    recording.begin()
    return recording


def ended(span: Span) -> bool:
    return span.end_ns is not None and span.end_ns >= span.start_ns


# --- WSGI -----------------------------------------------------------------------------------


def wsgi(body: Any, handled: tuple[object, ...] = (), environ: dict[str, Any] | None = None) -> Any:
    """The body that the server gets from a probed app that returns `body`."""
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


def test_a_span_ends_after_the_bodys_own_close_even_if_that_raises(recording: Recording) -> None:
    class Body(list[bytes]):
        def close(self) -> None:
            assert recording.only.end_ns is None
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        wsgi(Body([b"x"])).close()
    assert ended(recording.only)


@pytest.mark.usefixtures("recording")
def test_length_and_attributes_pass_through() -> None:
    class Body(list[bytes]):
        name = "report.pdf"

    body = wsgi(Body([b"one", b"two"]))
    assert len(body) == 2
    assert body.name == "report.pdf"
    assert not hasattr(wsgi([]), "fileno")
    with pytest.raises(TypeError):
        len(wsgi(stream()))


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
def test_spans_with_other_file_wrappers_end_when_the_body_is_closed(
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

    def app(received: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        assert received is environ
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


class Send:
    """A server's `send`; `messages`: the type of each, and whether the span was open."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.messages: list[tuple[str, bool]] = []

    async def __call__(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)  # as a server waits for its client
        self.messages.append((message["type"], self._recording.only.end_ns is None))


def serve_asgi(app: Any, send: Any, scope: Any = HTTP, wrap: Any = probe.wrap_asgi) -> None:
    asyncio.run(wrap(app)(scope, receive, send))


def test_an_asgi_span_ends_with_the_last_body_and_not_with_the_app(recording: Recording) -> None:
    ends_ns = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(START)
        await send(body_message(more=True))
        assert recording.only.end_ns is None
        await send(body_message())
        ends_ns.append(recording.only.end_ns)

    send = Send(recording)
    serve_asgi(app, send)
    assert ends_ns == [recording.only.end_ns]
    assert ended(recording.only)
    assert send.messages == [("http.response.start", True)] + 2 * [("http.response.body", True)]


@pytest.mark.parametrize(
    ("message", "ends"),
    [
        ({"type": "http.response.pathsend", "path": "/x"}, True),
        ({"type": "http.response.debug"}, False),
        ({**START, "trailers": True}, False),
    ],
    ids=["pathsend", "debug", "trailers"],
)
def test_of_other_messages_only_a_whole_file_ends_an_asgi_span(
    recording: Recording, message: dict[str, Any], ends: bool
) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(START)
        await send(message)
        assert (recording.only.end_ns is not None) is ends

    serve_asgi(app, Send(recording))
    assert ended(recording.only)


async def return_nothing(*_: Any) -> None:
    return None


async def fail(*_: Any) -> None:
    raise OSError("client disconnected")


async def cancel(*_: Any) -> None:
    raise asyncio.CancelledError


async def respond(_scope: Any, _receive: Any, send: Any) -> None:
    await send(body_message())


@pytest.mark.parametrize(
    ("app", "send", "error"),
    [
        (return_nothing, return_nothing, None),
        (fail, return_nothing, OSError),
        (respond, fail, OSError),
        (cancel, return_nothing, asyncio.CancelledError),
    ],
    ids=["no body", "error", "failed send", "cancelled"],
)
def test_an_asgi_app_that_ends_without_a_body_ends_the_span(
    recording: Recording, app: Any, send: Any, error: type[BaseException] | None
) -> None:
    with pytest.raises(error) if error else nullcontext():
        serve_asgi(app, send)
    assert ended(recording.only)


@pytest.mark.parametrize("wrap", [probe.wrap_asgi, costs.wrap_asgi])
@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_other_asgi_scopes_are_not_recorded(recording: Recording, kind: str, wrap: Any) -> None:
    received = []

    async def app(*arguments: Any) -> None:
        received.extend(arguments)

    arguments = ({"type": kind}, receive, Send(recording))
    asyncio.run(wrap(app)(*arguments))
    assert all(actual is expected for actual, expected in zip(received, arguments, strict=True))
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

    serve_asgi(probe.asgi3_app(App), Send(recording))
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
    application: Any = SimpleNamespace(
        find_handler=lambda request, **names: (request, names), log_request=logged.append
    )
    assert probe.probe_tornado(application) is application
    assert application.find_handler(request, extra=1) == (request, {"extra": 1})
    assert recording.only.end_ns is None
    handler = SimpleNamespace(request=request)
    application.log_request(handler)
    assert logged == [handler]
    assert ended(recording.only)
    assert (recording.only.accept_ns, recording.only.request_id) == (7, "17")


# --- accepts and names ----------------------------------------------------------------------

ENVIRON = {"REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "4000"}


def request_wsgi(**changes: Any) -> None:
    wsgi([], environ={**ENVIRON, **changes}).close()


def request_asgi(**changes: Any) -> None:
    serve_asgi(return_nothing, return_nothing, {**HTTP, "client": PEER, "headers": [], **changes})


def test_every_request_of_a_kept_connection_has_its_accept(recording: Recording) -> None:
    recording.begin(keepalive=True)
    probe.accepted[PORT] = 7
    for _ in range(2):
        request_wsgi()
        request_asgi()
    probe.accepted[PORT] = 9
    request_wsgi()
    assert [span.accept_ns for span in recording.spans] == [7, 7, 7, 7, 9]
    assert recording.first_requests == 1


def test_an_accept_is_dropped_after_its_only_request(recording: Recording) -> None:
    """The table does not grow, and a second request has no accept instead of a wrong one."""
    probe.accepted[PORT] = 7
    request_wsgi()
    request_wsgi()
    probe.accepted[PORT] = 8
    request_asgi()
    request_asgi()
    assert [span.accept_ns for span in recording.spans] == [7, None, 8, None]
    assert probe.accepted == {}


def test_an_unknown_port_has_no_accept(recording: Recording) -> None:
    probe.accepted[PORT] = 7
    wsgi([]).close()
    for port in ("4001", "0", "", "http"):
        request_wsgi(REMOTE_PORT=port)
    for client in (None, ("10.0.0.1", 0), ("127.0.0.1", 4001)):
        request_asgi(client=client)
    assert [span.accept_ns for span in recording.spans] == [None] * 8
    assert all(map(ended, recording.spans))


def test_tornados_container_provides_accept_and_name(recording: Recording) -> None:
    recording.begin(names=True)
    probe.accepted[PORT] = 7
    request = tornado_request((*PEER, 0, 0))
    environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_WORKERLAB_REQUEST": "17"}
    environs = []

    def app(environ: dict[str, Any], _: Any) -> list[bytes]:
        environs.append(environ)
        return []

    container: Any = SimpleNamespace(
        environ=lambda request: {**environ, "request": request}, wsgi_application=app
    )
    assert probe.probe_container(container) is container
    body = container.wsgi_application(container.environ(request), lambda *_: None)
    assert list(body) == []
    body.close()
    assert (recording.only.accept_ns, recording.only.request_id) == (7, "17")
    assert environs == [{**environ, "request": request}]


@pytest.mark.parametrize("address", ["0.0.0.0", None])
def test_tornado_on_a_unix_socket_has_no_accept(address: str | None) -> None:
    # The address of such a client is a string or None
    assert probe.accepted.get(probe.tornado_port(tornado_request(address))) is None
    assert probe.tornado_port(SimpleNamespace(connection=None)) == 0


def test_names_of_requests_are_recorded_on_request(recording: Recording) -> None:
    request_wsgi(HTTP_X_WORKERLAB_REQUEST="17")
    request_asgi(headers=[(b"x-workerlab-request", b"18")])
    assert [span.request_id for span in recording.spans] == [None, None]
    recording.begin(names=True)
    request_wsgi(HTTP_X_WORKERLAB_REQUEST="17")
    request_wsgi()
    request_wsgi(HTTP_X_WORKERLAB_REQUEST="1234567890123456789")
    request_asgi(headers=[(b"host", b"x"), (b"x-workerlab-request", b"18")])
    request_asgi()
    names = [span.request_id for span in recording.spans[2:]]
    assert names == ["17", None, "1234567890123456", "18", None]


def test_names_beyond_the_capacity_overwrite_nothing(recording: Recording) -> None:
    recording.begin(1, names=True)
    probe.accepted[PORT] = 7
    request_wsgi(HTTP_X_WORKERLAB_REQUEST="17")
    first = recording.only
    for _ in range(2):
        request_wsgi(HTTP_X_WORKERLAB_REQUEST="18")
    assert recording.spans == (first,)
    assert recording.read().full == (os.getpid(),)


# --- the map --------------------------------------------------------------------------------


def test_threads_lose_and_overwrite_nothing(recording: Recording) -> None:
    threads, requests = 8, 400
    recording.begin(threads * requests)
    barrier = threading.Barrier(threads)
    app = probe.wrap_wsgi(lambda *_: [b"x"])

    def client(_: int) -> None:
        barrier.wait()
        for _ in range(requests):
            app({}, lambda *_: None).close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(client, range(threads)))
    finally:
        sys.setswitchinterval(interval)
    assert len(recording.spans) == threads * requests
    assert all(map(ended, recording.spans))
    assert recording.read().full == ()
    assert recording.first_requests == 1


def test_a_full_map_is_reported_and_the_app_still_responds(recording: Recording) -> None:
    recording.begin(3)
    open_bodies = [wsgi([b"x"]) for _ in range(2)]
    request_asgi()
    assert recording.read().full == ()
    for _ in range(3):
        body = wsgi([b"x"])
        assert list(body) == [b"x"]
        body.close()
        request_asgi()
    assert recording.read().full == (os.getpid(),)
    assert [span.end_ns is None for span in recording.spans] == [True, True, False]
    for body in open_bodies:  # requests with a record still end
        body.close()
    assert all(map(ended, recording.spans))
    assert len(recording.spans) == 3


def test_the_map_is_allocated_and_not_sparse(recording: Recording) -> None:
    """A hole would end the worker with SIGBUS when the disk fills up."""
    recording.begin(100_000)
    file = max((path.stat() for path in recording.maps), key=lambda file: file.st_size)
    assert file.st_size == HEADER_BYTES + 100_000 * SPANS.record.size
    assert file.st_blocks * 512 >= file.st_size


def test_a_full_disk_leaves_no_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    with pytest.raises(OSError, match="No space"):
        create_map(str(tmp_path / "spans-1-0.map"), SPANS, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_reused_pid_gets_another_map(recording: Recording) -> None:
    wsgi([]).close()
    recording.begin()
    wsgi([]).close()
    assert len(recording.maps) == len(recording.spans) == 2


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
    body.close()                     # a child leaves the request in which it was forked
    if os.getpid() != parent:
        probe.wrap_wsgi(lambda *_: [])({}, None).close()
        os._exit(0)
print(parent)
"""
KILLED = """
probed = probe.wrap_wsgi(lambda *_: [b"x"])
probed({}, None).close()
open_body = probed({}, None)
print("inside", flush=True)
time.sleep(600)
"""


def test_children_that_the_app_forks_record_nothing(tmp_path: Path) -> None:
    with python(PROLOGUE + FORKING, tmp_path, isolated=False) as process:
        out, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0
    spans = read_spans(tmp_path).spans
    assert [span.pid for span in spans] == 2 * [int(out)]
    assert all(map(ended, spans))


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
    """For the other modules and the apps, ruff checks this (see pyproject.toml)."""
    ast.parse(GUARD.read_text(), feature_version=(3, 10))


# Loaded as in a server: the configuration file loads `boot`, which loads the others
IMPORTING = """
import json, os, runpy, sys
code, trial = sys.argv[1:]
settings = {"configs": [f"{code}/class.py"], "settings": {"workers": 3}, "env": [], "records": 1}
settings |= {"worker_class": None, "inside": "stacks", "cores": None}
os.environ["WORKERLAB_TRIAL"] = trial
for name in ("introspect", "guard"):
    runpy.run_path(f"{code}/{name}.py")
for workers in (3, 5):  # the second is a reload
    settings["settings"]["workers"] = workers
    with open(f"{trial}/launch.json", "w") as file:
        json.dump(settings, file)
    loaded = runpy.run_path(f"{code}/gunicorn_conf.py")
    assert loaded["workers"] == workers and loaded["worker_class"] == "sync", loaded
print("{}.{}".format(*sys.version_info))
"""


@pytest.mark.parametrize("name", ["python3.10", sys.executable], ids=["3.10", "own"])
def test_modules_load_without_the_lab_and_again_on_a_reload(tmp_path: Path, name: str) -> None:
    program = shutil.which(name)
    if program is None or subprocess.run([program, "-V"], capture_output=True).returncode:
        pytest.skip(f"no {name} on PATH that runs")
    code, trial = tmp_path / "code", tmp_path / "trial"
    code.mkdir()
    trial.mkdir()
    for path in (*INSIDE.glob("[!_]*.py"), GUARD):
        shutil.copy(path, code)
    (code / "class.py").write_text("worker_class = 'sync'\nworkers = 1\n")
    argv = [program, "-I", "-c", IMPORTING, str(code), str(trial)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    version = "3.10" if name == "python3.10" else "{}.{}".format(*sys.version_info)
    assert result.stdout == f"{version}\n", result.stderr
