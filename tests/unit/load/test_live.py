"""The load that can be changed while it runs: it follows commands and reports events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.builders import http
from workerlab.load.programs import GENERATORS

TIMEOUT_S = 60.0  # only a hang takes as long


@dataclass
class Site:
    """A server that responds once `may_respond` is set, and what it received."""

    port: int = 0
    may_respond: threading.Event = field(default_factory=threading.Event)
    paths: list[str] = field(default_factory=list)
    status: int = 200


class Load:
    def __init__(self, directory: Path, url: str) -> None:
        self.url = url
        commands, events = directory / "commands", directory / "events"
        for path in (commands, events):
            os.mkfifo(path)
        self._commands = os.open(commands, os.O_RDWR)
        self._events = os.open(events, os.O_RDONLY | os.O_NONBLOCK)
        argv = [sys.executable, "-I", "-S", GENERATORS, "live", str(commands), str(events)]
        self.process = subprocess.Popen(argv)
        self._unread, self.lines = b"", list[list[str]]()

    def command(self, path: str = "/", *, keepalive: bool = False, **options: Any) -> None:
        message = {"url": f"{self.url}{path}", "keepalive": keepalive, "seed": 1, **options}
        os.write(self._commands, json.dumps(message).encode() + b"\n")

    def read_events(self) -> list[list[str]]:
        """All events so far, each as a list of its fields."""
        try:
            while data := os.read(self._events, 1 << 20):
                *lines, self._unread = (self._unread + data).split(b"\n")
                self.lines += [line.decode().split() for line in lines]
        except BlockingIOError:
            pass
        return self.lines

    def wait_until(self, condition: Callable[[list[list[str]]], bool]) -> list[list[str]]:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition(self.read_events()):
            assert time.monotonic() < deadline_s, self.lines[-20:]
            assert self.process.poll() is None
            time.sleep(0.01)
        return self.lines

    def close(self) -> int:
        os.close(self._commands)
        code = self.process.wait(TIMEOUT_S)
        os.close(self._events)
        return code


@pytest.fixture
def server() -> Iterator[Site]:
    site = Site()

    class Answering(http.Handler):
        def answer(self) -> None:
            site.paths.append(f"{self.path} {self.headers['X-Workerlab-Request']}")
            site.may_respond.wait(TIMEOUT_S)
            time.sleep(0.002)  # otherwise its clients would use a whole core
            self.respond(site.status, b"ok")

    with http.serving(Answering) as running:
        site.port = running.server_port
        yield site
        site.may_respond.set()


@pytest.fixture
def load(server: Site, tmp_path: Path) -> Iterator[Load]:
    live_load = Load(tmp_path, f"http://127.0.0.1:{server.port}")
    yield live_load
    if live_load.process.poll() is None:
        live_load.process.kill()
        live_load.process.wait()


def in_flight(lines: list[list[str]]) -> int:
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
    events_fd = os.open(events, os.O_RDONLY | os.O_NONBLOCK)
    commands.write_bytes(b"")
    assert process.wait(TIMEOUT_S) == 0
    os.close(events_fd)


def test_the_number_of_clients_changes(server: Site, load: Load) -> None:
    load.command("/?sleep=1", clients=3)
    load.wait_until(lambda lines: sum(line[0] == "c" for line in lines) == 3)
    load.wait_until(lambda _: len(server.paths) == 3)  # the server reads requests only later
    assert in_flight(load.lines) == 3  # none has been answered yet
    load.command(clients=5)
    load.wait_until(lambda lines: in_flight(lines) == 5)
    load.command(clients=2)
    server.may_respond.set()
    load.wait_until(lambda lines: answered(lines) >= 20)
    last_kinds = [line[0] for line in load.lines if line[0] in "be"][-20:]
    assert in_flight(load.lines) <= 2
    assert last_kinds.count("b") >= 8
    assert load.close() == 0
    assert all(path.startswith("/?sleep=1 ") for path in server.paths[:3])
    assert all(path.startswith("/ ") for path in server.paths[3:])
    numbers = sorted(int(path.split()[1]) for path in server.paths)
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_events_of_a_request_are_in_order(server: Site, load: Load) -> None:
    server.may_respond.set()
    load.command(clients=1)
    load.wait_until(lambda lines: answered(lines) >= 3)
    load.close()
    for number in ("1", "2", "3"):
        moments = [(kind, int(at)) for kind, of, at in load.lines if kind != "o" and of == number]
        assert [kind for kind, _ in moments] == ["b", "c", "e"]
        assert sorted(at for _, at in moments) == [at for _, at in moments]
    assert {line[1] for line in load.lines if line[0] == "o"} <= {"0", "1"}


def test_connections_may_be_kept(server: Site, load: Load) -> None:
    server.may_respond.set()
    load.command(clients=2, keepalive=True)
    load.wait_until(lambda lines: answered(lines) >= 20)
    kinds = [line[0] for line in load.lines]
    assert kinds.count("c") == 2
    assert kinds.count("k") >= 18
    load.command(clients=2)  # without keepalive
    before = len(load.lines)
    load.wait_until(lambda lines: sum(line[0] == "c" for line in lines[before:]) >= 4)


def test_at_a_rate_requests_do_not_wait_for_responses(server: Site, load: Load) -> None:
    load.command(rate=200.0)
    load.wait_until(lambda lines: in_flight(lines) >= 50)
    server.may_respond.set()
    load.wait_until(lambda lines: answered(lines) >= 50)
    starts = [int(line[2]) for line in load.lines if line[0] == "b"]
    assert starts == sorted(starts)
    lasted_s = (starts[49] - starts[0]) / 1e9
    # 49 gaps of 5 ms on average; the schedule is that of seed 1, whatever this machine does
    assert 0.1 < lasted_s < 0.5
    load.command(clients=1)
    load.wait_until(lambda lines: in_flight(lines) <= 1)


def test_requests_that_cannot_be_queued_fail(server: Site, load: Load) -> None:
    """A thousand requests are in flight, and two thousand are queued."""
    load.command(rate=20_000.0)
    load.wait_until(lambda lines: any(line[0] == "f" and line[3] == "unsent" for line in lines))
    begun = {line[1] for line in load.lines if line[0] == "b"}
    failed = {line[1] for line in load.lines if line[0] == "f" and line[3] == "unsent"}
    assert failed <= begun
    load.process.kill()
    load.process.wait()
    server.may_respond.set()


def test_a_failure_has_its_cause(server: Site, load: Load) -> None:
    server.status = 500
    server.may_respond.set()
    load.command(clients=1)
    load.wait_until(lambda lines: any(line[0] == "f" for line in lines))
    assert next(line[3] for line in load.lines if line[0] == "f") == "non_2xx"


def test_refused_requests_fail_and_others_follow(load: Load) -> None:
    load.url = "http://127.0.0.1:1"
    load.command(clients=2)
    load.wait_until(lambda lines: sum(line[0] == "f" for line in lines) >= 5)
    assert {line[3] for line in load.lines if line[0] == "f"} == {"refused"}
    assert load.close() == 0
