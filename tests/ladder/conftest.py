"""Real servers of the blog's services, some of which a test can kill and restart with their data;
and the blog itself under real Gunicorn."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import http.client
import inspect
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from apps.blog import seeds
from apps.blog.blocking import finish
from apps.blog.settings import Settings
from apps.blog.storage import Storage, storage_of
from tests.builders.conditions import until
from tests.builders.launch import launch
from tests.builders.processes import send, stop
from workerlab.model.plan import App, Server
from workerlab.observe.app_metrics import sample_app_metrics
from workerlab.server import services
from workerlab.server.process import Guarded
from workerlab.server.running import Running
from workerlab.server.serve import serve
from workerlab.server.service_check import NoAnswer, ask
from workerlab.server.worker_classes import ASGI_CLASSES

T = TypeVar("T")

# xdist runs each file in one process: the slowest files start first
FIRST = ("test_ladder", "test_correct_under_load", "test_storages", "test_api")
HERE = Path(__file__).parent
GRACE_S = 8.0
ANSWER_S = 60.0  # for a running database, on a busy machine
FETCH_S = 300.0  # 3 MB from a Maven repository
# Restarts the server while the file `run` exists
RESTART_LOOP = """
trap 'kill -"$END" $pid; wait $pid; exit' TERM
while :; do
    until [ -e run ]; do sleep 0.2; done
    "$@" & pid=$!
    echo $pid > pid
    wait $pid
done
"""


def _skip_if_unavailable(kind: str) -> None:
    if why := services.why_unavailable(kind) or services.why_no_driver(kind):
        pytest.skip(why)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def position(item: pytest.Item) -> int:
        is_slow = item.path.parent == HERE and item.path.stem in FIRST
        return FIRST.index(item.path.stem) if is_slow else len(FIRST)

    items.sort(key=position)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines; a Prepared argument is replaced by its storage."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    for name, value in arguments.items():
        if isinstance(value, Prepared):
            value.variant.run_prepared(lambda storage: test(**{**arguments, name: storage}))  # noqa: B023
            return True
    asyncio.run(test(**arguments))
    return True


# --- servers for the whole session -----------------------------------------------------------


def _session_service(kind: str) -> Any:
    """A fixture: the URL of an empty service."""

    @pytest.fixture(scope="session", name=kind)
    def url() -> Iterator[str]:
        _skip_if_unavailable(kind)
        with services.service(kind) as service:
            yield service.url

    return url


postgresql, redis = _session_service("postgresql"), _session_service("redis")


def flush(redis_url: str) -> None:
    from redis import Redis

    with Redis.from_url(redis_url) as client:
        client.flushall()


@pytest.fixture
def empty_redis(redis: str) -> str:
    flush(redis)
    return redis


@pytest.fixture(scope="session")
def mongodb() -> Iterator[str]:
    with restartable_mongodb() as server:
        yield server.url


# --- servers that a test kills ---------------------------------------------------------------


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class RestartableServer:
    """A guarded server on its own port; the guard removes `directory`."""

    def __init__(self, kind: str, url: str, directory: Path) -> None:
        self.kind, self.url, self.directory = kind, url, directory

    def processes(self) -> list[psutil.Process]:
        server = psutil.Process(int((self.directory / "pid").read_text()))
        return [server, *server.children(recursive=True)]

    def responds(self) -> bool:
        try:
            return bool(ask(self.kind, self.url))
        except NoAnswer:
            return False

    def start(self) -> None:
        (self.directory / "run").touch()
        until(self.responds, f"{self.kind} responds")

    def kill(self) -> None:
        """Kill the server without warning; it stays down until `start`."""
        (self.directory / "run").unlink()
        processes = self.processes()  # each process of PostgreSQL may respond once more
        processes[0].kill()
        until(lambda: not any(map(is_alive, processes)), f"{self.kind} has ended")
        until(lambda: not self.responds(), f"{self.kind} does not respond")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The kernel accepts connections, but the server does not respond."""
        pids = [process.pid for process in self.processes()]
        stop(pids)
        try:
            yield
        finally:
            send(pids, signal.SIGCONT)


@contextmanager
def restartable(
    kind: str, url: str, argv: list[str], stop_signal: str, init: list[str] | None = None
) -> Iterator[RestartableServer]:
    """`init`: a command that runs once before the server. {directory} in arguments: that of the
    server."""
    user = services._user(kind)
    directory = services._new_directory(user)
    script = RESTART_LOOP
    if init:
        init_command = " ".join(word.format(directory=directory) for word in init)
        script = f"{init_command} || exit\n{RESTART_LOOP}"
    server_argv = [word.format(directory=directory) for word in argv]
    with Guarded(
        ["/bin/sh", "-c", f"cd {directory}\n{script}", "sh", *server_argv],
        cwd=Path("/"),
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "END": stop_signal},
        stdout=directory / "stdout",
        grace_s=GRACE_S,
        user=user,
        remove=directory,
        end=signal.SIGTERM,
    ):
        until(directory.is_dir, f"{directory} exists")
        server = RestartableServer(kind, url, directory)
        server.start()
        yield server
        server.start()  # PostgreSQL cleans up after a killed server


@contextmanager
def restartable_postgresql() -> Iterator[RestartableServer]:
    _skip_if_unavailable("postgresql")
    port = services.free_port()
    url = f"postgresql://blog@127.0.0.1:{port}/postgres"
    init = [str(services._program("initdb")), "-D", "{directory}/data"]
    init += ["-U", "blog", "-A", "trust", "-E", "UTF8", "-N"]
    argv = [str(services._program("postgres")), "-D", "{directory}/data", "-p", str(port)]
    argv += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    argv += ["-c", "dynamic_shared_memory_type=mmap"]
    with restartable("postgresql", url, argv, "QUIT", init) as server:
        yield server


@contextmanager
def restartable_redis() -> Iterator[RestartableServer]:
    _skip_if_unavailable("redis")
    port = services.free_port()
    argv = [str(services._program("redis-server")), "--port", str(port), "--bind", "127.0.0.1"]
    argv += ["--save", "", "--appendonly", "no"]
    with restartable("redis", f"redis://127.0.0.1:{port}", argv, "TERM") as server:
        yield server


@contextmanager
def restartable_mongodb() -> Iterator[RestartableServer]:
    """A server in Java that speaks MongoDB's protocol; in memory, so it restarts empty."""
    if why := services.why_no_driver("mongodb"):
        pytest.skip(why)
    port = services.free_port()
    argv = ["java", *_java_arguments(_mongo_server()), "Server", str(port)]
    with restartable("mongodb", f"mongodb://127.0.0.1:{port}/blog", argv, "TERM") as server:
        yield server


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """The program that scripts/mongodb_stand_in.sh creates."""
    if why := services.why_no_driver("mongodb"):
        pytest.skip(why)
    program = tmp_path / "stand-in" / services.STAND_INS["mongod"]
    program.parent.mkdir()
    script = (HERE.parents[1] / "scripts" / "mongodb_stand_in.sh").read_text()
    lines = script.partition("<<END\n")[2].partition("END\n")[0].replace("\\$", "$")
    java = f"java {shlex.join(_java_arguments(_mongo_server()))}"
    fast = lines.replace('java -cp "$jars:$jars/*"', java)
    assert fast != lines
    program.write_text(fast)
    program.chmod(0o755)
    return program


FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # these JVMs run for seconds
CLASS_ARCHIVE = "classes.jsa"  # halves the CPU of a start


def _java_arguments(jars: Path) -> list[str]:
    """The arguments of `java` before the class. Java starts without the archive too, but slower."""
    return [*FAST_START, f"-XX:SharedArchiveFile={jars / CLASS_ARCHIVE}", "-cp", f"{jars}/*"]


def _archive_classes(jars: Path) -> None:
    """Archive the classes of a server that has responded, if this Java can (13 and later)."""
    import pymongo

    argv = ["java", *FAST_START, f"-XX:ArchiveClassesAtExit={jars / CLASS_ARCHIVE}"]
    argv += ["-cp", f"{jars}/*", "Server", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        with suppress(ValueError):
            port = int(server.stdout.readline())
            with pymongo.MongoClient("127.0.0.1", port) as client:
                client.blog.posts.insert_one({"_id": 1})
                client.blog.posts.find_one_and_update({"_id": 1}, {"$set": {"n": 2}})
                client.blog.posts.find({}).sort("_id").to_list()
        server.terminate()


def _mongo_server() -> Path:
    """The server's JARs, fetched and compiled once per machine, under a lock."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed, and these tests do not use mongod")
    pom, source = HERE / "mongo" / "pom.xml", HERE / "mongo" / "Server.java"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workerlab"
    contents = hashlib.sha256(pom.read_bytes() + source.read_bytes()).hexdigest()
    jars = cache / f"mongo-server-{contents[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "mongo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as directory:
                shutil.copy(pom, directory)
                argv = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
                options = f"{' '.join(FAST_START)} {os.environ.get('MAVEN_OPTS', '')}"
                fetch = subprocess.run(
                    argv, cwd=directory, env={**os.environ, "MAVEN_OPTS": options},
                    capture_output=True, text=True, timeout=FETCH_S, check=False,
                )  # fmt: skip
                if fetch.returncode:
                    pytest.skip(f"Maven cannot fetch the server: {fetch.stdout[-300:]}")
                fast_start = [f"-J{option}" for option in FAST_START]
                for argv in (
                    ["javac", *fast_start, "-cp", "jars/*", "-d", ".", str(source)],
                    # Class archives require a JAR
                    ["jar", *fast_start, "cf", "jars/server.jar", "Server.class"],
                ):
                    subprocess.run(argv, cwd=directory, check=True, timeout=FETCH_S)
                Path(directory, "jars").rename(jars)
            _archive_classes(jars)
    return jars


# --- a storage, used by blocking or by async code --------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A storage's settings, and whether async code uses it."""

    settings: Settings
    async_mode: bool

    def run(self, use: Callable[[Storage], Coroutine[Any, Any, T]]) -> T:
        """Call `use` with a new storage."""

        async def whole() -> T:
            storage = storage_of(self.settings, async_mode=self.async_mode)
            try:
                return await use(storage)
            finally:
                await storage.stop()

        return asyncio.run(whole()) if self.async_mode else finish(whole())

    def run_prepared(self, use: Callable[[Storage], Coroutine[Any, Any, T]]) -> T:
        """Call `use` with a new storage whose schema is prepared."""

        async def prepare_and_use(storage: Storage) -> T:
            await storage.prepare()
            return await use(storage)

        return self.run(prepare_and_use)


@dataclass(frozen=True)
class Prepared:
    """As an argument of a test that is a coroutine: a prepared storage."""

    variant: Variant


VARIANTS = [
    pytest.param((kind, async_mode), id=f"{kind}-{'async' if async_mode else 'blocking'}")
    for kind in ("sqlite", "postgresql", "mongodb")
    for async_mode in (False, True)
]


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path: Path) -> Variant:
    """Each storage for blocking and for async code, without a schema."""
    kind, async_mode = request.param
    url = f"sqlite:///{tmp_path}/posts.db" if kind == "sqlite" else request.getfixturevalue(kind)
    storage_variant = Variant(Settings(storage_url=url, answer_s=ANSWER_S), async_mode)
    storage_variant.run(lambda storage: storage.drop())
    return storage_variant


# --- the blog itself -------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Opens a new connection for each request, so that it may reach any worker."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    def __call__(self, method: str, path: str, values: Any = None) -> Answer:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=60)
        headers, body = {"Connection": "close"}, None
        if values is not None:
            body, headers["Content-Type"] = json.dumps(values), "application/json"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, headers, answer.read().decode())
        finally:
            connection.close()


@dataclass(frozen=True)
class Blog:
    ask: Client
    server: Running

    def metrics(self) -> dict[str, int]:
        """Totals over all workers."""
        return dict(sample_app_metrics(self.server.launch.trial).totals)

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """The increments of all counters, except times and zeros."""
        counts: dict[str, int] = {}
        before = self.metrics()
        yield counts
        for name, total in self.metrics().items():
            if not name.endswith("_ns") and total != before[name]:
                counts[name] = total - before[name]


Blogs = Callable[..., AbstractContextManager[Blog]]


@pytest.fixture
def blog(tmp_path: Path) -> Blogs:
    return blogs(tmp_path)


def blogs(root: Path) -> Blogs:
    """`blog(worker_class, workers, posts=3, BLOG_...=...)` starts a blog with that many posts, on a
    storage that is emptied first. `root`: a directory for all files that the blogs write."""

    @contextmanager
    def start(worker_class: str, workers: int, posts: int = 3, **env: str) -> Iterator[Blog]:
        directory = Path(tempfile.mkdtemp(dir=root))
        env = {
            "BLOG_STORAGE": f"sqlite:///{directory}/posts.db",
            "BLOG_UPLOADS": str(directory / "uploads"),
            "BLOG_ANSWER": f"{ANSWER_S}",
            **env,
        }
        drafts = [seeds.draft(number) for number in range(1, posts + 1)]

        async def fill(storage: Storage) -> None:
            await storage.drop()
            await storage.prepare()
            await storage.add(drafts, at=seeds.AT)

        settings = Settings(storage_url=env["BLOG_STORAGE"], answer_s=ANSWER_S)
        Variant(settings, False).run(fill)
        interface = "asgi" if worker_class in ASGI_CLASSES else "wsgi"
        planned = Server(worker_class, workers, 4 if worker_class == "gthread" else 1, 64, 100)
        app = App(f"apps.blog.{interface}:app", chdir="", path="/style.css")
        with serve(launch(directory, planned, app, env=tuple(env.items()))) as server:
            yield Blog(Client(server.host, server.port), server)

    return start
