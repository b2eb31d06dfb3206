"""The blog's services as tests need them: real servers, some of which may be killed and come
back with what they held; and the blog itself under real Gunicorn."""

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
from tests.builders.launch import launch
from tests.builders.processes import send, stop
from tests.integration.conftest import until
from workerlab.model.plan import App, Server
from workerlab.observe.app_metrics import sample_app_metrics
from workerlab.server import services
from workerlab.server.process import Guarded
from workerlab.server.running import Running
from workerlab.server.serve import serve
from workerlab.server.service_check import NoAnswer, ask
from workerlab.server.worker_classes import ASGI_CLASSES

T = TypeVar("T")

# Files side by side, each in one process: those that take longest begin first
FIRST = ("test_ladder", "test_correct_under_load", "test_storages", "test_api")
HERE = Path(__file__).parent
GRACE_S = 8.0
ANSWER_S = 60.0  # for a database that is there: on a busy machine it is none the less
FETCH_S = 300.0  # three megabytes from wherever this machine's Maven gets them
# Whoever of them dies comes back once the file `run` is there
LIVES = """
trap 'kill -"$END" $pid; wait $pid; exit' TERM
while :; do
    until [ -e run ]; do sleep 0.2; done
    "$@" & pid=$!
    echo $pid > pid
    wait $pid
done
"""


def _lacks(kind: str) -> None:
    if why := services.why_unavailable(kind) or services.why_no_driver(kind):
        pytest.skip(why)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        here = item.path.parent == HERE and item.path.stem in FIRST
        return FIRST.index(item.path.stem) if here else len(FIRST)

    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test may be a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


# --- servers that live as long as the tests --------------------------------------------------


def _lasting(kind: str) -> Any:
    """A fixture: the address of an empty one."""

    @pytest.fixture(scope="session", name=kind)
    def address() -> Iterator[str]:
        _lacks(kind)
        with services.service(kind) as started:
            yield started.url

    return address


postgresql, redis = _lasting("postgresql"), _lasting("redis")


@pytest.fixture(scope="session")
def mongodb() -> Iterator[str]:
    with mortal_mongodb() as server:
        yield server.url


# --- servers that a test kills ---------------------------------------------------------------


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class Mortal:
    """A server on a port of its own, below a guard; `place` is removed with it."""

    def __init__(self, kind: str, url: str, place: Path) -> None:
        self.kind, self.url, self.place = kind, url, place

    @property
    def pid(self) -> int:
        """Of the one that runs."""
        return int((self.place / "pid").read_text())

    def answers(self) -> bool:
        try:
            return bool(ask(self.kind, self.url))
        except NoAnswer:
            return False

    def begin(self) -> None:
        (self.place / "run").touch()
        until(self.answers, f"{self.kind} answers")

    def kill(self) -> None:
        """At once, and it stays down until `begin`."""
        (self.place / "run").unlink()
        own = psutil.Process(self.pid)
        below = own.children(recursive=True)  # of PostgreSQL: each may answer once more
        own.kill()
        until(lambda: not any(map(lives, (own, *below))), f"{self.kind} is gone")
        until(lambda: not self.answers(), f"{self.kind} is silent")

    @contextmanager
    def hung(self) -> Iterator[None]:
        """It accepts connections, since the kernel does that, and says nothing."""
        own = psutil.Process(self.pid)
        pids = [process.pid for process in (own, *own.children(recursive=True))]
        stop(pids)
        try:
            yield
        finally:
            send(pids, signal.SIGCONT)


@contextmanager
def mortal(
    kind: str, url: str, argv: list[str], end: str, first: list[str] | None = None
) -> Iterator[Mortal]:
    """`first` is run once before it, where the server will run; {place} in words is that place."""
    user = services._user(kind)
    place = services._new_directory(user)
    words = [word.format(place=place) for word in argv]
    script = LIVES
    if first:
        made = " ".join(word.format(place=place) for word in first)
        script = f"{made} || exit\n{LIVES}"
    with Guarded(
        ["/bin/sh", "-c", f"cd {place}\n{script}", "sh", *words],
        cwd=Path("/"),
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "END": end},
        stdout=place / "said",
        grace_s=GRACE_S,
        user=user,
        remove=place,
        end=signal.SIGTERM,
    ):
        until(place.is_dir, f"{place} is made")
        server = Mortal(kind, url, place)
        server.begin()
        yield server
        (place / "run").touch()  # so that PostgreSQL clears up after a killed one
        until(server.answers, f"{kind} answers")


@contextmanager
def mortal_postgresql() -> Iterator[Mortal]:
    _lacks("postgresql")
    port = services.free_port()
    url = f"postgresql://blog@127.0.0.1:{port}/postgres"
    initdb, postgres = services._program("initdb"), services._program("postgres")
    first = [str(initdb), "-D", "{place}/data", "-U", "blog", "-A", "trust", "-E", "UTF8", "-N"]
    argv = [str(postgres), "-D", "{place}/data", "-p", str(port)]
    argv += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    argv += ["-c", "dynamic_shared_memory_type=mmap"]
    with mortal("postgresql", url, argv, "QUIT", first) as server:
        yield server


@contextmanager
def mortal_redis() -> Iterator[Mortal]:
    _lacks("redis")
    port = services.free_port()
    argv = [str(services._program("redis-server")), "--port", str(port), "--bind", "127.0.0.1"]
    argv += ["--save", "", "--appendonly", "no"]
    with mortal("redis", f"redis://127.0.0.1:{port}", argv, "TERM") as server:
        yield server


@contextmanager
def mortal_mongodb() -> Iterator[Mortal]:
    """MongoDB's own server where it is installed, else one that speaks its protocol: in memory, so
    that it comes back empty."""
    if why := services.why_no_driver("mongodb"):
        pytest.skip(why)
    port = services.free_port()
    url = f"mongodb://127.0.0.1:{port}/blog"
    argv = ["java", *_quick(_mongo()), "Server", str(port)]
    with mortal("mongodb", url, argv, "TERM") as server:
        yield server


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """The program that scripts/mongodb_stand_in.sh makes."""
    if why := services.why_no_driver("mongodb"):
        pytest.skip(why)
    made, program = _mongo(), tmp_path / "stand-in" / services.STAND_INS["mongod"]
    program.parent.mkdir()
    script = (HERE.parents[1] / "scripts" / "mongodb_stand_in.sh").read_text()
    lines = script.partition("<<END\n")[2].partition("END\n")[0].replace("\\$", "$")
    quick = lines.replace('java -cp "$jars:$jars/*"', f"java {shlex.join(_quick(made))}")
    assert quick != lines
    program.write_text(quick)
    program.chmod(0o755)
    return program


QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # what lives for seconds


ARCHIVE = "classes.jsa"  # of loaded classes: it halves the CPU of a start


def _quick(made: Path) -> list[str]:
    """The arguments of `java` before the class. Without the archive, Java only starts later."""
    return [*QUICK_JVM, f"-XX:SharedArchiveFile={made / ARCHIVE}", "-cp", f"{made}/*"]


def _archive(made: Path) -> None:
    """Archive the classes of a server that has responded, if this Java can (13 and later)."""
    import pymongo

    words = [f"-XX:ArchiveClassesAtExit={made / ARCHIVE}", "-cp", f"{made}/*", "Server", "0"]
    with subprocess.Popen(["java", *QUICK_JVM, *words], stdout=subprocess.PIPE) as server:
        with suppress(ValueError):
            port = int(server.stdout.readline())
            with pymongo.MongoClient("127.0.0.1", port) as client:
                client.blog.posts.insert_one({"_id": 1})
                client.blog.posts.find_one_and_update({"_id": 1}, {"$set": {"n": 2}})
                client.blog.posts.find({}).sort("_id").to_list()
        server.terminate()


def _mongo() -> Path:
    """Fetched and compiled once for a machine; several test processes may ask at once."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed, and no mongod is looked for")
    pom, source = HERE / "mongo" / "pom.xml", HERE / "mongo" / "Server.java"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workerlab"
    contents = hashlib.sha256(pom.read_bytes() + source.read_bytes()).hexdigest()
    jars = cache / f"mongo-server-{contents[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "mongo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as place:
                shutil.copy(pom, place)
                words = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
                words.append("-DoutputDirectory=jars")
                options = f"{' '.join(QUICK_JVM)} {os.environ.get('MAVEN_OPTS', '')}"
                done = subprocess.run(
                    words,
                    cwd=place,
                    env={**os.environ, "MAVEN_OPTS": options},
                    capture_output=True,
                    text=True,
                    timeout=FETCH_S,
                    check=False,
                )
                if done.returncode:
                    pytest.skip(f"Maven cannot fetch the server: {done.stdout[-300:]}")
                quick = [f"-J{option}" for option in QUICK_JVM]
                words = ["javac", *quick, "-cp", "jars/*", "-d", ".", str(source)]
                subprocess.run(words, cwd=place, check=True, timeout=FETCH_S)
                words = ["jar", *quick, "cf", "jars/server.jar", "Server.class"]  # for the archive
                subprocess.run(words, cwd=place, check=True, timeout=FETCH_S)
                Path(place, "jars").rename(jars)
            _archive(jars)
    return jars


# --- a storage, by either of its faces -------------------------------------------------------


@dataclass(frozen=True)
class Face:
    """A storage's address, and which kind of code uses it."""

    settings: Settings
    async_mode: bool

    def run(self, use: Callable[[Storage], Coroutine[Any, Any, T]]) -> T:
        """`use` a new one of it."""

        async def whole() -> T:
            storage = storage_of(self.settings, async_mode=self.async_mode)
            try:
                return await use(storage)
            finally:
                await storage.stop()

        return asyncio.run(whole()) if self.async_mode else finish(whole())


FACES = [
    pytest.param((kind, async_mode), id=f"{kind}-{'async' if async_mode else 'blocking'}")
    for kind in ("sqlite", "postgresql", "mongodb")
    for async_mode in (False, True)
]


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, tmp_path: Path) -> Face:
    """Each storage by both faces, without a schema."""
    kind, async_mode = request.param
    url = f"sqlite:///{tmp_path}/posts.db" if kind == "sqlite" else request.getfixturevalue(kind)
    face_of_storage = Face(Settings(storage_url=url, answer_s=ANSWER_S), async_mode)
    face_of_storage.run(lambda storage: storage.drop())
    return face_of_storage


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
    """One connection after the other, each closed with its answer: the next one may reach another
    worker."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    def __call__(self, method: str, path: str, values: Any = None) -> Answer:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=60)
        headers = {"Connection": "close"}
        body = None
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
        """Of all its workers."""
        sample = sample_app_metrics(self.server.launch.trial)
        return dict(sample.totals)

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """What was counted meanwhile, as far as it is not 0 and no time."""
        counts: dict[str, int] = {}
        before = self.metrics()
        yield counts
        after = self.metrics()
        changed = {name: after[name] - before[name] for name in after if name[-3:] != "_ns"}
        counts.update({name: number for name, number in changed.items() if number})


Blogs = Callable[..., AbstractContextManager[Blog]]


@pytest.fixture
def blog(tmp_path: Path) -> Blogs:
    return blogs(tmp_path)


def blogs(root: Path) -> Blogs:
    """`blog(worker_class, workers, posts=3, BLOG_...=...)`: with so many posts, on a storage that
    is emptied before. `root`: a directory for all that they write."""

    @contextmanager
    def start(worker_class: str, workers: int, posts: int = 3, **env: str) -> Iterator[Blog]:
        place = Path(tempfile.mkdtemp(dir=root))
        env = {
            "BLOG_STORAGE": f"sqlite:///{place}/posts.db",
            "BLOG_UPLOADS": str(place / "uploads"),
            "BLOG_ANSWER": f"{ANSWER_S}",
            **env,
        }
        drafts = [seeds.draft(number) for number in range(1, posts + 1)]

        async def fill(storage: Storage) -> None:
            await storage.drop()
            await storage.prepare()
            await storage.add(drafts, at=seeds.AT)

        settings = Settings(storage_url=env["BLOG_STORAGE"], answer_s=ANSWER_S)
        Face(settings, False).run(fill)
        face = "asgi" if worker_class in ASGI_CLASSES else "wsgi"
        planned = Server(worker_class, workers, 4 if worker_class == "gthread" else 1, 64, 100)
        app = App(f"apps.blog.{face}:app", chdir="", path="/style.css")
        with serve(launch(place, planned, app, env=tuple(env.items()))) as server:
            yield Blog(Client(server.host, server.port), server)

    return start
