"""Any app, any configuration, any interpreter: the lab measures it and leaves it as it is."""

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

FILE_CLASSES = ("sync", "gthread", "gevent", "eventlet")
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


@pytest.mark.classes(*FILE_CLASSES)
def test_files_are_sent_whole(serve: Serve, tmp_path: Path) -> None:
    """By sendfile where the server can, from where the app has left the file, and measured."""
    content = os.urandom(3_000_001)
    (tmp_path / "big").write_bytes(content)
    with serve(FILE_APP) as server:
        for path in ("/whole", "/part", "/length"):
            before = len(finished_spans(server))
            status, body = fetch(server, path)
            assert (status, len(body)) == (200, len(content) - (path != "/whole"))
            assert body == content[path != "/whole" :]
            assert len(finished_spans(server)) == before + 1


def test_streams_are_measured_to_their_end(shared_server: Running, worker_class: str) -> None:
    before = len(finished_spans(shared_server))
    assert fetch(shared_server, "/stream") == (200, b"chunk 0\nchunk 1\nchunk 2\n")
    last = finished_spans(shared_server)[-1]
    assert len(spans(shared_server)) == before + 1
    took_s = (last.end_ns - last.start_ns) / 1e9
    assert took_s >= 3 * (0.05 - 0.001)  # a timer may fire so much before its time
    if worker_class in ASGI_CLASSES:
        assert took_s < 60


def test_head_and_bodies_arrive(shared_server: Running) -> None:
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
def test_the_old_form_of_asgi(serve: Serve) -> None:
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
    args = (
        f"GET / HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    connection.sendall(args.encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, head
        head += byte
    assert head.startswith(b"HTTP/1.1 101 "), head
    return connection


def echoed(connection: socket.socket, text: str) -> str:
    """One short text frame there (masked, as clients must) and one back (section 5.2)."""
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
        pytest.skip("uvicorn speaks websockets with the package websockets only")
    with serve(WEBSOCKET_APP) as server:
        before = len(spans(server))
        with handshake(server) as connection:
            assert echoed(connection, "stressed") == "desserts"
            assert echoed(connection, "drawer") == "reward"
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
def test_lifespan_really_starts(serve: Serve) -> None:
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
        await asyncio.sleep(1)  # a busy machine begins them one after the other, too
        self.write("native")

app = tornado.web.Application([("/", Handler)])
"""


@pytest.mark.classes("tornado")
def test_native_tornado_is_measured(serve: Serve, tmp_path: Path) -> None:
    """And serves more at once than it has workers, unlike WSGI on the same class. Those that begin
    before the machine stands still may end before the others begin: then they are sent again."""
    at_once = 8
    with (
        stand_still(tmp_path / "watched") as still,
        serve(TORNADO_APP) as server,
        ThreadPoolExecutor(at_once) as pool,
    ):
        for _ in range(5):
            before = len(finished_spans(server))
            answers = list(pool.map(lambda _: fetch(server), range(at_once)))
            assert answers == at_once * [(200, b"native")]
            burst = finished_spans(server)[before:]
            assert len(burst) == at_once
            last_ns, ended_ns = burst[-1].start_ns, min(span.end_ns or 0 for span in burst)
            if last_ns < ended_ns or not still.between(burst[0].start_ns, last_ns):
                break
        assert last_ns < ended_ns
        assert fetch(server, "/?fail=1")[0] == 500
        assert fetch(server, "/nowhere")[0] == 404
        assert len(finished_spans(server)) == before + at_once + 2
        proofs = server.proofs.values()
        assert {proof["app_kind"] for proof in proofs} == {"tornado"}


# --- as a user would ------------------------------------------------------------------------

WAIT_S = 0.3  # the shorter a load, the more of it is what a busy machine adds


def write(place: Path, worker_class: str, **parts: str) -> None:
    (place / "own.py").write_text(app_text(worker_class, wait_s=WAIT_S, **parts))


def numbers(cell: dict[str, Any]) -> list[object]:
    """All that was measured of a cell."""
    single = ("throughput_rps", "tool_rps", "bound_rps", "slots_measured", "requests", "failed")
    spread = ("response_ms", "connect_ms", "service_ms", "waiting_ms")
    return [cell[name] for name in single] + [
        value for name in spread for value in (cell[name] or {}).values()
    ]


@pytest.mark.classes("sync", "asgi", "uvicorn")
def test_an_app_that_answers_500_is_an_invalid_cell(lab: Lab, worker_class: str) -> None:
    write(lab.place, worker_class, work="1 / 0")
    report = lab.report("sweep", worker_class, "2", *QUICK, "--app", "own:app", code=1)
    (cell,) = report["cells"]
    assert cell["verdict"] == "invalid"
    assert "500" in cell["reason"]["text"]
    assert set(numbers(cell)) == {None}
    (row,) = report["classes"]
    assert (row["capacity_rps"], row["knee"]) == (None, None)


@pytest.mark.classes("sync", "tornado", "uvicorn")
def test_an_app_of_the_wrong_kind(lab: Lab, worker_class: str) -> None:
    """It would boot, and answer fast."""
    write(lab.place, "sync" if worker_class in ASGI_CLASSES else "asgi")
    (cell,) = lab.sweep(worker_class, "2", *QUICK, "--app", "own:app", code=3)
    assert cell["verdict"] == "invalid"
    assert "own:app is a" in lab.last.err
    assert "Traceback" not in lab.last.err


@once
@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("no_such_module:app", "no_such_module"),
        ("own:no_such_app", "no_such_app"),
        ("broken:app", "asked for"),
    ],
)
def test_an_app_that_does_not_import(lab: Lab, worker_class: str, target: str, names: str) -> None:
    write(lab.place, worker_class)
    (lab.place / "broken.py").write_text("raise RuntimeError('asked for')\n")
    cells = lab.sweep(worker_class, "2", *QUICK, "--app", target, code=3)
    assert [cell["verdict"] for cell in cells] == ["invalid"]
    assert names in lab.last.out
    assert "Traceback" not in lab.last.err


OWN_CONFIG = """
import os
from pathlib import Path
here = Path(__file__).parent
workers = 1
raw_env = ["OWN_WORD=from the file"]
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
NEEDS_ENVIRONMENT = (
    "assert (os.environ['OWN_WORD'], os.environ['MORE']) == ('from the file', 'from a flag')"
)


@pytest.fixture
def configured(lab: Lab, worker_class: str) -> Lab:
    """A lab in a directory with a Gunicorn file and an app that needs it."""
    write(lab.place, worker_class, setup="import os", work=NEEDS_ENVIRONMENT)
    (lab.place / "own_conf.py").write_text(OWN_CONFIG)
    return lab


CONFIGURED = ("--app", "own:app", "--config", "own_conf.py", "--env", "MORE=from a flag")


@pytest.mark.classes("sync", "uvicorn")
def test_the_users_own_file(configured: Lab, worker_class: str) -> None:
    args = ("--tool", "fast", "--rounds", "2", *CONFIGURED)
    (cell,) = configured.sweep(worker_class, "2", *args)
    (record,) = configured.records()
    place, pids = configured.place, record["worker_pids"]
    # its workers win over our default, its hooks run beside ours
    assert record["proof"]["workers"] == len(pids) == 1
    assert (place / "when_ready").exists()
    for hook in ("post_worker_init", "post_fork"):
        assert [path.name for path in place.glob(f"{hook}-*")] == [f"{hook}-{pids[0]}"]
    # what would make the numbers wrong does not take effect, and is said, a line each
    assert sum(cell["requests_per_worker"].values()) > 3
    assert not (place / "pid").exists()
    logs = {path.name for path in place.rglob("*.log")}
    assert not logs & {"requests.log", "errors.log", "access.log"}
    prefix = f"{place}/own_conf.py: "
    lines = [line for line in configured.last.err.splitlines() if line.startswith(prefix)]
    overridden = [line.removeprefix(prefix).split()[0] for line in lines if "overridden" in line]
    assert sorted(overridden) == sorted(OVERRIDDEN)


@once
@pytest.mark.parametrize("flag", [(), ("--chdir", "shop")])
def test_where_an_app_of_the_users_file_is_imported_from(
    lab: Lab, worker_class: str, flag: tuple[str, ...]
) -> None:
    """The file says so, relative to the caller; a flag wins over it, as for the workers."""
    (lab.place / "shop").mkdir()
    write(lab.place / "shop", worker_class)
    (lab.place / "elsewhere").mkdir()
    answer = "elsewhere" if flag else "shop"
    text = f"wsgi_app = 'own:app'\nchdir = {answer!r}\nworkers = 1\n"
    (lab.place / "own_conf.py").write_text(text)
    (cell,) = lab.sweep(worker_class, "2", *QUICK, "--config", "own_conf.py", *flag)
    assert cell["throughput_rps"] > 0
    (record,) = lab.records()
    assert record["proof"]["workers"] == len(record["worker_pids"]) == 2


# --- packages named like the lab's own --------------------------------------------------------

NAMES = ("apps", "configs", "harness")
OWN_PACKAGES = """
import apps, configs, harness
from pathlib import Path
HERE = str(Path(__file__).parents[1])
for package in (apps, configs, harness):
    assert package.__file__.startswith(HERE), package.__file__
"""


def packages(place: Path, text: str = "") -> None:
    for name in NAMES:
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text(text)


@once
@pytest.mark.parametrize("flag", [(), ("--chdir", "project")])
def test_a_project_with_packages_named_like_the_labs_own(
    lab: Lab, worker_class: str, flag: tuple[str, ...]
) -> None:
    """Theirs are served, even where others by these names are on the import path, and under the
    old name of a bundled app."""
    place = lab.place / (flag[1] if flag else "")
    packages(place)
    packages(lab.place / "others", text="raise RuntimeError('of another project')\n")
    lab.env["PYTHONPATH"] = os.pathsep.join([lab.env["PYTHONPATH"], str(lab.place / "others")])
    own = app_text(worker_class, setup=OWN_PACKAGES, wait_s=WAIT_S)
    (place / "apps/sleep_wsgi.py").write_text(own)
    (cell,) = lab.sweep(worker_class, "2", *QUICK, "--app", "apps.sleep_wsgi:app", *flag)
    assert (cell["app"], cell["failed"]) == ("apps.sleep_wsgi:app", 0)


@once
def test_a_bundled_app_beside_packages_of_its_name(lab: Lab, worker_class: str) -> None:
    """In the working directory, and on the import path."""
    wrong = "raise RuntimeError('of another project')\n"
    packages(lab.place, text=wrong)
    packages(lab.place / "others", text=wrong)
    lab.env["PYTHONPATH"] = os.pathsep.join([lab.env["PYTHONPATH"], str(lab.place / "others")])
    (cell,) = lab.sweep(worker_class, "2", *QUICK, "--app", "@sleep_wsgi", "--sleep", "0.1")
    assert (cell["app"], cell["failed"]) == ("@sleep_wsgi", 0)


@once
def test_the_old_name_of_a_bundled_app_is_not_its_name(lab: Lab, worker_class: str) -> None:
    lab.sweep(worker_class, "2", *QUICK, "--app", "apps.sleep_wsgi:app", code=3)
    assert "No module named 'apps'; the bundled app is @sleep_wsgi" in lab.last.out


# --- other interpreters ---------------------------------------------------------------------


class Outsider(Lab):
    """A lab whose environment does not lead a server to the checkout."""

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


PACKAGES = Path(sysconfig.get_path("purelib"))


def environment(place: Path, packages: Path) -> Path:
    """The interpreter of a new environment that sees `packages` and nothing else.

    Their own .pth files are not read there, so an editable harness is not found through them.
    """
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    args = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = subprocess.run([python, "-c", args], capture_output=True, text=True, check=True)
    Path(purelib.stdout.strip(), "packages.pth").write_text(f"{packages}\n")
    return python


def environment_with(place: Path, is_installed: Callable[[str], bool]) -> Path:
    """The interpreter of a new environment with some of the packages of this one."""
    packages = place / "packages"
    packages.mkdir()
    for path in PACKAGES.iterdir():
        if is_installed(path.name):
            (packages / path.name).symlink_to(path)
    return environment(place / "venv", packages)


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with all packages of this one, and without the harness."""
    return environment_with(tmp_path_factory.mktemp("foreign"), lambda name: name != "workerlab")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with Gunicorn and nothing more than that needs."""
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


@pytest.mark.classes("sync", "uvicorn")  # whose configuration file imports
def test_an_interpreter_without_the_lab_in_the_environment_beside_the_app(
    outsider: Outsider, worker_class: str, foreign: Path
) -> None:
    """Nobody names it: it is found, and the title says so."""
    write(outsider.place, worker_class, setup=ALONE)
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
def test_an_environment_without_gunicorn(outsider: Outsider, worker_class: str) -> None:
    """The lab's serves there, alone."""
    write(outsider.place, worker_class, setup=ALONE)
    nothing = outsider.place / "nothing"
    nothing.mkdir()
    python = environment(outsider.place / ".venv", nothing)
    outsider.sweep(worker_class, "2", *QUICK, "--app", "own:app")
    assert f"{python} has no Gunicorn: using 25.3.0" in outsider.last.err
    (record,) = outsider.records()
    assert record["proof"]["gunicorn"] == "25.3.0"
    assert record["proof"]["executable"] == str(python)


@once
def test_a_module_that_the_apps_environment_lacks(
    outsider: Outsider, worker_class: str, bare: Path
) -> None:
    (outsider.place / "own.py").write_text("import flask\n")
    args = (*QUICK, "--app", "own:app", "--python", str(bare))
    outsider.sweep(worker_class, "2", *args, code=3)
    step = f"; install it for {bare}, or name the app's interpreter with --python"
    assert f"No module named 'flask' (own.py line 1){step}" in outsider.last.out


@once
def test_that_interpreter_would_have_noticed(foreign: Path, outsider: Outsider) -> None:
    """What the test above proves, it proves: with the checkout on its path, the app refuses."""
    for path, code in ((str(ROOT / "harness"), 1), ("", 0)):
        env = {**outsider.env, "PYTHONPATH": path}
        result = subprocess.run([foreign, "-c", ALONE], env=env, cwd=outsider.place, timeout=LONG_S)
        assert result.returncode == code


@once
def test_a_class_whose_package_is_missing(outsider: Outsider, bare: Path) -> None:
    """It is said, the other runs, and the exit code tells."""
    args = (*QUICK, "--python", str(bare), "--sleep", "0.3")
    missing, other = outsider.sweep("gevent,sync", "2", *args, code=3)
    error = outsider.last.err
    assert "gevent is unavailable: worker class gevent needs gevent" in error
    assert f"uv pip install --python {bare} gevent" in error  # it has no pip
    assert (missing["worker_class"], missing["verdict"]) == ("gevent", "invalid")
    assert set(numbers(missing)) == {None}
    assert other["worker_class"] == "sync"
    assert other["throughput_rps"] > 0
