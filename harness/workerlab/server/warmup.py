"""A server's first requests: check that it answers, warm up all workers, and time lone requests.

An app may fail some requests, and the load measures how many. So failures before the load are
counted, but not used as lone responses. Only an app that never answers as expected, or mostly does
not, is rejected. The same applies to each route of a mix.
"""

import contextlib
import http.client
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from itertools import cycle, islice
from math import fsum, sqrt
from pathlib import Path
from statistics import stdev
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from msgspec.structs import replace

from workerlab.finding import Finding, stored
from workerlab.model.evidence import Fault
from workerlab.model.plan import App, Route
from workerlab.numbers.units import first_lines
from workerlab.observe.pauses import PauseWatch
from workerlab.observe.spans import served
from workerlab.server.running import (
    Running,
    StartupTurn,
    TrialFailed,
    explained,
    last_exception,
    log_lines,
    read_proofs,
)

LONE_TIMEOUT_S = 60.0
# Lone requests of a bundled app: their times vary little, but short ones are noisy
MAX_STEADY, STEADY_S = 5, 0.5
MIN_LONE, MAX_LONE, LONE_S = 3, 30, 3.0  # of any other app
LONE_ERROR = 0.05  # sufficient: the standard error of their mean, relative to the mean
WARMUP_S = 1.0
MAX_PAUSE_RETRIES = 5  # of a lone request during which the machine was paused
TRIES, PATIENCE_S = 5, 10.0  # failures, or seconds of failures, before giving up
SHOWN_ROUTES = 3  # of a mix, in the message about those that fail
MAX_FAILURES_PER_ANSWER = 2
NS = 1e9
FAILURES = (OSError, http.client.HTTPException)


class LoneRequestsFailed(Finding):
    """{failed} of {requests:# lone request} before the load failed: no figure includes them"""

    failed: int
    requests: int


class WorkersNotWarmedUp(Finding):
    """warm-up did not reach {workers:# worker}"""

    workers: int


def warm_up(server: Running, turn: StartupTurn) -> None:
    """Send the readiness request, bursts until every worker has served a request, and then lone
    requests, while no other server starts.

    Lone requests need warm workers: the first request of each may connect to a database or fill a
    cache, and would make the bound several times too low.
    """
    began = time.monotonic()
    launch = server.launch
    lones = [Lone(server, route) for route in routes_of(launch.app)]
    first_s = max(first_answers_s(lones, launch.warmup_path))
    burst_s = WARMUP_S if launch.warmup_path else max(WARMUP_S, 2 * first_s)
    _reach_every_worker(server, [lone.route for lone in lones], time.monotonic() + burst_s)
    waited_s = turn.wait_to_measure()
    ask_alone(server, lones)
    if failed := sum(lone.failed for lone in lones):
        requests = failed + sum(lone.answered for lone in lones)
        server.warnings.append(stored(LoneRequestsFailed(failed, requests)))
    server.proofs = read_proofs(launch.trial, excluded=server.earlier_pids)
    server.warmup_s = time.monotonic() - began - waited_s


def routes_of(app: App) -> tuple[Route, ...]:
    """The app's request, or the most frequent one of each route of a mix; weights sum to 1."""
    if not app.mix:
        own = Route(app.path, app.method, 1.0, app.headers, app.body_file, (app.expect_status,))
        return (own,)
    by_label: dict[str, list[Route]] = {}
    for route in app.mix:
        by_label.setdefault(route.label, []).append(route)
    total = fsum(route.weight for route in app.mix)
    return tuple(
        replace(
            max(routes, key=lambda route: route.weight),
            weight=fsum(route.weight for route in routes) / total,
        )
        for routes in by_label.values()
    )


def first_answers_s(lones: Sequence["Lone"], path: str | None) -> list[float]:
    """Seconds of a first request to each route. Raises TrialFailed, with the reasons of the first
    few, if some never answer as expected."""
    times_s, faults = list[float](), list[Fault]()
    for lone in lones:
        try:
            times_s.append(lone.ask(path))
        except TrialFailed as error:
            faults.append(error.fault)
            if len(faults) == SHOWN_ROUTES:
                break
    if faults:
        why = "; ".join(fault.reason for fault in faults)
        raise TrialFailed(faults[0].kind, why, faults[0].detail)
    return times_s


def ask_alone(server: Running, lones: Sequence["Lone"]) -> None:
    """Send lone requests, one per route and round: 30 random ones would miss rare, slow routes.
    Their weighted mean is the cost of a request."""
    bundled = server.launch.app.sleep_s is not None
    if server.launch.app.mix:
        server.lone_weights = tuple(lone.route.weight for lone in lones)
    rounds_s, spent_s = list[float](), 0.0
    with PauseWatch() as watch:
        while not enough(rounds_s, bundled=bundled):
            for lone in lones:
                server.lone_s.append(_without_pause(lone, watch))
                server.lone_begun_ns.append(lone.begun_ns)
            last_s = server.lone_s[-len(lones) :]
            spent_s += sum(last_s)
            weighted_s = (lone.route.weight * s for lone, s in zip(lones, last_s, strict=True))
            rounds_s.append(fsum(weighted_s))
            if len(lones) > 1 and spent_s >= LONE_S:
                break


def _without_pause(lone: "Lone", watch: PauseWatch) -> float:
    """Seconds of a lone request, repeated up to MAX_PAUSE_RETRIES times if the machine was paused:
    a pause would make the bound too low, as if the server had more slots."""
    took_s = lone.ask()
    for _ in range(MAX_PAUSE_RETRIES):
        if not watch.paused_since(lone.begun_ns):
            break
        took_s = lone.ask()
    return took_s


def enough(lone_s: Sequence[float], *, bundled: bool) -> bool:
    """Whether these lone responses, in seconds, suffice to know the cost of a request. `bundled`
    apps always take the same time. For others, the standard error of the mean decides, or number
    and total time; short requests are repeated for STEADY_S, as three may agree by chance."""
    count, spent_s = len(lone_s), sum(lone_s)
    if bundled:
        return count >= MAX_STEADY or spent_s >= STEADY_S
    if count < MIN_LONE or (count < MAX_LONE and spent_s < STEADY_S):
        return False
    error_s = stdev(lone_s) / sqrt(count)
    return count >= MAX_LONE or spent_s >= LONE_S or error_s <= LONE_ERROR * spent_s / count


class LoneAnswer(NamedTuple):
    """`took_s`: from before connect to the last byte."""

    status: int
    body: bytes
    took_s: float
    location: str | None = None  # target of a redirect


def ask(server: Running, route: Route) -> LoneAnswer:
    """The answer to a request on a new connection. Raises FAILURES if it is not complete."""
    body = Path(route.body_file).read_bytes() if route.body_file else None
    headers = {"Connection": "close", **dict(route.headers)}
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LONE_TIMEOUT_S)
    began = time.monotonic()
    with contextlib.closing(connection):
        connection.request(route.method, route.path, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
        took_s = time.monotonic() - began
        return LoneAnswer(response.status, content, took_s, response.getheader("Location"))


class Lone:
    """Sends requests of a route one at a time. `begun_ns`: start of the last one
    (CLOCK_MONOTONIC)."""

    def __init__(self, server: Running, route: Route) -> None:
        self.route = route
        self.answered = self.failed = self.begun_ns = 0
        self._server = server
        self._failing_s = 0.0

    def ask(self, path: str | None = None) -> float:
        """Seconds of the next request with the expected answer; `path`: request this instead.
        Raises TrialFailed if most requests fail, after TRIES failures or PATIENCE_S of them."""
        route = replace(self.route, path=path) if path else self.route
        while True:
            self.begun_ns = time.monotonic_ns()
            try:
                took_s = _expected(self._server, route)
            except TrialFailed:
                self.failed += 1
                self._failing_s += (time.monotonic_ns() - self.begun_ns) / NS
                if self._hopeless:
                    raise
            else:
                self.answered += 1
                return took_s

    @property
    def _hopeless(self) -> bool:
        mostly = self.failed > MAX_FAILURES_PER_ANSWER * self.answered
        return mostly and (self.failed >= TRIES or self._failing_s >= PATIENCE_S)


def _expected(server: Running, route: Route) -> float:
    """Seconds of a lone request that got the expected answer. Raises TrialFailed otherwise."""
    log = f"its log: {server.log}"
    try:
        answer = ask(server, route)
    except FAILURES as error:
        late = isinstance(error, TimeoutError)
        cause = f"within {LONE_TIMEOUT_S:.0f} s" if late else f"({error!r})"
        why = f"no answer to a first request {cause}"
        why = f"{route.label}: {why}" if server.launch.app.mix else why
        raise TrialFailed("answer", explained(why, server.log), log) from error
    as_expected = answer.status in route.expect if route.expect else 200 <= answer.status < 400
    if not as_expected:
        raise TrialFailed("answer", _unexpected(server, route, answer), log)
    return answer.took_s


def _unexpected(server: Running, route: Route, answer: LoneAnswer) -> str:
    """Why the answer is not the expected one, with the app's own message."""
    mixed, request = bool(server.launch.app.mix), f"{route.method} {route.path}"
    label = f"{route.name} ({request})" if route.name else request
    expected = " or ".join(map(str, route.expect)) or "2xx or 3xx"
    why = f"{label} answered {answer.status}, expected {expected}"
    failed = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    explanation = explained(why, server.log) if failed else why
    if explanation == why and not answer.location and (lines := first_lines(answer.body)):
        explanation = f"{why}: {lines}"
    why = explanation
    if failed and last_exception(log_lines(server.log)):  # a failure, and not what was expected
        return why
    if answer.location:
        why += f", with Location: {answer.location}"
    status = answer.status
    option = f"expect={status} in a --mix file" if mixed else f"--expect-status {status}"
    why += f" (use {option} if that is right"
    if answer.location and not mixed:
        target = urlsplit(answer.location)
        path = urlunsplit(("", "", target.path or "/", target.query, ""))
        why += f", or --path {shlex.quote(path)} to measure that page"
    if answer.status == HTTPStatus.BAD_REQUEST:
        host = {name.lower(): value for name, value in route.headers}.get("host", server.host)
        why += (
            f"; if the app rejects the Host header {host}, allow it there (Django: ALLOWED_HOSTS)"
            " or send another: --header 'Host: NAME'"
        )
    return f"{why})"


def _reach_every_worker(server: Running, routes: Sequence[Route], until: float) -> None:
    """Send bursts of requests, over all routes, until all workers have served one: the kernel
    chooses the worker."""
    launch = server.launch
    at_once = min(32, 2 * launch.server.workers)

    path = launch.warmup_path
    turns = cycle([replace(route, path=path) for route in routes] if path else routes)

    def ask_once(route: Route) -> None:
        with contextlib.suppress(*FAILURES):  # an overloaded server may refuse
            ask(server, route)

    pool = ThreadPoolExecutor(at_once)
    try:
        while len(reached := served(launch.trial) - server.earlier_pids) < launch.server.workers:
            if time.monotonic() > until:
                unreached = launch.server.workers - len(reached)
                server.warnings.append(stored(WorkersNotWarmedUp(unreached)))
                return
            list(pool.map(ask_once, islice(turns, at_once)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interrupt must not wait for answers
