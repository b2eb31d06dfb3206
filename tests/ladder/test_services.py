"""The services with real PostgreSQL and Redis: start, configuration, complete cleanup, errors."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis
from msgspec.structs import replace

from tests.builders.conditions import until
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.server import services
from workerlab.server.service_check import check_url, place, without_secrets
from workerlab.server.services import Service, service

ROOT = Path(__file__).resolve().parents[2]
SEGMENTS = Path("/proc/sysvipc/shm")
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def directory_of(pid: int) -> Path:
    """The directory that the lab created for this server."""
    cwd = Path(os.readlink(f"/proc/{pid}/cwd"))
    return next(path for path in (cwd, *cwd.parents) if path.name.startswith("workerlab-"))


def segments(pid: int) -> list[str]:
    """Shared memory segments that this process created; they outlive a process."""
    if not SEGMENTS.exists():
        return []
    return [line for line in SEGMENTS.read_text().splitlines()[1:] if line.split()[4] == str(pid)]


def listens(url: str) -> bool:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    if why := services.why_unavailable(request.param):
        pytest.skip(why)
    return str(request.param)


@pytest.fixture(scope="module")
def running_service(kind: str) -> Iterator[Service]:
    """For tests that do not change it."""
    with service(kind) as started_service:
        yield started_service


def test_a_service_reports_its_version(kind: str, running_service: Service) -> None:
    assert running_service.kind == kind
    program = {"postgresql": "PostgreSQL", "redis": "Redis"}[kind]
    assert re.fullmatch(rf"{program} [0-9].*, started by the lab", running_service.version)
    with service(kind, running_service.url) as same_service:
        assert f"{same_service.version}, started by the lab" == running_service.version
        assert same_service.pid is None


@LINUX_ONLY
def test_a_service_listens_only_on_loopback(running_service: Service) -> None:
    assert running_service.pid is not None
    addresses = set()
    for process in tree(running_service.pid):
        with suppress(psutil.NoSuchProcess):  # PostgreSQL's workers come and go
            for connection in process.net_connections("all"):
                if connection.status == psutil.CONN_LISTEN:
                    addresses.add(tuple(connection.laddr))
    assert addresses == {("127.0.0.1", urlsplit(running_service.url).port)}


@LINUX_ONLY
def test_a_stopped_service_leaves_nothing(kind: str) -> None:
    with ExitStack() as stack, service(kind) as own_service:
        assert own_service.pid is not None
        processes, directory = tree(own_service.pid), directory_of(own_service.pid)
        assert directory.stat().st_mode & 0o077 == 0  # private to its user
        if os.geteuid() == 0:
            assert psutil.Process(own_service.pid).uids().real != 0
        if kind == "postgresql":  # an open connection does not prevent a stop
            stack.enter_context(closing(psycopg.connect(own_service.url)))
    assert not any(process.is_running() for process in processes)
    assert not directory.exists()
    assert segments(own_service.pid) == []
    assert not listens(own_service.url)


HARNESS = """
import sys, time
from workerlab.server import services
from workerlab.server.services import service
with service("postgresql") as a, service("redis") as b, services.folder() as c:
    print(a.pid, b.pid, c, flush=True)
    time.sleep(600)
"""


@LINUX_ONLY
def test_a_killed_lab_leaves_no_service() -> None:
    if why := services.why_unavailable("postgresql") or services.why_unavailable("redis"):
        pytest.skip(why)
    argv = [sys.executable, "-c", HARNESS]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as lab:
        storage, cache, folder = lab.stdout.readline().split()
        pids = int(storage), int(cache)
        processes = [process for pid in pids for process in tree(pid)]
        directories = [*map(directory_of, pids), Path(folder)]
        lab.kill()
    until(lambda: not any(process.is_running() for process in processes), "its servers end")
    until(lambda: not any(path.exists() for path in directories), "its directories are removed")
    assert segments(pids[0]) == []


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
def test_postgresql_is_durable_and_empty(running_service: Service) -> None:
    with closing(psycopg.connect(running_service.url)) as db:
        for query, value in {
            "SHOW fsync": "on",
            "SHOW synchronous_commit": "on",
            "SHOW full_page_writes": "on",
            "SELECT count(*) FROM pg_tables WHERE schemaname='public'": 0,
            "SHOW server_encoding": "UTF8",
            "SELECT current_database()": "blog",
        }.items():
            assert db.execute(query).fetchone() == (value,), query


@pytest.mark.parametrize("kind", ["redis"], indirect=True)
def test_redis_is_not_persistent_and_has_a_memory_limit(running_service: Service) -> None:
    with redis.Redis.from_url(running_service.url) as client:
        settings = client.config_get("*")
        assert settings["save"] == ""
        assert settings["appendonly"] == "no"
        assert int(settings["maxmemory"]) > 0
        assert client.dbsize() == 0


def test_a_service_retries_if_its_port_is_taken(
    kind: str, running_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another service of the same kind, or by a server that accepts and never responds."""
    free_port, ports = services.free_port, list[int]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        taken = [urlsplit(running_service.url).port, silent.getsockname()[1]]

        def next_port() -> int:
            ports.append(taken[len(ports)] if len(ports) < len(taken) else free_port())
            return ports[-1]

        monkeypatch.setattr(services, "free_port", next_port)
        monkeypatch.setattr(services, "TIMEOUT_S", 1)
        with service(kind) as own_service:
            assert own_service.pid != running_service.pid
            assert ports[:2] == taken
            assert ports[-1] == urlsplit(own_service.url).port
            assert ports[-1] not in taken


def test_a_failed_start_names_the_cause(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "free_port", lambda: 99999999)
    pattern = r"did not start: .*(99999999|65535)"
    with pytest.raises(EnvironmentProblem, match=pattern), service(kind):
        pass


def test_sqlite_uses_a_temporary_directory() -> None:
    with service("sqlite") as sqlite:
        path = Path(urlsplit(sqlite.url).path)
        assert path.parent.is_dir()
        assert not path.exists()
        path.write_text("anything")
        assert sqlite.pid is None
        assert sqlite.version.startswith("SQLite 3.")
    assert not path.parent.exists()


# --- by URL ---------------------------------------------------------------------------------


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
def test_an_unreachable_service_is_reported_in_a_line_without_its_password(
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
def test_a_valid_url_is_accepted_without_a_connection(kind: str, url: str) -> None:
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
def test_a_malformed_url_is_refused_without_its_password(kind: str, url: str) -> None:
    with pytest.raises(UsageError, match="must be an address of") as failure:
        check_url(kind, url)
    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_secrets_are_removed_from_urls() -> None:
    assert place("postgresql://me:secret@db.example:5432/blog") == "db.example:5432"
    assert place("redis://:secret@[::1]:6379") == "[::1]:6379"
    assert place("mongodb://db.example") == "db.example"
    assert place("redis://me:secret@db.example:port") == "its address"
    url = "redis://me:se%2Fcret@db.example"
    assert "cret" not in without_secrets(f"no {url}, se%2Fcret or se/cret", url)


def test_a_missing_service_names_its_option_and_the_setup_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "_program", lambda _: None)
    assert "--mongo-url" in services.why_unavailable("mongodb")
    for kind, option in (("postgresql", "--postgres-url"), ("redis", "--redis-url")):
        assert option in services.why_unavailable(kind)
        with pytest.raises(EnvironmentProblem, match=r"setup\.sh --ladder"), service(kind):
            pass
    assert services.why_unavailable("sqlite") is None


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert services.why_no_driver("postgresql") is None
    kind = replace(services.KINDS["postgresql"], drivers=("no_such_driver",))
    monkeypatch.setitem(services.KINDS, "postgresql", kind)
    why = services.why_no_driver("postgresql")
    assert why == "no_such_driver cannot be imported: pip install 'workerlab[ladder]'"
