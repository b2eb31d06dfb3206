"""Apps, configurations and interpreters of users: the lab measures them without changing them."""

from __future__ import annotations

import base64
import importlib.util
import os
import socket
import struct
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.builders.processes import stand_still
from tests.integration.conftest import (
    LONG_S,
    ROOT,
    Lab,
    Serve,
    app_text,
    fetch,
    finished_spans,
    spans,
)
from workerlab.server.running import Running
from workerlab.server.worker_classes import ASGI_CLASSES

QUICK = ("--tool", "fast", "--workers", "2", "--rounds", "2")
once = pytest.mark.once

FILE_APP = """
SIZE = 3_000_001

def app(environ, start_response):
    headers = [("Content-Type", "application/octet-stream")]
    if environ["PATH_INFO"] == "/length":
        headers.append(("Content-Length", str(SIZE - 1)))
    file = open("big", "rb")
    if environ["PATH_INFO"] != "/whole":
        file.seek(1)
    start_response("200 OK", headers)
    return environ["wsgi.file_wrapper"](file)
"""


@pytest.mark.classes("sync", "gthread", "gevent", "eventlet")
def test_files_are_sent_completely_and_measured(serve: Serve, tmp_path: Path) -> None:
    """By sendfile if the server supports it, from the file's current position."""
    content = os.urandom(3_000_001)
    (tmp_path / "big").write_bytes(content)
    with serve(FILE_APP) as server:
        for path in ("/whole", "/part", "/length"):
            before = len(finished_spans(server))
            status, body = fetch(server, path)
            assert (status, len(body)) == (200, len(content) - (path != "/whole"))
            assert body == content[path != "/whole" :]
            assert len(finished_spans(server)) == before + 1


def test_a_span_covers_the_whole_stream(shared_server: Running, worker_class: str) -> None:
    before = len(finished_spans(shared_server))
    assert fetch(shared_server, "/stream") == (200, b"chunk 0\nchunk 1\nchunk 2\n")
    last = finished_spans(shared_server)[-1]
    assert len(spans(shared_server)) == before + 1
    duration_s = (last.end_ns - last.start_ns) / 1e9
    assert duration_s >= 3 * (0.05 - 0.001)  # a timer may fire 1 ms early
    if worker_class in ASGI_CLASSES:
        assert duration_s < 60


def test_responses_to_get_and_head_are_unchanged(shared_server: Running) -> None:
    assert fetch(shared_server) == (200, b"hello\n")
    assert fetch(shared_server, method="HEAD") == (200, b"")
    finished_spans(shared_server)


ASGI2_APP = """
class app:
    def __init__(self, scope):
        assert scope["type"] == "http"

    async def __call__(self, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"two steps"})
"""


@pytest.mark.classes("uvicorn")
def test_asgi_2_apps_are_served_and_measured(serve: Serve) -> None:
    with serve(ASGI2_APP) as server:
        before = len(spans(server))
        assert fetch(server) == (200, b"two steps")
        assert len(finished_spans(server)) == before + 1


# --- websockets, lifespan, native tornado ---------------------------------------------------

WEBSOCKET_APP = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"plain"})
    elif scope["type"] == "websocket":
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"][::-1]})
    else:
        raise ValueError(scope["type"])
"""


def handshake(server: Running) -> socket.socket:
    """A connection upgraded as RFC 6455 says (section 4.1)."""
    connection = socket.create_connection((server.host, server.port), timeout=LONG_S)
    key = base64.b64encode(os.urandom(16)).decode()
    request = (
        f"GET / HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    connection.sendall(request.encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, head
        head += byte
    assert head.startswith(b"HTTP/1.1 101 "), head
    return connection


def echo(connection: socket.socket, text: str) -> str:
    """Sends a short text frame (masked, as clients must) and reads one (section 5.2)."""
    mask, payload = os.urandom(4), text.encode()
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    connection.sendall(struct.pack("!BB", 0x81, 0x80 | len(payload)) + mask + masked)
    with connection.makefile("rb") as file:
        first, length = file.read(2)
        assert first == 0x81
        return file.read(length).decode()


@pytest.mark.classes("asgi", "uvicorn")
def test_websockets_pass_through(serve: Serve, worker_class: str) -> None:
    if worker_class == "uvicorn" and not importlib.util.find_spec("websockets"):
        pytest.skip("uvicorn needs the package websockets")
    with serve(WEBSOCKET_APP) as server:
        before = len(spans(server))
        with handshake(server) as connection:
            assert echo(connection, "stressed") == "desserts"
            assert echo(connection, "drawer") == "reward"
        assert fetch(server) == (200, b"plain")
        assert len(finished_spans(server)) == before + 1  # the request alone


LIFESPAN_APP = """
started = []

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        started.append("pool")
        if "state" in scope:
            scope["state"]["pool"] = "open"
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        await send({"type": "lifespan.shutdown.complete"})
        return
    pool = scope.get("state", {}).get("pool", "no state")
    await send({"type": "http.response.start", "status": 200 if started else 503, "headers": []})
    await send({"type": "http.response.body", "body": f"{started} {pool}".encode()})
"""


@pytest.mark.classes("asgi", "uvicorn")
def test_the_lifespan_of_an_app_starts(serve: Serve) -> None:
    with serve(LIFESPAN_APP) as server:
        assert fetch(server) == (200, b"['pool'] open")
        assert len(finished_spans(server)) == len(spans(server)) > 0


TORNADO_APP = """
import asyncio
import tornado.web

class Handler(tornado.web.RequestHandler):
    async def get(self):
        if self.get_argument("fail", None):
            raise RuntimeError("asked for")
        await asyncio.sleep(1)  # long enough to overlap on a busy machine
        self.write("native")

app = tornado.web.Application([("/", Handler)])
"""


@pytest.mark.classes("tornado")
def test_native_tornado_apps_serve_more_requests_than_workers(serve: Serve, tmp_path: Path) -> None:
    """Unlike WSGI apps on the same class. Requests are repeated if a pause of the machine
    separates them."""
    n = 8
    with (
        stand_still(tmp_path / "watched") as still,
        serve(TORNADO_APP) as server,
        ThreadPoolExecutor(n) as pool,
    ):
        for _ in range(5):
            before = len(finished_spans(server))
            assert list(pool.map(lambda _: fetch(server), range(n))) == n * [(200, b"native")]
            burst = finished_spans(server)[before:]
            assert len(burst) == n
            last_start_ns = burst[-1].start_ns
            first_end_ns = min(span.end_ns or 0 for span in burst)
            if last_start_ns < first_end_ns or not still.between(burst[0].start_ns, last_start_ns):
                break
        assert last_start_ns < first_end_ns
        assert fetch(server, "/?fail=1")[0] == 500
        assert fetch(server, "/nowhere")[0] == 404
        assert len(finished_spans(server)) == before + n + 2
        assert {proof["app_kind"] for proof in server.proofs.values()} == {"tornado"}


# --- apps of users --------------------------------------------------------------------------

WAIT_S = 0.3  # long, or delays of a busy machine would dominate


def write_app(place: Path, worker_class: str, **parts: str) -> None:
    (place / "own.py").write_text(app_text(worker_class, wait_s=WAIT_S, **parts))


def numbers(cell: dict[str, Any]) -> list[object]:
    """All measurements of a cell."""
    single = ("throughput_rps", "tool_rps", "bound_rps", "slots_measured", "requests", "failed")
    spread = ("response_ms", "connect_ms", "service_ms", "waiting_ms")
    return [cell[name] for name in single] + [
        value for name in spread for value in (cell[name] or {}).values()
    ]


@pytest.mark.classes("sync", "asgi", "uvicorn")
def test_a_cell_of_an_app_that_answers_500_is_invalid(lab: Lab, worker_class: str) -> None:
    write_app(lab.place, worker_class, work="1 / 0")
    report = lab.report("sweep", worker_class, "2", *QUICK, "--app", "own:app", code=1)
    (cell,) = report["cells"]
    assert cell["verdict"] == "invalid"
    assert "500" in cell["reason"]["text"]
    assert set(numbers(cell)) == {None}
    (row,) = report["classes"]
    assert (row["capacity_rps"], row["knee"]) == (None, None)


@pytest.mark.classes("sync", "tornado", "uvicorn")
def test_an_app_of_the_wrong_kind_is_refused(lab: Lab, worker_class: str) -> None:
    """It would start and respond quickly."""
    write_app(lab.place, "sync" if worker_class in ASGI_CLASSES else "asgi")
    (cell,) = lab.sweep(worker_class, "2", *QUICK, "--app", "own:app", code=3)
    assert cell["verdict"] == "invalid"
    assert "own:app is a" in lab.last.err
    assert "Traceback" not in lab.last.err


@once
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module:app", "no_such_module"),
        ("own:no_such_app", "no_such_app"),
        ("broken:app", "asked for"),
    ],
)
def test_an_app_that_cannot_be_imported_has_a_reason(lab: Lab, target: str, reason: str) -> None:
    write_app(lab.place, "sync")
    (lab.place / "broken.py").write_text("raise RuntimeError('asked for')\n")
    cells = lab.sweep("sync", "2", *QUICK, "--app", target, code=3)
    assert [cell["verdict"] for cell in cells] == ["invalid"]
    assert reason in lab.last.out
    assert "Traceback" not in lab.last.err


OWN_CONFIG = """
import os
from pathlib import Path
here = Path(__file__).parent
workers = 1
raw_env = ["OWN=file"]
bind = "0.0.0.0:1"
reload = True
daemon = True
max_requests = 3
pidfile = str(here / "pid")
accesslog = "requests.log"
errorlog = str(here / "errors.log")

def when_ready(server):
    (here / "when_ready").touch()

def post_worker_init(worker):
    (here / f"post_worker_init-{worker.pid}").touch()

def post_fork(server, worker):
    (here / f"post_fork-{os.getpid()}").touch()
"""
OVERRIDDEN = ("bind", "reload", "daemon", "max_requests", "pidfile", "accesslog", "errorlog")
CHECK_ENVIRONMENT = "assert (os.environ['OWN'], os.environ['MORE']) == ('file', 'from a flag')"


@pytest.mark.classes("sync", "uvicorn")
def test_a_gunicorn_file_is_used_except_overridden_settings(lab: Lab, worker_class: str) -> None:
    place = lab.place
    write_app(place, worker_class, setup="import os", work=CHECK_ENVIRONMENT)
    (place / "own_conf.py").write_text(OWN_CONFIG)
    args = ("--tool", "fast", "--rounds", "2", "--app", "own:app", "--config", "own_conf.py")
    (cell,) = lab.sweep(worker_class, "2", *args, "--env", "MORE=from a flag")
    (record,) = lab.records()
    pids = record["worker_pids"]
    # Its workers override the lab's default; its hooks run in addition to the lab's
    assert record["proof"]["workers"] == len(pids) == 1
    assert (place / "when_ready").exists()
    for hook in ("post_worker_init", "post_fork"):
        assert [path.name for path in place.glob(f"{hook}-*")] == [f"{hook}-{pids[0]}"]
    # Settings that would distort the measurement have no effect and are reported, one per line
    assert sum(cell["requests_per_worker"].values()) > 3
    assert not (place / "pid").exists()
    logs = {path.name for path in place.rglob("*.log")}
    assert not logs & {"requests.log", "errors.log", "access.log"}
    prefix = f"{place}/own_conf.py: "
    lines = [line for line in lab.last.err.splitlines() if line.startswith(prefix)]
    overridden = [line.removeprefix(prefix).split()[0] for line in lines if "overridden" in line]
    assert sorted(overridden) == sorted(OVERRIDDEN)


@once
@pytest.mark.parametrize("flag", [(), ("--chdir", "shop")])
def test_options_override_directory_and_workers_of_a_file(lab: Lab, flag: tuple[str, ...]) -> None:
    """Its `chdir` is relative to the caller's directory."""
    (lab.place / "shop").mkdir()
    write_app(lab.place / "shop", "sync")
    (lab.place / "elsewhere").mkdir()
    directory = "elsewhere" if flag else "shop"
    text = f"wsgi_app = 'own:app'\nchdir = {directory!r}\nworkers = 1\n"
    (lab.place / "own_conf.py").write_text(text)
    (cell,) = lab.sweep("sync", "2", *QUICK, "--config", "own_conf.py", *flag)
    assert cell["throughput_rps"] > 0
    (record,) = lab.records()
    assert record["proof"]["workers"] == len(record["worker_pids"]) == 2


# --- packages named like the lab's --------------------------------------------------------------

OWN_PACKAGES = """
import apps, configs, harness
from pathlib import Path
HERE = str(Path(__file__).parents[1])
for package in (apps, configs, harness):
    assert package.__file__.startswith(HERE), package.__file__
"""
WRONG_PACKAGE = "raise RuntimeError('of another project')\n"


def write_packages(place: Path, text: str) -> None:
    for name in ("apps", "configs", "harness"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text(text)


@pytest.fixture
def crowded_lab(lab: Lab) -> Lab:
    """With packages of another project on the import path, named like those of the lab."""
    write_packages(lab.place / "others", WRONG_PACKAGE)
    lab.env["PYTHONPATH"] = os.pathsep.join([lab.env["PYTHONPATH"], str(lab.place / "others")])
    return lab


@once
@pytest.mark.parametrize("flag", [(), ("--chdir", "project")])
def test_a_project_is_served_with_its_own_packages(crowded_lab: Lab, flag: tuple[str, ...]) -> None:
    """Even under the former name of a bundled app."""
    place = crowded_lab.place / (flag[1] if flag else "")
    write_packages(place, "")
    text = app_text("sync", setup=OWN_PACKAGES, wait_s=WAIT_S)
    (place / "apps/sleep_wsgi.py").write_text(text)
    (cell,) = crowded_lab.sweep("sync", "2", *QUICK, "--app", "apps.sleep_wsgi:app", *flag)
    assert (cell["app"], cell["failed"]) == ("apps.sleep_wsgi:app", 0)


@once
def test_a_bundled_app_ignores_packages_in_the_working_directory(crowded_lab: Lab) -> None:
    write_packages(crowded_lab.place, WRONG_PACKAGE)
    (cell,) = crowded_lab.sweep("sync", "2", *QUICK, "--app", "@sleep_wsgi", "--sleep", "0.1")
    assert (cell["app"], cell["failed"]) == ("@sleep_wsgi", 0)


@once
def test_the_former_name_of_a_bundled_app_is_refused(lab: Lab) -> None:
    lab.sweep("sync", "2", *QUICK, "--app", "apps.sleep_wsgi:app", code=3)
    assert "No module named 'apps'; the bundled app is @sleep_wsgi" in lab.last.out


# --- other interpreters ---------------------------------------------------------------------


class Outsider(Lab):
    """A lab whose environment does not contain the path of the checkout."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        del self.env["PYTHONPATH"]
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            "from workerlab.__main__ import main; sys.exit(main())"
        )
        self.program = [sys.executable, "-c", code]


@pytest.fixture
def outsider(lab: Lab) -> Outsider:
    return Outsider(lab.place)


def environment(place: Path, packages: Path) -> Path:
    """The interpreter of a new environment that contains only `packages`.

    Their .pth files are not read, so an editable harness is not found.
    """
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    Path(purelib.stdout.strip(), "packages.pth").write_text(f"{packages}\n")
    return python


def environment_with(place: Path, is_installed: Callable[[str], bool]) -> Path:
    """The interpreter of a new environment with some of the packages of this one."""
    packages = place / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if is_installed(path.name):
            (packages / path.name).symlink_to(path)
    return environment(place / "venv", packages)


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with all packages of this one except the harness."""
    return environment_with(tmp_path_factory.mktemp("foreign"), lambda name: name != "workerlab")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with Gunicorn and its requirements only."""
    needed = ("gunicorn", "packaging")
    return environment_with(tmp_path_factory.mktemp("bare"), lambda name: name.startswith(needed))


ALONE = """
try:
    import workerlab
except ImportError:
    pass
else:
    raise SystemExit("the harness is on the path of the server")
"""


@pytest.mark.classes("sync", "uvicorn")  # the configuration file of uvicorn has imports
def test_a_venv_near_the_app_is_used(outsider: Outsider, worker_class: str, foreign: Path) -> None:
    """It is found without --python and named in the title."""
    write_app(outsider.place, worker_class, setup=ALONE)
    (outsider.place / ".venv").symlink_to(foreign.parents[1])
    report = outsider.report("sweep", worker_class, "2", *QUICK, "--app", "own:app")
    (cell,) = report["cells"]
    assert cell["throughput_rps"] > 0
    assert sum(cell["requests_per_worker"].values()) == cell["requests"]
    (record,) = outsider.records()
    assert record["proof"]["executable"] == str(outsider.place / ".venv/bin/python")
    version = record["proof"]["gunicorn"]
    served_by = f"app own:app, served by .venv/bin/python with Gunicorn {version}."
    assert report["title"].endswith(served_by)


@once
def test_the_labs_gunicorn_serves_in_an_environment_without_one(outsider: Outsider) -> None:
    write_app(outsider.place, "sync", setup=ALONE)
    (outsider.place / "nothing").mkdir()
    python = environment(outsider.place / ".venv", outsider.place / "nothing")
    outsider.sweep("sync", "2", *QUICK, "--app", "own:app")
    assert f"{python} has no Gunicorn: using 25.3.0" in outsider.last.err
    (record,) = outsider.records()
    assert record["proof"]["gunicorn"] == "25.3.0"
    assert record["proof"]["executable"] == str(python)


@once
def test_a_missing_module_of_the_app_has_instructions(outsider: Outsider, bare: Path) -> None:
    (outsider.place / "own.py").write_text("import flask\n")
    args = (*QUICK, "--app", "own:app", "--python", str(bare))
    outsider.sweep("sync", "2", *args, code=3)
    step = f"; install it for {bare}, or name the app's interpreter with --python"
    assert f"No module named 'flask' (own.py line 1){step}" in outsider.last.out


@once
def test_the_app_fails_if_the_checkout_is_on_its_path(foreign: Path, outsider: Outsider) -> None:
    """So tests with ALONE prove that the lab is not on the path of the server."""
    for path, code in ((str(ROOT / "harness"), 1), ("", 0)):
        env = {**outsider.env, "PYTHONPATH": path}
        result = subprocess.run([foreign, "-c", ALONE], env=env, cwd=outsider.place, timeout=LONG_S)
        assert result.returncode == code


@once
def test_a_class_without_its_package_is_left_out(outsider: Outsider, bare: Path) -> None:
    args = (*QUICK, "--python", str(bare), "--sleep", "0.3")
    missing, other = outsider.sweep("gevent,sync", "2", *args, code=3)
    error = outsider.last.err
    assert "gevent is unavailable: worker class gevent needs gevent" in error
    assert f"uv pip install --python {bare} gevent" in error  # it has no pip
    assert (missing["worker_class"], missing["verdict"]) == ("gevent", "invalid")
    assert set(numbers(missing)) == {None}
    assert other["worker_class"] == "sync"
    assert other["throughput_rps"] > 0
