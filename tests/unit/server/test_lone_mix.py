"""Lone requests of a mix: every route is asked, and those that never answer well are told."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.launch import launch
from workerlab.model import App, Record, Route, Server
from workerlab.observe.pauses import PauseWatch
from workerlab.server.running import Running, TrialFailed
from workerlab.server.warmup import (
    MAX_PAUSE_RETRIES,
    MIN_LONE,
    Lone,
    answering,
    ask_alone,
    routes_of,
)

MIX = (
    Route("/", weight=6),
    Route("/post/1", weight=1, name="posts"),
    Route("/post/2", weight=2, name="posts"),
    Route("/missing", "HEAD", 1, expect=(404, 410)),
)


class Process:
    """Stands for the arbiter, which runs."""

    running = True


@contextmanager
def serving(trial: Path, mix: tuple[Route, ...], seen: Counter[str]) -> Iterator[Running]:
    """A server that answers 404 for /missing, 500 for /broken, 302 for /moved, else 200."""
    statuses = {"/missing": 404, "/broken": 500, "/moved": 302}

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            seen[f"{self.command} {self.path}"] += 1
            text = b"<h1>KeyError</h1> 'cart'"
            self.send_response(statuses.get(self.path, 200))
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_HEAD = answer

        def log_message(self, *_: Any) -> None:
            pass

    process: Any = Process()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Running(
                launch=launch(trial, Server("sync", 1, 1, 64, 10), App("own:app", "", mix=mix)),
                process=process,
                host="127.0.0.1",
                port=server.server_port,
                backlog=64,
                log=trial / "server.log",
            )
        finally:
            server.shutdown()
            thread.join()


def lones(server: Running) -> list[Lone]:
    return [Lone(server, route) for route in routes_of(server.launch.app)]


def test_of_each_route_the_most_frequent_request_is_asked_with_the_weight_of_all() -> None:
    first, posts, missing = routes_of(App(mix=MIX))
    assert (first.path, posts.path, missing.path) == ("/", "/post/2", "/missing")
    assert [first.weight, posts.weight, missing.weight] == pytest.approx([0.6, 0.3, 0.1])
    own = App(path="/a", method="POST", headers=(("A", "b"),), expect_status=302)
    (alone,) = routes_of(own)
    assert alone == Route("/a", "POST", 1.0, (("A", "b"),), None, (302,))


def test_lone_requests_go_round_the_routes(tmp_path: Path) -> None:
    seen = Counter[str]()
    with serving(tmp_path, MIX, seen) as server:
        ask_alone(server, lones(server))
        weights, lone_s, begun_ns = server.lone_weights, server.lone_s, server.lone_begun_ns
    assert weights == pytest.approx((0.6, 0.3, 0.1))
    assert len(lone_s) == len(begun_ns) == sum(seen.values())
    assert set(seen.values()) == {len(lone_s) // 3}
    assert len(lone_s) // 3 >= MIN_LONE
    assert begun_ns == sorted(begun_ns)


def test_a_lone_request_in_which_the_machine_stood_still_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def stood_still(_: PauseWatch, since_ns: int) -> bool:
        asked.append(since_ns)
        return len(asked) in (1, 2, 4)

    monkeypatch.setattr(PauseWatch, "stood_still", stood_still)
    with serving(tmp_path, (), Counter()) as server:
        ask_alone(server, lones(server))
    assert server.lone_begun_ns == [asked[2], *asked[4:]]


def test_where_it_always_stands_still_the_last_ones_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PauseWatch, "stood_still", lambda *_: True)
    seen = Counter[str]()
    with serving(tmp_path, MIX, seen) as server:
        ask_alone(server, lones(server))
    assert sum(seen.values()) == len(server.lone_s) * (1 + MAX_PAUSE_RETRIES)


def test_routes_that_never_answer_as_expected_are_told_together(tmp_path: Path) -> None:
    mix = (*MIX, Route("/broken"), Route("/missing", name="lost"), Route("/moved"))
    with serving(tmp_path, mix, Counter()) as server, pytest.raises(TrialFailed) as found:
        answering(lones(server), None)
    fault = found.value.fault
    assert fault.kind == "answer"
    assert fault.reason == (
        "GET /broken answered 500, expected 2xx or 3xx: KeyError / 'cart'"
        " (use expect=500 in a --mix file if that is right);"
        " lost (GET /missing) answered 404, expected 2xx or 3xx: KeyError / 'cart'"
        " (use expect=404 in a --mix file if that is right)"
    )


def test_what_a_lone_request_of_a_mix_costs_is_the_mean_by_weight_of_each_round() -> None:
    plain = Record("one", None, lone_s=(1.0, 2.0, 3.0, 2.0))
    assert plain.alone_s == plain.lone_s
    mixed = replace(plain, lone_weights=(0.75, 0.25))
    assert mixed.alone_s == pytest.approx((1.25, 2.75))
    assert Record("none", None, lone_weights=(0.75, 0.25)).alone_s == ()
