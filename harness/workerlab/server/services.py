"""What the app needs beside it: storages and a cache, started here where they are installed, or
named by their address.

What the lab starts listens on loopback only, keeps its data in a temporary directory that its guard
makes and removes, and is gone after the `with`, and after a killed harness, too.

PostgreSQL keeps its default settings, the durable ones included: what a commit costs is part of
what is measured. It is ended by SIGQUIT: a smart shutdown (TERM) waits for its clients, a fast one
writes what is thrown away a moment later, a killed one leaves a segment of shared memory behind.
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

from workerlab.model import EnvironmentProblem
from workerlab.server.process import Guarded
from workerlab.server.service_check import ANSWER_S, EXTRA, KINDS, NoAnswer, ask

UP_S = 60.0  # initdb writes 40 MB; a busy disk may take its time
LOOK_S = 0.05
IDLE = "import signal; signal.pause()"
PORTS = 5  # tries: another program may take the free one first
GRACE_S = 8.0  # PostgreSQL itself kills what does not end within 5 s
SETUP = "./scripts/setup.sh --ladder"
KEPT = ("usr/lib/postgresql/*", "opt/homebrew/opt/postgresql*", "usr/local/opt/postgresql*")
BLOG = ("werkzeug", "jinja2", "markdown_it", "nh3", "PIL")  # what it is made of


class Service(Struct, frozen=True):
    """One that answers."""

    kind: str  # of KINDS
    url: str
    version: str  # which server, in its own words
    pid: int | None = None  # the root of its process tree, where the lab started it


class Program(Struct, frozen=True):
    """How a kind is started: `argv` of its `programs`, a directory and a port; `url` of that port.
    `users`: whom it runs as in place of root. `end`: the signal that ends it. `is_ours`: whether
    it is the one in this directory with this pid. `made`: makes what the app needs in it, and
    returns the address of that."""

    programs: tuple[str, ...]
    users: tuple[str, ...]
    argv: Callable[[Sequence[str], Path, int], list[str]]
    url: str
    is_ours: Callable[[str, Path, int | None], bool]
    end: signal.Signals | None = None
    made: Callable[[str], str] = str


def _postgresql_argv(programs: Sequence[str], directory: Path, port: int) -> list[str]:
    script = (
        'umask 077; "$1" --pgdata "$3" --username blog --auth trust --encoding UTF8 --locale C'
        f' --no-sync && exec "$2" -D "$3" -p {port} -c listen_addresses=127.0.0.1'
        " -c unix_socket_directories= -c dynamic_shared_memory_type=mmap -c max_connections=200"
    )
    return ["/bin/sh", "-c", script, "sh", *programs, str(directory / "data")]


def _postgresql_is_ours(url: str, directory: Path, _pid: int | None) -> bool:
    import psycopg

    with psycopg.connect(url, connect_timeout=ANSWER_S) as db:
        return db.execute("SHOW data_directory").fetchone() == (str(directory / "data"),)


def _create_database(url: str) -> str:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE DATABASE blog")
    return url.removesuffix("/postgres") + "/blog"


def _redis_argv(programs: Sequence[str], directory: Path, port: int) -> list[str]:
    """It keeps nothing on disk."""
    words = [*programs, "--port", str(port), "--bind", "127.0.0.1", "--protected-mode", "yes"]
    words += ["--save", "", "--appendonly", "no", "--dir", str(directory), "--daemonize", "no"]
    return [*words, "--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru"]


def _redis_is_ours(url: str, _directory: Path, pid: int | None) -> bool:
    import redis

    with redis.Redis.from_url(url, socket_timeout=ANSWER_S) as client:
        return bool(client.info("server")["process_id"] == pid)


def _mongodb_argv(programs: Sequence[str], directory: Path, port: int) -> list[str]:
    script = 'umask 077; mkdir "$2" && exec "$1" --dbpath "$2" --bind_ip 127.0.0.1'
    script += f" --nounixsocket --port {port}"
    return ["/bin/sh", "-c", script, "sh", *programs, str(directory / "data")]


def _mongodb_is_ours(url: str, _directory: Path, pid: int | None) -> bool:
    import pymongo

    with pymongo.MongoClient[dict[str, object]](url, timeoutMS=ANSWER_S * 1000) as client:
        return client.admin.command("serverStatus").get("pid") == pid


STAND_INS = {"mongod": "mongodb-stand-in"}  # that scripts/ladder.sh makes, with its options
PROGRAMS = {
    "mongodb": Program(
        ("mongod",), ("mongodb", "mongod"), _mongodb_argv, "mongodb://127.0.0.1:{port}/blog",
        _mongodb_is_ours, signal.SIGTERM,
    ),
    "postgresql": Program(
        ("initdb", "postgres"), ("postgres", "nobody"), _postgresql_argv,
        "postgresql://blog@127.0.0.1:{port}/postgres", _postgresql_is_ours, signal.SIGQUIT,
        _create_database,
    ),
    "redis": Program(
        ("redis-server",), ("redis", "nobody"), _redis_argv, "redis://127.0.0.1:{port}",
        _redis_is_ours,
    ),
}  # fmt: skip


def lacks(kind: str) -> str | None:
    """Why the lab cannot start a `kind` here, and what would help; None where it can."""
    if kind == "sqlite":
        return None
    name, or_url = KINDS[kind].name, f"; {KINDS[kind].option} names one that runs"
    if missing := [one for one in PROGRAMS[kind].programs if _program(one) is None]:
        where = f"{' and '.join(missing)} not found"
        installs = f": {SETUP} installs it" if kind != "mongodb" else ""
        return f"{name} is not installed here ({where}){installs}{or_url}"
    if kind == "postgresql" and os.geteuid() == 0 and _user(kind) is None:
        return f"{name} refuses to run as root, and no other user is known{or_url}"
    return None


def lacks_driver(kind: str) -> str | None:
    return lacks_packages(KINDS[kind].drivers)


def lacks_packages(names: Sequence[str]) -> str | None:
    missing = [name for name in names if find_spec(name) is None]
    return f"{' and '.join(missing)} cannot be imported: {EXTRA}" if missing else None


@contextmanager
def service(kind: str, url: str | None = None) -> Iterator[Service]:
    """The one at `url`, else a fresh and empty one that is gone afterwards. Raises
    EnvironmentProblem where it cannot be had, with what to do about it."""
    if why := lacks_driver(kind) or (None if url else lacks(kind)):
        raise EnvironmentProblem(why)
    if url:
        yield Service(kind, url, ask(kind, url))
    elif kind == "sqlite":
        with folder() as directory:
            url = f"sqlite:///{directory / 'blog.sqlite'}"
            yield Service(kind, url, ask(kind, url))
    else:
        with _started(kind) as one:
            yield one


@contextmanager
def _started(kind: str) -> Iterator[Service]:
    program, user = PROGRAMS[kind], _user(kind)
    programs = [str(_program(name)) for name in program.programs]
    for left in reversed(range(PORTS)):
        directory, port = _place(user), free_port()
        with _guarded(program.argv(programs, directory, port), directory, user, program.end) as one:
            url = program.url.format(port=port)
            version = _up(kind, url, one, directory, last=not left)
            if version is not None:
                yield Service(kind, program.made(url), f"{version}, started by the lab", one.pid)
                return


@contextmanager
def folder() -> Iterator[Path]:
    """An empty directory; what is put into it goes with it. Raises EnvironmentProblem."""
    directory = _place(None)
    with _guarded([sys.executable, "-I", "-S", "-c", IDLE], directory, None) as process:
        if process.pid is None or not directory.is_dir():
            raise EnvironmentProblem(f"{directory} cannot be made")
        yield directory


def _guarded(
    argv: Sequence[str], directory: Path, user: str | None, end: signal.Signals | None = None
) -> Guarded:
    """`directory` holds all it writes, its output as well."""
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


def _up(kind: str, url: str, process: Guarded, directory: Path, *, last: bool) -> str | None:
    """Which server answers; None where its port was taken, and it is not the `last` try. Raises
    EnvironmentProblem with its own words where it does not come up."""
    give_up = time.monotonic() + UP_S
    no_answer: NoAnswer | None = None
    while process.running and time.monotonic() < give_up:
        try:
            version = ask(kind, url)
            # Another one may have taken its port, and answer in its place until it has given up
            if PROGRAMS[kind].is_ours(url, directory, process.pid):
                return version
        except Exception as error:  # each client has kinds of its own
            no_answer = error if isinstance(error, NoAnswer) else no_answer
        process.wait(LOOK_S)
    output = ""
    with contextlib.suppress(OSError):
        output = (directory / "output").read_text(errors="replace")[-4096:]
    if "address already in use" in output.lower() and not last:
        return None
    why = output.strip().splitlines()[-1:] or [str(no_answer or "another one answers at its port")]
    raise EnvironmentProblem(f"{KINDS[kind].name} did not come up: {why[0]}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _program(name: str) -> str | None:
    """Debian and Homebrew keep PostgreSQL's, of each version, outside the PATH; take the newest."""
    if found := shutil.which(name):
        return found
    kept = [path for place in KEPT for path in Path("/").glob(f"{place}/bin/{name}")]

    def major(program: Path) -> int:
        version = program.parent.parent.name.removeprefix("postgresql@")
        return int(version) if version.isdigit() else 0

    newest = max((path for path in kept if os.access(path, os.X_OK)), key=major, default=None)
    return str(newest) if newest else shutil.which(STAND_INS.get(name, name))


def _user(kind: str) -> str | None:
    """Whom a server runs as in place of root: the first that exists. None where this is no root."""
    if os.geteuid() != 0 or kind not in PROGRAMS:
        return None
    for name in PROGRAMS[kind].users:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


def _place(user: str | None) -> Path:
    """A directory that is not there yet, where `user` gets to."""
    for one in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        way = [one.resolve(), *one.resolve().parents]
        open_to_all = user is None or all(step.stat().st_mode & 0o001 for step in way)
        if open_to_all and os.access(one, os.W_OK):
            return one.resolve() / f"workerlab-{secrets.token_hex(8)}"
    where = tempfile.gettempdir()
    raise EnvironmentProblem(f"{user or 'this user'} cannot write into {where}: set TMPDIR")
