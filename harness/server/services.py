"""What the app stands on: storages and a cache, started here where they are installed, or given by
their address.

What the lab starts listens on loopback only, keeps its data in a temporary directory, and is below
a guard: server and data are gone after the `with`, and after a killed harness, too. The guard makes
the directory itself, so that there is no moment in which nobody would remove it.

PostgreSQL keeps its default settings, the durable ones included (fsync, synchronous_commit): what a
commit costs is part of what is measured. It is ended by SIGQUIT: a smart shutdown (TERM) waits for
its clients, a fast one writes what is thrown away a moment later, and a killed one leaves a segment
of shared memory behind.

Clients are imported when they are needed: they are extras.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from harness.model import EnvironmentProblem
from harness.server.process import Guarded
from harness.server.service_check import ANSWER_S, NAMES, Silent, ask

UP_S = 60.0  # initdb writes 40 MB; a busy disk may take its time
LOOK_S = 0.05
IDLE = "import signal; signal.pause()"
PORTS = 5  # tries: another program may take the free one first
GRACE_S = 8.0  # PostgreSQL itself kills what does not end within 5 s
SETUP = "./scripts/setup.sh --ladder"
OR_URL = {
    "postgresql": "; --postgres-url names one that runs",
    "redis": "; --redis-url names one that runs",
    "mongodb": "; --mongo-url names one that runs",
}
PROGRAMS = {"postgresql": ("initdb", "postgres"), "redis": ("redis-server",)}
USERS = {"postgresql": ("postgres", "nobody"), "redis": ("redis", "nobody")}  # in place of root
DRIVERS = {
    "postgresql": ("psycopg",),
    "redis": ("redis",),
    "mongodb": ("pymongo",),
    "sqlite": (),
    "blog": ("werkzeug", "jinja2", "markdown_it", "nh3", "PIL"),
}


@dataclass(frozen=True)
class Component:
    """`kind`: postgresql, redis, mongodb or sqlite. `says`: who answers, in its own words. `pid`:
    the root of its process tree, where the lab started it."""

    kind: str
    url: str
    says: str
    pid: int | None = None


def lacks(kind: str) -> str | None:
    """Why the lab cannot start a `kind` here, and what would help; None where it can."""
    if kind not in PROGRAMS:
        return None if kind == "sqlite" else f"the lab starts no {NAMES[kind]}{OR_URL[kind]}"
    missing = [program for program in PROGRAMS[kind] if _program(program) is None]
    if missing:
        return (
            f"{NAMES[kind]} is not installed here ({' and '.join(missing)} not found): "
            f"{SETUP} installs it{OR_URL[kind]}"
        )
    if kind == "postgresql" and os.geteuid() == 0 and _user(*USERS[kind]) is None:
        return f"{NAMES[kind]} refuses to run as root, and no other user is known{OR_URL[kind]}"
    return None


def lacks_driver(kind: str) -> str | None:
    """Which package is missing to talk to a `kind`, or to serve the blog at all ("blog")."""
    missing = [name for name in DRIVERS[kind] if find_spec(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} cannot be imported: pip install 'workerlab[ladder]'"


@contextmanager
def postgresql(directory_parent: Path | None = None) -> Iterator[Component]:
    """A fresh PostgreSQL with an empty database "blog". Raises EnvironmentProblem."""
    _refuse("postgresql")
    user = _user(*USERS["postgresql"])
    for left in reversed(range(PORTS)):
        directory, port = _place(directory_parent, user), _free_port()
        words = [str(_program("initdb")), str(_program("postgres")), str(directory / "data")]
        script = (
            'umask 077; "$1" --pgdata "$3" --username blog --auth trust --encoding UTF8 --locale C'
            f' --no-sync && exec "$2" -D "$3" -p {port} -c listen_addresses=127.0.0.1'
            " -c unix_socket_directories= -c dynamic_shared_memory_type=mmap -c max_connections=200"
        )
        shell = ["/bin/sh", "-c", script, "sh", *words]
        with _guarded(shell, directory, user, signal.SIGQUIT) as process:
            first = f"postgresql://blog@127.0.0.1:{port}/postgres"
            says = _up("postgresql", first, process, directory, last=not left)
            if says is None:
                continue
            url = f"postgresql://blog@127.0.0.1:{port}/blog"
            _create_database(first)
            yield Component("postgresql", url, f"{says}, started by the lab", process.pid)
            return


@contextmanager
def redis() -> Iterator[Component]:
    """A fresh Redis that keeps nothing on disk. Raises EnvironmentProblem."""
    _refuse("redis")
    user = _user(*USERS["redis"])
    for left in reversed(range(PORTS)):
        directory, port = _place(None, user), _free_port()
        words = [str(_program("redis-server")), "--port", str(port), "--bind", "127.0.0.1"]
        words += ["--protected-mode", "yes", "--save", "", "--appendonly", "no"]
        words += ["--dir", str(directory), "--daemonize", "no"]
        words += ["--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru"]
        with _guarded(words, directory, user) as process:
            url = f"redis://127.0.0.1:{port}"
            says = _up("redis", url, process, directory, last=not left)
            if says is None:
                continue
            yield Component("redis", url, f"{says}, started by the lab", process.pid)
            return


@contextmanager
def sqlite() -> Iterator[Component]:
    """A file that does not exist yet, in a directory of its own. Raises EnvironmentProblem."""
    with folder() as directory:
        url = f"sqlite:///{directory / 'blog.sqlite'}"
        yield Component("sqlite", url, _said("sqlite", url))


@contextmanager
def folder() -> Iterator[Path]:
    """An empty directory; what is put into it goes with it. Raises EnvironmentProblem."""
    directory = _place(None, None)
    with _guarded([sys.executable, "-I", "-S", "-c", IDLE], directory, None) as process:
        if process.pid is None or not directory.is_dir():
            raise EnvironmentProblem(f"{directory} cannot be made")
        yield directory


def given(kind: str, url: str) -> Component:
    """The one at `url`, which answers: else EnvironmentProblem, in one sentence without secrets."""
    return Component(kind, url, _said(kind, url))


def _said(kind: str, url: str) -> str:
    try:
        return ask(kind, url)
    except Silent as silent:
        raise EnvironmentProblem(str(silent)) from None


def _refuse(kind: str) -> None:
    if why := lacks_driver(kind) or lacks(kind):
        raise EnvironmentProblem(why)


def _guarded(
    argv: Sequence[str], directory: Path, user: str | None, end: signal.Signals | None = None
) -> Guarded:
    """`directory` holds all it writes, its words as well."""
    return Guarded(
        argv,
        cwd=Path("/"),
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        stdout=directory / "said",
        stderr=directory / "said",
        grace_s=GRACE_S,
        user=user,
        remove=directory,
        end=end,
    )


def _up(kind: str, url: str, process: Guarded, directory: Path, *, last: bool) -> str | None:
    """Who answers; None where its port was taken, and it is not the `last` try. Raises
    EnvironmentProblem with its own words where it does not come up."""
    give_up = time.monotonic() + UP_S
    silent: Silent | None = None
    while process.running and time.monotonic() < give_up:
        try:
            says = ask(kind, url)
            if _is_ours(kind, url, process, directory):
                return says
        except Silent as error:
            silent = error
        process.wait(LOOK_S)
    words = _last_words(directory)
    if "address already in use" in words.lower() and not last:
        return None
    why = words.strip().splitlines()[-1:] or [str(silent or "another one answers at its port")]
    raise EnvironmentProblem(f"{NAMES[kind]} did not come up: {why[0]}")


def _is_ours(kind: str, url: str, process: Guarded, directory: Path) -> bool:
    """Another one may have taken its port, and answer in its place until it has given up."""
    try:
        if kind == "redis":
            import redis

            with redis.Redis.from_url(url, socket_timeout=ANSWER_S) as client:
                return bool(client.info("server")["process_id"] == process.pid)
        import psycopg

        with psycopg.connect(url, connect_timeout=ANSWER_S) as db:
            return db.execute("SHOW data_directory").fetchone() == (str(directory / "data"),)
    except Exception:  # each client has kinds of its own
        return False


def _last_words(directory: Path) -> str:
    with contextlib.suppress(OSError):
        return (directory / "said").read_text(errors="replace")[-4096:]
    return ""


def _create_database(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE DATABASE blog")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _program(name: str) -> str | None:
    """Debian and Homebrew keep PostgreSQL's, of each version, outside the PATH; take the newest."""
    if found := shutil.which(name):
        return found
    kept = [*Path("/usr/lib/postgresql").glob(f"*/bin/{name}")]
    for brewed in (Path("/opt/homebrew/opt"), Path("/usr/local/opt")):
        kept += brewed.glob(f"postgresql*/bin/{name}")
    kept = [path for path in kept if os.access(path, os.X_OK)]
    return str(max(kept, key=_version)) if kept else None


def _version(program: Path) -> int:
    name = program.parent.parent.name.removeprefix("postgresql@")
    return int(name) if name.isdigit() else 0


def _user(*names: str) -> str | None:
    """Whom a server runs as in place of root: the first that exists. None where this is no root."""
    import pwd

    if os.geteuid() != 0:
        return None
    for name in names:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


def _place(parent: Path | None, user: str | None) -> Path:
    """A directory that is not there yet, where `user` gets to."""
    usual = [parent] if parent else [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    for one in usual:
        way = [one.resolve(), *one.resolve().parents]
        open_to_all = user is None or all(step.stat().st_mode & 0o001 for step in way)
        if open_to_all and os.access(one, os.W_OK):
            return one.resolve() / f"workerlab-{secrets.token_hex(8)}"
    raise EnvironmentProblem(f"{user or 'this user'} cannot write into {usual[0]}: set TMPDIR")
