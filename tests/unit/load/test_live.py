"""The load that can be changed while it runs: it follows commands and reports events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.builders import http
from tests.builders.processes import started
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
    """A running load. `events`: all so far, each as a list of its fields."""

    def __init__(self, directory: Path, process: subprocess.Popen[str], url: str) -> None:
        self.url, self.process = url, process
        commands, events = directory / "commands", directory / "events"
        os.mkfifo(commands)
        os.mkfifo(events)
        self._commands = os.open(commands, os.O_RDWR)
        self._pipe = os.open(events, os.O_RDONLY | os.O_NONBLOCK)
        self._unread, self.events = b"", list[list[str]]()

    def command(self, path: str = "/", *, keepalive: bool = False, **options: Any) -> None:
        message = {"url": f"{self.url}{path}", "keepalive": keepalive, "seed": 1, **options}
        os.write(self._commands, json.dumps(message).encode() + b"\n")

    def _read_events(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 20):
                *lines, self._unread = (self._unread + data).split(b"\n")
                self.events += [line.decode().split() for line in lines]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        self._read_events()
        while not condition():
            assert time.monotonic() < deadline_s, self.events[-20:]
            assert self.process.poll() is None
            time.sleep(0.01)
            self._read_events()

    def close(self) -> int:
        os.close(self._commands)
        code = self.process.wait(TIMEOUT_S)
        os.close(self._pipe)
        return code

    @property
    def kinds(self) -> list[str]:
        return [event[0] for event in self.events]

    @property
    def causes(self) -> list[str]:
        """The causes of the failures."""
        return [event[3] for event in self.events if event[0] == "f"]

    def count(self, kind: str) -> int:
        return self.kinds.count(kind)

    def in_flight(self) -> int:
        return self.count("b") - self.count("e") - self.count("f")


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
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    pipes = (f"{tmp_path}/commands", f"{tmp_path}/events")
    with started([sys.executable, "-I", "-S", GENERATORS, "live", *pipes]) as process:
        yield process


@pytest.fixture
def load(server: Site, process: subprocess.Popen[str], tmp_path: Path) -> Load:
    return Load(tmp_path, process, f"http://127.0.0.1:{server.port}")


def test_the_program_waits_for_its_pipes(process: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    os.mkfifo(tmp_path / "commands")
    os.mkfifo(tmp_path / "events")
    events = os.open(tmp_path / "events", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "commands").write_bytes(b"")  # once the program reads
    assert process.wait(TIMEOUT_S) == 0
    os.close(events)


def test_the_number_of_clients_changes(server: Site, load: Load) -> None:
    load.command("/?sleep=1", clients=3)
    load.wait_until(lambda: load.count("c") == 3)
    load.wait_until(lambda: len(server.paths) == 3)  # the server reads requests only later
    assert load.in_flight() == 3  # none has been answered yet
    load.command(clients=5)
    load.wait_until(lambda: load.in_flight() == 5)
    load.command(clients=2)
    server.may_respond.set()
    load.wait_until(lambda: load.count("e") >= 20)
    last_kinds = [kind for kind in load.kinds if kind in "be"][-20:]
    assert load.in_flight() <= 2
    assert last_kinds.count("b") >= 8
    assert load.close() == 0
    assert all(path.startswith("/?sleep=1 ") for path in server.paths[:3])
    assert all(path.startswith("/ ") for path in server.paths[3:])
    numbers = sorted(int(path.split()[1]) for path in server.paths)
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_events_of_a_request_are_in_order(server: Site, load: Load) -> None:
    server.may_respond.set()
    load.command(clients=1)
    load.wait_until(lambda: load.count("e") >= 3)
    load.close()
    for number in ("1", "2", "3"):
        moments = [(kind, int(at)) for kind, request, at in load.events
                   if kind != "o" and request == number]  # fmt: skip
        assert [kind for kind, _ in moments] == ["b", "c", "e"]
        assert sorted(at for _, at in moments) == [at for _, at in moments]
    assert {event[1] for event in load.events if event[0] == "o"} <= {"0", "1"}


def test_connections_may_be_kept(server: Site, load: Load) -> None:
    server.may_respond.set()
    load.command(clients=2, keepalive=True)
    load.wait_until(lambda: load.count("e") >= 20)
    assert load.count("c") == 2
    assert load.count("k") >= 18
    load.command(clients=2)  # without keepalive
    load.wait_until(lambda: load.count("c") >= 2 + 4)


def test_at_a_rate_requests_do_not_wait_for_responses(server: Site, load: Load) -> None:
    load.command(rate=200.0)
    load.wait_until(lambda: load.in_flight() >= 50)
    server.may_respond.set()
    load.wait_until(lambda: load.count("e") >= 50)
    starts = [int(event[2]) for event in load.events if event[0] == "b"]
    assert starts == sorted(starts)
    # 49 gaps of 5 ms on average; seed 1 determines the schedule, however busy the machine is
    assert 0.1 < (starts[49] - starts[0]) / 1e9 < 0.5
    load.command(clients=1)
    load.wait_until(lambda: load.in_flight() <= 1)


def test_requests_that_cannot_be_queued_fail(load: Load) -> None:
    """A thousand requests are in flight, and two thousand are queued."""
    load.command(rate=20_000.0)
    load.wait_until(lambda: "unsent" in load.causes)
    begun = {event[1] for event in load.events if event[0] == "b"}
    unsent = {event[1] for event in load.events if event[0] == "f" and event[3] == "unsent"}
    assert unsent <= begun


def test_a_failure_has_its_cause(server: Site, load: Load) -> None:
    server.status = 500
    server.may_respond.set()
    load.command(clients=1)
    load.wait_until(lambda: load.count("f") > 0)
    assert load.causes[0] == "non_2xx"


def test_refused_requests_fail_and_others_follow(load: Load) -> None:
    load.url = "http://127.0.0.1:1"
    load.command(clients=2)
    load.wait_until(lambda: load.count("f") >= 5)
    assert set(load.causes) == {"refused"}
    assert load.close() == 0
