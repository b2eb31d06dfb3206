"""Lone requests: their number, apps that fail some or all of them, and mixes of routes."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from itertools import cycle, repeat
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import http
from tests.builders.launch import launch
from workerlab.model.evidence import Record
from workerlab.model.plan import App, Route, Server
from workerlab.observe.pauses import PauseWatch
from workerlab.server import warmup
from workerlab.server.running import Running, TrialFailed
from workerlab.server.warmup import (
    MAX_FAILURES,
    MAX_LONE,
    MAX_LONE_ERROR,
    MAX_PAUSE_RETRIES,
    MAX_TOTAL_LONE_S,
    MIN_LONE,
    LoneSender,
    are_sufficient,
    first_responses_s,
    routes_of,
    send_lone_requests,
)

RESET = 0
LOGIN = "http://shop/login?to=/"


@contextmanager
def serving(
    trial: Path,
    status_of: Callable[[str, str], int],
    text: bytes = b"text",
    mix: tuple[Route, ...] = (),
) -> Iterator[Running]:
    """A server that responds with `text` and the status for method and path; RESET: it does not
    respond."""

    class RespondWithStatus(http.Handler):
        def answer(self) -> None:
            if status := status_of(self.command, self.path):
                headers = {"Location": LOGIN} if status == HTTPStatus.FOUND else {}
                self.respond(status, text, **headers)
            else:
                self.reset()

    process: Any = SimpleNamespace(running=True)
    with http.serving(RespondWithStatus) as server:
        yield Running(
            launch=launch(trial, Server("sync", 1, 1, 64, 10), App("own:app", "", mix=mix)),
            process=process,
            host="127.0.0.1",
            port=server.server_port,
            backlog=64,
            log=trial / "server.log",
        )


def in_turn(*statuses: int) -> Callable[[str, str], int]:
    next_status = cycle(statuses).__next__
    return lambda *_: next_status()


def senders(server: Running) -> list[LoneSender]:
    return [LoneSender(server, route) for route in routes_of(server.launch.app)]


@pytest.mark.parametrize("failure", [500, 404, RESET])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_an_app_that_fails_sometimes_is_measured(
    tmp_path: Path, failure: int, share: float
) -> None:
    generator = random.Random(7)
    with serving(tmp_path, lambda *_: failure if generator.random() < share else 200) as server:
        (sender,) = senders(server)
        for _ in range(60):
            assert sender.time_request() > 0
    assert sender.succeeded == 60
    assert 0 < sender.failed < sender.succeeded


def test_the_first_response_may_be_a_failure(tmp_path: Path) -> None:
    with serving(tmp_path, in_turn(500, 200, 200, 200)) as server:
        (sender,) = senders(server)
        sender.time_request()
        assert (sender.succeeded, sender.failed) == (1, 1)


@pytest.mark.parametrize(
    ("status", "log", "sentence"),
    [
        (404, "OSError: reset",
         "GET / returned 404, expected 200: text (use --expect-status 404 if that is intended)"),
        (500, "[x] [ERROR] no memory",
         "GET / returned 500, expected 200: no memory (use --expect-status 500 if that is"
         " intended)"),
        (500, "Traceback (most recent call last):\nZeroDivisionError: division by zero",
         "GET / returned 500, expected 200: ZeroDivisionError: division by zero"),
        (302, "",
         f"GET / returned 302, expected 200, with Location: {LOGIN} (use --expect-status 302"
         " if that is intended, or --path '/login?to=/' to measure that page)"),
        (RESET, "", "no response to a first request ("),
    ],
)  # fmt: skip
def test_an_app_that_always_fails_is_refused(
    tmp_path: Path, status: int, log: str, sentence: str
) -> None:
    (tmp_path / "server.log").write_text(f"{log}\n")
    requests = list[str]()

    def status_of(_method: str, path: str) -> int:
        requests.append(path)
        return status

    with serving(tmp_path, status_of) as server, pytest.raises(TrialFailed) as failure:
        senders(server)[0].time_request()
    fault = failure.value.fault
    assert len(requests) == MAX_FAILURES
    assert (fault.kind, fault.detail) == ("answer", f"its log: {tmp_path / 'server.log'}")
    assert fault.reason.startswith(sentence)
    assert ("if that is intended" in fault.reason) == ("if that is intended" in sentence)


def test_an_app_that_never_responds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "LONE_TIMEOUT_S", 0.6)

    def respond_late(*_: str) -> int:
        time.sleep(1)
        return 200

    with serving(tmp_path, respond_late) as server, pytest.raises(TrialFailed) as failure:
        senders(server)[0].time_request()
    assert failure.value.fault.reason == "no response to a first request within 1 s"


def test_an_app_that_mostly_fails_is_refused(tmp_path: Path) -> None:
    """After one success, as with a rate limit or a lost cache."""
    with serving(tmp_path, in_turn(200, 500, 500, 500)) as server:
        (sender,) = senders(server)
        with pytest.raises(TrialFailed):
            all(sender.time_request() for _ in range(60))


# --- of a mix ----------------------------------------------------------------------------------

MIX = (
    Route("/", weight=6),
    Route("/post/1", weight=1, name="posts"),
    Route("/post/2", weight=2, name="posts"),
    Route("/missing", "HEAD", 1, expect=(404, 410)),
)


def serving_mix(
    trial: Path, mix: tuple[Route, ...], requests: Counter[str]
) -> AbstractContextManager[Running]:
    """A server that responds with 404 to /missing, 500 to /broken, 302 to /moved, else 200."""
    statuses = {"/missing": 404, "/broken": 500, "/moved": 302}

    def status_of(method: str, path: str) -> int:
        requests[f"{method} {path}"] += 1
        return statuses.get(path, 200)

    return serving(trial, status_of, b"<h1>KeyError</h1> 'cart'", mix)


def test_a_route_is_its_most_frequent_request_with_the_weight_of_all() -> None:
    first, posts, missing = routes_of(App(mix=MIX))
    assert (first.path, posts.path, missing.path) == ("/", "/post/2", "/missing")
    assert [first.weight, posts.weight, missing.weight] == pytest.approx([0.6, 0.3, 0.1])
    app = App(path="/a", method="POST", headers=(("A", "b"),), expect_status=302)
    assert routes_of(app) == (Route("/a", "POST", 1.0, (("A", "b"),), None, (302,)),)


def test_lone_requests_go_round_the_routes(tmp_path: Path) -> None:
    requests = Counter[str]()
    with serving_mix(tmp_path, MIX, requests) as server:
        send_lone_requests(server, senders(server))
    rounds = len(server.lone_s) // 3
    assert server.lone_weights == pytest.approx((0.6, 0.3, 0.1))
    assert len(server.lone_s) == len(server.lone_begun_ns) == sum(requests.values())
    assert set(requests.values()) == {rounds}
    assert rounds >= MIN_LONE
    assert server.lone_begun_ns == sorted(server.lone_begun_ns)


def test_a_lone_request_during_a_pause_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts_ns = list[int]()

    def paused(_: PauseWatch, since_ns: int) -> bool:
        starts_ns.append(since_ns)
        return len(starts_ns) in (1, 2, 4)

    monkeypatch.setattr(PauseWatch, "paused_since", paused)
    with serving(tmp_path, lambda *_: 200) as server:
        send_lone_requests(server, senders(server))
    assert server.lone_begun_ns == [starts_ns[2], *starts_ns[4:]]


def test_constant_pauses_do_not_repeat_requests_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PauseWatch, "paused_since", lambda *_: True)
    requests = Counter[str]()
    with serving_mix(tmp_path, MIX, requests) as server:
        send_lone_requests(server, senders(server))
    assert sum(requests.values()) == len(server.lone_s) * (1 + MAX_PAUSE_RETRIES)


def test_routes_that_never_respond_as_expected_are_reported_together(tmp_path: Path) -> None:
    mix = (*MIX, Route("/broken"), Route("/missing", name="lost"), Route("/moved"))
    with serving_mix(tmp_path, mix, Counter()) as server, pytest.raises(TrialFailed) as failure:
        first_responses_s(senders(server), None)
    fault = failure.value.fault
    assert fault.kind == "answer"
    assert fault.reason == (
        "GET /broken returned 500, expected 2xx or 3xx: KeyError / 'cart'"
        " (use expect=500 in a --mix file if that is intended);"
        " lost (GET /missing) returned 404, expected 2xx or 3xx: KeyError / 'cart'"
        " (use expect=404 in a --mix file if that is intended)"
    )


def test_lone_times_of_a_mix_are_weighted_means_of_each_round() -> None:
    single = Record("one", None, lone_s=(1.0, 2.0, 3.0, 2.0))
    assert single.alone_s == single.lone_s
    assert replace(single, lone_weights=(0.75, 0.25)).alone_s == pytest.approx((1.25, 2.75))
    assert Record("none", None, lone_weights=(0.75, 0.25)).alone_s == ()


# --- number ------------------------------------------------------------------------------------


def lone_times(next_s: Callable[[], float], *, bundled: bool = False) -> list[float]:
    lone_s: list[float] = []
    while not are_sufficient(lone_s, bundled=bundled):
        lone_s.append(next_s())
    return lone_s


@pytest.mark.parametrize(
    ("bundled", "seconds", "count"),
    [
        (True, 1.0, 1), (True, 0.5, 1), (True, 0.2, 3), (True, 0.001, 5),
        (False, 20.0, MIN_LONE), (False, 1.0, MIN_LONE), (False, 0.125, 4),
        (False, 0.001, MAX_LONE),
    ],
)  # fmt: skip
def test_equal_lone_times_end_after_half_a_second_within_limits_of_their_number(
    bundled: bool, seconds: float, count: int
) -> None:
    assert len(lone_times(repeat(seconds).__next__, bundled=bundled)) == count


@pytest.mark.parametrize("mean_s", [0.005, 0.05, 0.5, 5.0])
@pytest.mark.parametrize("seed", range(20))
def test_requests_are_repeated_until_their_mean_is_precise_or_time_is_up(
    mean_s: float, seed: int
) -> None:
    generator = random.Random(seed)
    lone_s = lone_times(lambda: generator.expovariate(1 / mean_s))
    error = stdev(lone_s) / len(lone_s) ** 0.5 / fmean(lone_s)
    assert len(lone_s) == MAX_LONE or sum(lone_s) >= MAX_TOTAL_LONE_S or error <= MAX_LONE_ERROR
    assert MIN_LONE <= len(lone_s) <= MAX_LONE
    assert len(lone_s) == MIN_LONE or sum(lone_s[:-1]) < MAX_TOTAL_LONE_S
