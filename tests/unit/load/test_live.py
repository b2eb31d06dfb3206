"""The load that is changed while it runs: it does what it is told, and tells what it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workerlab.load.programs import GENERATORS

PATIENCE_S = 60.0


class Server(ThreadingHTTPServer):
    """Answers as soon as it may."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.may = threading.Event()
        self.paths: list[str] = []
        self.status = 200

    def handle_error(self, *_: object) -> None:
        """Clients that are gone are nobody's concern."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.paths.append(f"{self.path} {self.headers['X-Workerlab-Request']}")
        server.may.wait(PATIENCE_S)
        time.sleep(0.002)  # or its clients take all of a core
        self.send_response(server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


class Load:
    def __init__(self, place: Path, url: str) -> None:
        self.url = url
        commands, events = place / "commands", place / "events"
        for path in (commands, events):
            os.mkfifo(path)
        self._commands = os.open(commands, os.O_RDWR)
        self._events = os.open(events, os.O_RDONLY | os.O_NONBLOCK)
        argv = [sys.executable, "-I", "-S", GENERATORS, "live", str(commands), str(events)]
        self.process = subprocess.Popen(argv)
        self._unread, self.lines = b"", list[list[str]]()

    def ask(self, path: str = "/", *, keepalive: bool = False, **words: Any) -> None:
        asked = {"url": f"{self.url}{path}", "keepalive": keepalive, "seed": 1, **words}
        os.write(self._commands, json.dumps(asked).encode() + b"\n")

    def heard(self) -> list[list[str]]:
        """All events so far, in words."""
        try:
            while data := os.read(self._events, 1 << 20):
                *lines, self._unread = (self._unread + data).split(b"\n")
                self.lines += [line.decode().split() for line in lines]
        except BlockingIOError:
            pass
        return self.lines

    def until(self, true: Callable[[list[list[str]]], bool]) -> list[list[str]]:
        give_up = time.monotonic() + PATIENCE_S
        while not true(self.heard()):
            assert time.monotonic() < give_up, self.lines[-20:]
            assert self.process.poll() is None
            time.sleep(0.01)
        return self.lines

    def close(self) -> int:
        os.close(self._commands)
        code = self.process.wait(PATIENCE_S)
        os.close(self._events)
        return code


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.may.set()
        found.shutdown()
        thread.join()


@pytest.fixture
def load(server: Server, tmp_path: Path) -> Iterator[Load]:
    one = Load(tmp_path, f"http://127.0.0.1:{server.server_address[1]}")
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def under_way(lines: list[list[str]]) -> int:
    kinds = [line[0] for line in lines]
    return kinds.count("b") - kinds.count("e") - kinds.count("f")


def answered(lines: list[list[str]]) -> int:
    return sum(line[0] == "e" for line in lines)


def test_it_waits_for_its_pipes(tmp_path: Path) -> None:
    commands, events = tmp_path / "commands", tmp_path / "events"
    process = subprocess.Popen([sys.executable, "-I", "-S", GENERATORS, "live", commands, events])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    os.mkfifo(commands)
    os.mkfifo(events)
    reads = os.open(events, os.O_RDONLY | os.O_NONBLOCK)
    commands.write_bytes(b"")
    assert process.wait(PATIENCE_S) == 0
    os.close(reads)


def test_clients_come_and_go(server: Server, load: Load) -> None:
    load.ask("/?sleep=1", clients=3)
    load.until(lambda lines: sum(line[0] == "c" for line in lines) == 3)
    load.until(lambda _: len(server.paths) == 3)  # to be connected is not to be read
    assert under_way(load.lines) == 3  # none is answered yet
    load.ask(clients=5)
    load.until(lambda lines: under_way(lines) == 5)
    load.ask(clients=2)
    server.may.set()
    load.until(lambda lines: answered(lines) >= 20)
    late = [line[0] for line in load.lines if line[0] in "be"][-20:]
    assert under_way(load.lines) <= 2
    assert late.count("b") >= 8
    assert load.close() == 0
    assert all(path.startswith("/?sleep=1 ") for path in server.paths[:3])
    assert all(path.startswith("/ ") for path in server.paths[3:])
    numbers = sorted(int(path.split()[1]) for path in server.paths)
    assert numbers == list(range(1, len(numbers) + 1))


def test_what_becomes_of_a_request_is_told_in_its_order(server: Server, load: Load) -> None:
    server.may.set()
    load.ask(clients=1)
    load.until(lambda lines: answered(lines) >= 3)
    load.close()
    for number in ("1", "2", "3"):
        own = [(kind, int(at)) for kind, of, at in load.lines if kind != "o" and of == number]
        assert [kind for kind, _ in own] == ["b", "c", "e"]
        assert sorted(at for _, at in own) == [at for _, at in own]
    assert {line[1] for line in load.lines if line[0] == "o"} <= {"0", "1"}


def test_connections_may_be_kept(server: Server, load: Load) -> None:
    server.may.set()
    load.ask(clients=2, keepalive=True)
    load.until(lambda lines: answered(lines) >= 20)
    kinds = [line[0] for line in load.lines]
    assert kinds.count("c") == 2
    assert kinds.count("k") >= 18
    load.ask(clients=2)  # no longer
    before = len(load.lines)
    load.until(lambda lines: sum(line[0] == "c" for line in lines[before:]) >= 4)


def test_at_a_rate_requests_come_whether_others_are_answered_or_not(
    server: Server, load: Load
) -> None:
    load.ask(rate=200.0)
    load.until(lambda lines: under_way(lines) >= 50)
    server.may.set()
    load.until(lambda lines: answered(lines) >= 50)
    starts = [int(line[2]) for line in load.lines if line[0] == "b"]
    assert starts == sorted(starts)
    lasted_s = (starts[49] - starts[0]) / 1e9
    # 49 gaps of 5 ms on average; the schedule is that of seed 1, whatever this machine does
    assert 0.1 < lasted_s < 0.5
    load.ask(clients=1)
    load.until(lambda lines: under_way(lines) <= 1)


def test_what_nobody_is_free_to_send_fails(server: Server, load: Load) -> None:
    """More than a thousand are under way, and two thousand wait for one of them to end."""
    load.ask(rate=20_000.0)
    load.until(lambda lines: any(line[0] == "f" and line[3] == "unsent" for line in lines))
    begun = {line[1] for line in load.lines if line[0] == "b"}
    failed = {line[1] for line in load.lines if line[0] == "f" and line[3] == "unsent"}
    assert failed <= begun
    load.process.kill()
    load.process.wait()
    server.may.set()


def test_a_failure_has_its_cause(server: Server, load: Load) -> None:
    server.status = 500
    server.may.set()
    load.ask(clients=1)
    load.until(lambda lines: any(line[0] == "f" for line in lines))
    assert next(line[3] for line in load.lines if line[0] == "f") == "non_2xx"


def test_where_nobody_listens_each_request_fails_and_others_follow(load: Load) -> None:
    load.url = "http://127.0.0.1:1"
    load.ask(clients=2)
    load.until(lambda lines: sum(line[0] == "f" for line in lines) >= 5)
    assert {line[3] for line in load.lines if line[0] == "f"} == {"refused"}
    assert load.close() == 0
