"""Lone requests of an app that fails some of them, all of them, or answers otherwise."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import pytest

from tests.builders.launch import launch
from workerlab.model import App, Server
from workerlab.server.running import Running, TrialFailed, explained
from workerlab.server.warmup import TRIES, Lone, routes_of

RESET = 0


class Process:
    """Stands for the arbiter, which runs."""

    running = True


@contextmanager
def serving(trial: Path, statuses: Iterator[int]) -> Iterator[Running]:
    """A server that answers with these, one after the other; RESET: with none."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not (status := next(statuses)):
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"text")

        def log_message(self, *_: Any) -> None:
            pass

    process: Any = Process()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Running(
                launch=launch(trial, Server("sync", 1, 1, 64, 10), App("own:app", "")),
                process=process,
                host="127.0.0.1",
                port=server.server_port,
                backlog=64,
                log=trial / "server.log",
            )
        finally:
            server.shutdown()
            thread.join()


def sometimes(wrong: int, share: float) -> Iterator[int]:
    chance = random.Random(7)
    return (wrong if chance.random() < share else 200 for _ in repeat(None))


@pytest.mark.parametrize("wrong", [500, 404, RESET])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_an_app_that_fails_some_is_measured(tmp_path: Path, wrong: int, share: float) -> None:
    with serving(tmp_path, sometimes(wrong, share)) as server:
        lone = Lone(server, *routes_of(server.launch.app))
        for _ in range(60):
            assert lone.ask() > 0
    assert lone.answered == 60
    assert 0 < lone.failed < lone.answered


def test_the_first_answer_may_be_wrong(tmp_path: Path) -> None:
    with serving(tmp_path, cycle([500, 200, 200, 200])) as server:
        lone = Lone(server, *routes_of(server.launch.app))
        lone.ask()
        assert (lone.answered, lone.failed) == (1, 1)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "GET / answered 404, expected 200: text (use --expect-status if that is right)"),
        (500, "GET / answered 500, expected 200: text (use --expect-status if that is right)"),
        (RESET, "no answer to a first request ("),
    ],
)
def test_an_app_that_always_fails_is_refused(tmp_path: Path, status: int, words: str) -> None:
    asked = 0

    def always() -> Iterator[int]:
        nonlocal asked
        while True:
            asked += 1
            yield status

    with serving(tmp_path, always()) as server, pytest.raises(TrialFailed) as found:
        Lone(server, *routes_of(server.launch.app)).ask()
    assert asked == TRIES
    assert found.value.fault.kind == "answer"
    assert found.value.fault.reason.startswith(words)
    assert found.value.fault.detail == f"its log: {tmp_path / 'server.log'}"


def test_an_app_that_mostly_fails_is_refused(tmp_path: Path) -> None:
    """After it has answered once: a limit of requests, a cache that is gone."""
    with serving(tmp_path, cycle([200, 500, 500, 500])) as server:
        lone = Lone(server, *routes_of(server.launch.app))
        with pytest.raises(TrialFailed):
            all(lone.ask() for _ in range(60))


INFO = "[2026-11-22 16:13:15 +0000] [20334] [INFO] Booting worker with pid: 20334\n"


@pytest.mark.parametrize(
    ("log", "quoted"),
    [
        ("", ""),
        (INFO, ""),
        (f"{INFO}hello from the app\n", ""),
        (INFO.replace("INFO", "DEBUG"), ""),
        (f"{INFO}{INFO.replace('INFO', 'WARNING')}{INFO}", ": Booting worker with pid: 20334"),
        (f"[x] [1] [ERROR] no memory\n[x] [1] [WARNING] late\n{INFO}", ": no memory"),
        (f"Traceback (most recent call last):\nOSError: reset\n{INFO}", ": OSError: reset"),
    ],
)
def test_of_a_log_only_what_explains_is_quoted(tmp_path: Path, log: str, quoted: str) -> None:
    (tmp_path / "server.log").write_text(log)
    assert explained("it ended", tmp_path / "server.log") == f"it ended{quoted}"


def test_a_log_that_is_not_there_explains_nothing(tmp_path: Path) -> None:
    assert explained("it ended", tmp_path / "server.log") == "it ended"
