"""A server's first requests: it answers as expected, what a lone request costs, all are warm.

An app may fail some of its requests, and its load shows how many. So those that fail before it are
counted, and left out of what a lone request costs; only an app that never answers as expected, or
mostly does not, is not the one that was meant.
"""

import contextlib
import html
import http.client
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from itertools import islice
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import NamedTuple

from harness.model import Finding
from harness.observe.spans import served
from harness.server.running import Faulty, Running, explained, read_proofs

LONE_TIMEOUT_S = 60.0
# Lone requests of an app whose time is known: one alone would be all noise where they are short
STEADY_MOST, STEADY_S = 5, 0.5
LONE_FEWEST, LONE_MOST, LONE_S = 3, 30, 3.0  # of any other app
LONE_ERROR = 0.05  # enough of them: the standard error of their mean, by the mean
WARMUP_S = 1.0
TRIES, PATIENCE_S = 5, 10.0  # so many failures, or so long of them, before a server is given up
MOSTLY = 2  # failures to each answer
SHOWN_LINES, SHOWN_LETTERS = 3, 300  # of the body of an answer that was not expected
MARKUP = re.compile(r"(?is)<(script|style|head)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")
NS = 1e9
FAILURES = (OSError, http.client.HTTPException)


def warm_up(server: Running) -> None:
    """The readiness request, short bursts until every worker has served one, lone requests.

    The latter of warm workers: the first request of each may connect to a database or fill a cache,
    and would make the bound several times too low.
    """
    began = time.monotonic()
    path, lone = server.launch.warmup_path, Lone(server)
    first_s = lone.ask(path)
    burst_s = WARMUP_S if path else max(WARMUP_S, 2 * first_s)
    _reach_every_worker(server, until=time.monotonic() + burst_s)
    while not enough(server.lone_s, known=server.launch.app.sleep_s is not None):
        server.lone_s.append(lone.ask())
        server.lone_begun_ns.append(lone.begun_ns)
    if lone.failed:
        counts = {"failed": lone.failed, "requests": lone.failed + lone.answered}
        server.warnings.append(Finding("note.lone_failed", counts))
    server.proofs = read_proofs(server.launch.trial, but=server.strangers)
    server.warmup_s = time.monotonic() - began


def enough(lone_s: Sequence[float], *, known: bool) -> bool:
    """Whether these lone responses, in seconds, say what one costs. `known`: the app is one of the
    lab's, which always take the same time. Of any other the standard error of the mean decides, or
    how many there were and how long they took; three that agree by chance are few, so where they
    are short there are more."""
    count, spent_s = len(lone_s), sum(lone_s)
    if known:
        return count >= STEADY_MOST or spent_s >= STEADY_S
    if count < LONE_FEWEST or (count < LONE_MOST and spent_s < STEADY_S):
        return False
    error_s = stdev(lone_s) / sqrt(count)
    return count >= LONE_MOST or spent_s >= LONE_S or error_s <= LONE_ERROR * spent_s / count


class Answer(NamedTuple):
    """`took_s`: from before connect until the last byte."""

    status: int
    body: bytes
    took_s: float


def ask(server: Running, path: str | None = None) -> Answer:
    """The answer to the app's own request (or the same to another `path`) on a connection of its
    own. Raises FAILURES where it is not whole."""
    app = server.launch.app
    body = Path(app.body_file).read_bytes() if app.body_file else None
    headers = {"Connection": "close", **dict(app.headers)}
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LONE_TIMEOUT_S)
    began = time.monotonic()
    with contextlib.closing(connection):
        connection.request(app.method, path or app.path, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
        return Answer(response.status, content, time.monotonic() - began)


class Lone:
    """Requests one after the other. `begun_ns`: of the last one that was answered as expected, by
    CLOCK_MONOTONIC."""

    def __init__(self, server: Running) -> None:
        self.answered = self.failed = self.begun_ns = 0
        self._server = server
        self._failing_s = 0.0

    def ask(self, path: str | None = None) -> float:
        """Seconds of the next one that gets the expected answer. Raises Faulty where most do not:
        of an app that never answers so, after TRIES."""
        while True:
            self.begun_ns = time.monotonic_ns()
            try:
                took_s = _expected(self._server, path)
            except Faulty:
                self.failed += 1
                self._failing_s += (time.monotonic_ns() - self.begun_ns) / NS
                if self._hopeless:
                    raise
            else:
                self.answered += 1
                return took_s

    @property
    def _hopeless(self) -> bool:
        most = self.failed > MOSTLY * self.answered
        return most and (self.failed >= TRIES or self._failing_s >= PATIENCE_S)


def _expected(server: Running, path: str | None) -> float:
    """Seconds of a lone request that got the expected answer. Raises Faulty otherwise."""
    app, log = server.launch.app, f"its log: {server.log}"
    try:
        answer = ask(server, path)
    except FAILURES as error:
        why = explained(f"no answer to a first request ({error!r})", server.log)
        raise Faulty("answer", why, log) from error
    if answer.status != app.expect_status:
        raise Faulty("answer", _unexpected(server, answer), log)
    return answer.took_s


def _unexpected(server: Running, answer: Answer) -> str:
    """Why a server that answers is not the one that was meant, with what the app says itself."""
    app = server.launch.app
    why = f"{app.method} {app.path} answered {answer.status}, expected {app.expect_status}"
    if lines := first_lines(answer.body):
        why += f": {lines}"
    why += " (say --expect-status if that is right"
    if answer.status == HTTPStatus.BAD_REQUEST:
        host = {name.lower(): value for name, value in app.headers}.get("host", server.host)
        why += (
            f"; if the app rejects the Host header {host}, allow it there (Django: ALLOWED_HOSTS)"
            " or send another: --header 'Host: NAME'"
        )
    return f"{why})"


def first_lines(body: bytes) -> str:
    """What a person would read first in a page or a text, on one line; "" for none."""
    words = html.unescape(MARKUP.sub("\n", body[:20_000].decode(errors="replace")))
    lines = filter(None, (" ".join(line.split()) for line in words.splitlines()))
    return " / ".join(islice(lines, SHOWN_LINES))[:SHOWN_LETTERS]


def _reach_every_worker(server: Running, until: float) -> None:
    """Bursts of requests; which worker takes which is the kernel's choice, so look who served."""
    launch = server.launch
    at_once = min(32, 2 * launch.server.workers)

    def one(_: int) -> None:
        with contextlib.suppress(*FAILURES):  # an overloaded server may refuse; the load shows it
            ask(server, launch.warmup_path)

    pool = ThreadPoolExecutor(at_once)
    try:
        while len(reached := served(launch.trial) - server.strangers) < launch.server.workers:
            if time.monotonic() > until:
                left = {"workers": launch.server.workers - len(reached)}
                server.warnings.append(Finding("note.not_warmed_up", left))
                return
            list(pool.map(one, range(at_once)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interrupt must not wait for answers
