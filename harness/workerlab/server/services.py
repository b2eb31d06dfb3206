"""The services of an app (storages and a cache), started here if installed or given by address.

Services that the lab starts listen on loopback only, keep their data in a temporary directory that
the guard creates and removes, and are gone after the `with`, even if the harness is killed.

PostgreSQL keeps its default settings, including durability, since the cost of a commit is measured.
It is stopped by SIGQUIT: a smart shutdown (TERM) waits for clients, a fast one writes data that is
deleted a moment later, and SIGKILL leaves a shared memory segment behind.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from workerlab.errors import EnvironmentProblem
from workerlab.numbers.units import listed
from workerlab.server.process import Guarded
from workerlab.server.service_check import EXTRA, KINDS, TIMEOUT_S, NoAnswer, ask

START_S = 60.0  # initdb writes 40 MB, which takes a long time on a busy disk
POLL_S = 0.05
IDLE = "import signal; signal.pause()"
PORT_ATTEMPTS = 5  # another program may take the free port first
GRACE_S = 8.0  # PostgreSQL itself kills its processes after 5 s
SETUP = "./scripts/setup.sh --ladder"
INSTALL_DIRS = ("usr/lib/postgresql/*", "opt/homebrew/opt/postgresql*", "usr/local/opt/postgresql*")
BLOG_PACKAGES = ("werkzeug", "jinja2", "markdown_it", "nh3", "PIL")


class Service(Struct, frozen=True):
    """A service that is ready."""

    kind: str  # of KINDS
    url: str
    version: str  # as the server reports it
    pid: int | None = None  # of the root of its process tree, if the lab started it


class ServiceProgram(Struct, frozen=True):
    """How to start a kind of service. `argv` and `url`: templates with the programs' paths (by
    number), the directory and the port. `users`: candidates to run it instead of root; the first
    that exists is used. `end`: the signal that stops it. `is_ours(url, directory, pid)`: whether
    the server at `url` is the one started. `prepare(url)`: creates what the app needs, and returns
    its address."""

    programs: tuple[str, ...]
    users: tuple[str, ...]
    argv: tuple[str, ...]
    url: str
    is_ours: Callable[[str, Path, int | None], bool]
    end: signal.Signals | None = None
    prepare: Callable[[str], str] = str


def _postgresql_is_ours(url: str, directory: Path, _pid: int | None) -> bool:
    import psycopg

    with psycopg.connect(url, connect_timeout=TIMEOUT_S) as db:
        return db.execute("SHOW data_directory").fetchone() == (str(directory / "data"),)


def _create_database(url: str) -> str:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE DATABASE blog")
    return url.removesuffix("/postgres") + "/blog"


def _redis_is_ours(url: str, _directory: Path, pid: int | None) -> bool:
    import redis

    with redis.Redis.from_url(url, socket_timeout=TIMEOUT_S) as client:
        return bool(client.info("server")["process_id"] == pid)


def _mongodb_is_ours(url: str, _directory: Path, pid: int | None) -> bool:
    import pymongo

    with pymongo.MongoClient[dict[str, object]](url, timeoutMS=TIMEOUT_S * 1000) as client:
        return client.admin.command("serverStatus").get("pid") == pid


STAND_INS = {"mongod": "mongodb-stand-in"}  # built by scripts/ladder.sh, same options
PROGRAMS = {
    "mongodb": ServiceProgram(
        programs=("mongod",), users=("mongodb", "mongod"),
        argv=("/bin/sh", "-c",
              'umask 077; mkdir "$2" && exec "$1" --dbpath "$2" --bind_ip 127.0.0.1 --nounixsocket'
              " --port {port}",
              "sh", "{0}", "{directory}/data"),
        url="mongodb://127.0.0.1:{port}/blog", is_ours=_mongodb_is_ours, end=signal.SIGTERM,
    ),
    "postgresql": ServiceProgram(
        programs=("initdb", "postgres"), users=("postgres", "nobody"),
        argv=("/bin/sh", "-c",
              'umask 077; "$1" --pgdata "$3" --username blog --auth trust --encoding UTF8'
              ' --locale C --no-sync && exec "$2" -D "$3" -p {port} -c listen_addresses=127.0.0.1'
              " -c unix_socket_directories= -c dynamic_shared_memory_type=mmap"
              " -c max_connections=200",
              "sh", "{0}", "{1}", "{directory}/data"),
        url="postgresql://blog@127.0.0.1:{port}/postgres", is_ours=_postgresql_is_ours,
        end=signal.SIGQUIT, prepare=_create_database,
    ),
    "redis": ServiceProgram(
        programs=("redis-server",), users=("redis", "nobody"),
        argv=("{0}", "--port", "{port}", "--bind", "127.0.0.1", "--protected-mode", "yes",
              "--save", "", "--appendonly", "no", "--dir", "{directory}", "--daemonize", "no",
              "--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru"),  # no persistence
        url="redis://127.0.0.1:{port}", is_ours=_redis_is_ours,
    ),
}  # fmt: skip


def why_unavailable(kind: str) -> str | None:
    """The reason why the lab cannot start a `kind` here, with advice; None if it can."""
    if kind == "sqlite":
        return None
    label, url_advice = KINDS[kind].name, f"; {KINDS[kind].option} connects to a running one"
    if missing := [name for name in PROGRAMS[kind].programs if _program(name) is None]:
        detail = f"{listed(missing)} not found"
        setup_advice = f": {SETUP} installs it" if kind != "mongodb" else ""
        return f"{label} is not installed here ({detail}){setup_advice}{url_advice}"
    if kind == "postgresql" and os.geteuid() == 0 and _user(kind) is None:
        return f"{label} refuses to run as root, and this system has no suitable user{url_advice}"
    return None


def why_no_driver(kind: str) -> str | None:
    return why_packages_missing(KINDS[kind].drivers)


def why_packages_missing(names: Sequence[str]) -> str | None:
    missing = [name for name in names if find_spec(name) is None]
    return f"{listed(missing)} cannot be imported: {EXTRA}" if missing else None


@contextmanager
def service(kind: str, url: str | None = None) -> Iterator[Service]:
    """The service at `url`, or else a new and empty one that is gone afterwards. Raises
    EnvironmentProblem, with advice, if it is unavailable."""
    if why := why_no_driver(kind) or (None if url else why_unavailable(kind)):
        raise EnvironmentProblem(why)
    if url:
        yield Service(kind, url, ask(kind, url))
    elif kind == "sqlite":
        with folder() as directory:
            url = f"sqlite:///{directory / 'blog.sqlite'}"
            yield Service(kind, url, ask(kind, url))
    else:
        with _new_service(kind) as new_service:
            yield new_service


@contextmanager
def _new_service(kind: str) -> Iterator[Service]:
    program, user = PROGRAMS[kind], _user(kind)
    programs = [str(_program(name)) for name in program.programs]
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        directory, port = _new_directory(user), free_port()
        argv = [word.format(*programs, directory=directory, port=port) for word in program.argv]
        with _guarded(argv, directory, user, program.end) as process:
            url = program.url.format(port=port)
            version = _wait_until_ready(kind, url, process, directory, last=not attempts_left)
            if version is not None:
                version += ", started by the lab"
                yield Service(kind, program.prepare(url), version, process.pid)
                return


@contextmanager
def folder() -> Iterator[Path]:
    """An empty directory, removed afterwards with its contents. Raises EnvironmentProblem."""
    directory = _new_directory(None)
    with _guarded([sys.executable, "-I", "-S", "-c", IDLE], directory, None) as process:
        if process.pid is None or not directory.is_dir():
            raise EnvironmentProblem(f"{directory} cannot be created")
        yield directory


def _guarded(
    argv: Sequence[str], directory: Path, user: str | None, end: signal.Signals | None = None
) -> Guarded:
    """A guarded program. `directory`: for all files it writes, including its output."""
    return Guarded(
        argv,
        cwd=Path("/"),
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        stdout=directory / "output",
        grace_s=GRACE_S,
        user=user,
        remove=directory,
        end=end,
    )


def _wait_until_ready(
    kind: str, url: str, process: Guarded, directory: Path, *, last: bool
) -> str | None:
    """The version of the server; None if its port was taken, unless this is the `last` attempt.
    Raises EnvironmentProblem with the service's own message if it does not start."""
    deadline_s = time.monotonic() + START_S
    no_answer: NoAnswer | None = None
    while process.running and time.monotonic() < deadline_s:
        try:
            version = ask(kind, url)
            # Another server that has taken the port may respond until the new one gives up
            if PROGRAMS[kind].is_ours(url, directory, process.pid):
                return version
        except Exception as error:  # clients raise their own types
            no_answer = error if isinstance(error, NoAnswer) else no_answer
        process.wait(POLL_S)
    output = ""
    with contextlib.suppress(OSError):
        output = (directory / "output").read_text(errors="replace")[-4096:]
    if "address already in use" in output.lower() and not last:
        return None
    why = output.strip().splitlines()[-1:] or [str(no_answer or "another server uses its port")]
    raise EnvironmentProblem(f"{KINDS[kind].name} did not start: {why[0]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str) -> str | None:
    """The path of a program. Debian and Homebrew install PostgreSQL's programs outside the PATH, by
    version; the newest is used."""
    if on_path := shutil.which(name):
        return on_path
    patterns = [f"{directory}/bin/{name}" for directory in INSTALL_DIRS]
    installed = [path for pattern in patterns for path in Path("/").glob(pattern)]

    def major(program: Path) -> int:
        version = program.parent.parent.name.removeprefix("postgresql@")
        return int(version) if version.isdigit() else 0

    newest = max((path for path in installed if os.access(path, os.X_OK)), key=major, default=None)
    return str(newest) if newest else shutil.which(STAND_INS.get(name, name))


def _user(kind: str) -> str | None:
    """The first existing user to run a service as instead of root. None if this is not root."""
    if os.geteuid() != 0 or kind not in PROGRAMS:
        return None
    for name in PROGRAMS[kind].users:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


def _new_directory(user: str | None) -> Path:
    """A path for a new directory that `user` can reach."""
    for base in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        parents = [base.resolve(), *base.resolve().parents]
        open_to_all = user is None or all(parent.stat().st_mode & 0o001 for parent in parents)
        if open_to_all and os.access(base, os.W_OK):
            return base.resolve() / f"workerlab-{secrets.token_hex(8)}"
    where = tempfile.gettempdir()
    raise EnvironmentProblem(f"{user or 'this user'} cannot write to {where}: set TMPDIR")
