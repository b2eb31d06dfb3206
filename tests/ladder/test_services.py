"""The real PostgreSQL and Redis: they come up, are what they say, and nothing of them is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis
from msgspec.structs import replace

from tests.integration.conftest import until
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.server import services
from workerlab.server.service_check import check_url, place, without_secrets
from workerlab.server.services import Service, service

ROOT = Path(__file__).resolve().parents[2]
SEGMENTS = Path("/proc/sysvipc/shm")

STARTED = ("postgresql", "redis")


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def listening(pid: int) -> Iterator[list[Any]]:
    """The sockets of each; PostgreSQL's workers come and go."""
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            yield process.net_connections("all")


def directory_of(pid: int) -> Path:
    """The server's own, of the lab."""
    inside = Path(os.readlink(f"/proc/{pid}/cwd"))
    return next(
        directory
        for directory in (inside, *inside.parents)
        if directory.name.startswith("workerlab-")
    )


def segments(pid: int) -> list[str]:
    """Shared memory that this process made, and that would outlive it."""
    if not SEGMENTS.exists():
        return []
    return [line for line in SEGMENTS.read_text().splitlines()[1:] if line.split()[4] == str(pid)]


def listens(url: str) -> bool:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


@pytest.fixture(scope="module", params=sorted(STARTED))
def kind(request: pytest.FixtureRequest) -> str:
    if why := services.why_unavailable(request.param):
        pytest.skip(why)
    return str(request.param)


@pytest.fixture(scope="module")
def running_service(kind: str) -> Iterator[Service]:
    """For all that only look at it."""
    with service(kind) as started:
        yield started


def test_it_answers_and_says_who_it_is(kind: str, running_service: Service) -> None:
    assert running_service.kind == kind
    assert running_service.version.startswith(
        {"postgresql": "PostgreSQL ", "redis": "Redis "}[kind]
    )
    assert running_service.version.endswith(", started by the lab")
    assert running_service.version.split()[1][0].isdigit()
    with service(kind, running_service.url) as same:
        assert f"{same.version}, started by the lab" == running_service.version
        assert same.pid is None


@pytest.mark.skipif(sys.platform != "linux", reason="looked up in /proc")
def test_only_this_machine_gets_to_it(running_service: Service) -> None:
    assert running_service.pid is not None
    port = urlsplit(running_service.url).port
    places = {
        (entry.laddr.ip, entry.laddr.port)
        for sockets in listening(running_service.pid)
        for entry in sockets
        if entry.status == psutil.CONN_LISTEN
    }
    assert places == {("127.0.0.1", port)}


@pytest.mark.skipif(sys.platform != "linux", reason="looked up in /proc")
def test_nothing_of_it_is_left(kind: str) -> None:
    with ExitStack() as stack, service(kind) as running_service:
        assert running_service.pid is not None
        members, directory = tree(running_service.pid), directory_of(running_service.pid)
        assert directory.stat().st_mode & 0o077 == 0  # nobody else reads what is in it
        if os.geteuid() == 0:
            assert psutil.Process(running_service.pid).uids().real != 0
        if kind == "postgresql":  # a client that stays does not keep it from ending
            stack.enter_context(closing(psycopg.connect(running_service.url)))
    assert not any(member.is_running() for member in members)
    assert not directory.exists()
    assert segments(running_service.pid) == []
    assert not listens(running_service.url)


HARNESS = """
import sys, time
from workerlab.server import services
from workerlab.server.services import service
with service("postgresql") as a, service("redis") as b, services.folder() as c:
    print(a.pid, b.pid, c, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looked up in /proc")
def test_nothing_of_it_outlives_a_killed_lab() -> None:
    if why := services.why_unavailable("postgresql") or services.why_unavailable("redis"):
        pytest.skip(why)
    words = [sys.executable, "-c", HARNESS]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as lab:
        storage, cache, folder = lab.stdout.readline().split()
        pids = int(storage), int(cache)
        members = [member for pid in pids for member in tree(pid)]
        directories = [*map(directory_of, pids), Path(folder)]
        lab.kill()
    until(lambda: not any(member.is_running() for member in members), "its servers end")
    until(lambda: not any(path.exists() for path in directories), "its directories go")
    assert segments(pids[0]) == []


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
def test_postgresql_is_durable_and_empty(running_service: Service) -> None:
    with closing(psycopg.connect(running_service.url)) as db:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert db.execute(f"SHOW {setting}").fetchone() == ("on",)
        assert db.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname='public'"
        ).fetchone() == (0,)
        assert db.execute("SHOW server_encoding").fetchone() == ("UTF8",)
        assert db.execute("SELECT current_database()").fetchone() == ("blog",)


@pytest.mark.parametrize("kind", ["redis"], indirect=True)
def test_redis_keeps_nothing_on_disk_and_is_bounded(running_service: Service) -> None:
    with redis.Redis.from_url(running_service.url) as client:
        settings = client.config_get("*")
        assert settings["save"] == ""
        assert settings["appendonly"] == "no"
        assert int(settings["maxmemory"]) > 0
        assert client.dbsize() == 0


def test_a_port_that_another_took_first_is_not_the_end(
    kind: str, running_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither another of its kind nor a server that accepts and stays silent is mistaken for it."""
    free, ports = services.free_port, list[int]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        taken = [urlsplit(running_service.url).port, silent.getsockname()[1]]

        def port() -> int:
            ports.append(taken[len(ports)] if len(ports) < len(taken) else free())
            return ports[-1]

        monkeypatch.setattr(services, "free_port", port)
        monkeypatch.setattr("workerlab.server.services.TIMEOUT_S", 1)
        with service(kind) as other:
            assert other.pid != running_service.pid
            assert ports[:2] == taken
            assert ports[-1] == urlsplit(other.url).port
            assert ports[-1] not in taken


def test_one_that_does_not_come_up_says_why(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "free_port", lambda: 99999999)
    with (
        pytest.raises(EnvironmentProblem, match=r"did not start: .*(99999999|65535)"),
        service(kind),
    ):
        pass


def test_sqlite_stands_in_a_directory_that_goes() -> None:
    with service("sqlite") as running_service:
        path = Path(urlsplit(running_service.url).path)
        assert path.parent.is_dir()
        assert not path.exists()
        path.write_text("anything")
        assert running_service.pid is None
        assert running_service.version.startswith("SQLite 3.")
    assert not path.parent.exists()


# --- by address -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("postgresql", "postgresql://me:pa%40ss@127.0.0.1:1/blog"),
        ("postgresql", "postgresql://me:pa%40ss@127.0.0.1:port/blog"),
        ("redis", "redis://:pa%40ss@127.0.0.1:1/0"),
        ("redis", "http://me:pa%40ss@127.0.0.1:1/0"),
        ("mongodb", "mongodb://me:pa%40ss@127.0.0.1:1/blog"),
        ("mongodb", "mongodb://me:pa%40ss@127.0.0.1:port/blog"),
    ],
)
def test_one_that_does_not_answer_is_told_in_a_line_without_its_password(
    kind: str, url: str
) -> None:
    with pytest.raises(EnvironmentProblem) as failure, service(kind, url):
        pass
    text = str(failure.value)
    assert "does not respond: " in text
    assert "\n" not in text
    assert len(text) < 400
    assert not any(secret in text for secret in ("pa%40ss", "pa@ss"))


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("postgresql", "postgres://me:secret@db.example:5432/blog"),
        ("redis", "unix:///run/redis.sock"),
        ("mongodb", "mongodb://one.example:1,two.example:2/blog"),
        ("mongodb", "mongodb+srv://me:secret@db.example/blog"),
    ],
)
def test_an_address_is_checked_without_asking_anybody(kind: str, url: str) -> None:
    check_url(kind, url)


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("redis", ""),
        ("redis", "nonsense"),
        ("postgresql", "127.0.0.1:5432"),
        ("redis", "redis:nonsense"),
        ("redis", "redis://:secret@127.0.0.1:port"),
        ("postgresql", "redis://:secret@127.0.0.1"),
        ("postgresql", "postgresql://me:secret@[::1/blog"),
        ("mongodb", "mongodb://me:secret@/blog"),
    ],
)
def test_a_malformed_address_is_refused_without_its_password(kind: str, url: str) -> None:
    with pytest.raises(UsageError, match="must be an address of") as failure:
        check_url(kind, url)
    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_what_may_be_shown_of_an_address() -> None:
    assert place("postgresql://me:secret@db.example:5432/blog") == "db.example:5432"
    assert place("redis://:secret@[::1]:6379") == "[::1]:6379"
    assert place("mongodb://db.example") == "db.example"
    assert place("redis://me:secret@db.example:port") == "its address"
    url = "redis://me:se%2Fcret@db.example"
    assert "cret" not in without_secrets(f"no {url}, se%2Fcret or se/cret", url)


def test_what_cannot_be_started_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_program", lambda _: None)
    for kind, option in (
        ("postgresql", "--postgres-url"),
        ("redis", "--redis-url"),
        ("mongodb", "--mongo-url"),
    ):
        why = services.why_unavailable(kind)
        assert option in why
    for kind in STARTED:
        with pytest.raises(EnvironmentProblem, match=r"setup\.sh --ladder"), service(kind):
            pass
    assert services.why_unavailable("sqlite") is None


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert services.why_no_driver("postgresql") is None
    changed = replace(services.KINDS["postgresql"], drivers=("no_such_driver",))
    monkeypatch.setitem(services.KINDS, "postgresql", changed)
    why = services.why_no_driver("postgresql")
    assert why == "no_such_driver cannot be imported: pip install 'workerlab[ladder]'"
