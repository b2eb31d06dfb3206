"""Sends a server's first requests: checks its responses, warms up all workers, and times lone
requests.

Some requests may fail, and the load measures how many. So failed requests before the load are
counted, but not used as lone requests. An app is rejected only if it never responds as
expected, or mostly does not. The same applies to each route of a mix.
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
from workerlab.observe.spans import serving_pids
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
MAX_BUNDLED_LONE = 5  # lone requests of a bundled app, whose times vary little
MIN_LONE, MAX_LONE = 3, 30  # of any other app
MIN_TOTAL_LONE_S, MAX_TOTAL_LONE_S = 0.5, 3.0  # of all together: short ones are noisy
MAX_LONE_ERROR = 0.05  # the standard error of their mean, relative to the mean
WARMUP_S = 1.0
MAX_PAUSE_RETRIES = 5  # of a lone request during which the machine was paused
MAX_FAILURES, MAX_FAILING_S = 5, 10.0  # failed requests, or seconds of them, before giving up
MAX_REPORTED_ROUTES = 3  # of a mix, in the message about those that fail
MAX_FAILURES_PER_SUCCESS = 2
NS = 1e9
REQUEST_ERRORS = (OSError, http.client.HTTPException)


class LoneRequestsFailed(Finding):
    """{failed} of {requests:# lone request} before the load failed: no result includes them"""

    failed: int
    requests: int


class WorkersNotWarmedUp(Finding):
    """warm-up did not reach {workers:# worker}"""

    workers: int


def warm_up(server: Running, turn: StartupTurn) -> None:
    """Send the readiness request, bursts until every worker has served a request, and then lone
    requests, while no other server starts.

    Lone requests need warm workers: the first request of each may connect to a database or fill a
    cache, and would make the throughput bound several times too low.
    """
    began = time.monotonic()
    launch = server.launch
    senders = [LoneSender(server, route) for route in routes_of(launch.app)]
    first_s = max(first_responses_s(senders, launch.warmup_path))
    burst_s = WARMUP_S if launch.warmup_path else max(WARMUP_S, 2 * first_s)
    _reach_every_worker(server, [sender.route for sender in senders], time.monotonic() + burst_s)
    waited_s = turn.wait_to_measure()
    send_lone_requests(server, senders)
    if failed := sum(sender.failed for sender in senders):
        requests = failed + sum(sender.succeeded for sender in senders)
        server.warnings.append(stored(LoneRequestsFailed(failed, requests)))
    server.proofs = read_proofs(launch.trial, excluded=server.earlier_pids)
    server.warmup_s = time.monotonic() - began - waited_s


def routes_of(app: App) -> tuple[Route, ...]:
    """The app's request, or the most frequent one of each route of a mix. Weights sum to 1."""
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


def first_responses_s(senders: Sequence["LoneSender"], path: str | None) -> list[float]:
    """The response time of a first request to each route, in seconds. Raises TrialFailed, with the
    first few reasons, if routes never respond as expected."""
    times_s, faults = list[float](), list[Fault]()
    for sender in senders:
        try:
            times_s.append(sender.time_request(path))
        except TrialFailed as error:
            faults.append(error.fault)
            if len(faults) == MAX_REPORTED_ROUTES:
                break
    if faults:
        why = "; ".join(fault.reason for fault in faults)
        raise TrialFailed(faults[0].kind, why, faults[0].detail)
    return times_s


def send_lone_requests(server: Running, senders: Sequence["LoneSender"]) -> None:
    """Send lone requests, one per route and round: 30 random ones would miss rare, slow routes.
    Their weighted mean is the cost of a request."""
    bundled = server.launch.app.sleep_s is not None
    if server.launch.app.mix:
        server.lone_weights = tuple(sender.route.weight for sender in senders)
    rounds_s, spent_s = list[float](), 0.0
    with PauseWatch() as watch:
        while not are_sufficient(rounds_s, bundled=bundled):
            for sender in senders:
                server.lone_s.append(_without_pause(sender, watch))
                server.lone_begun_ns.append(sender.begun_ns)
            last_s = server.lone_s[-len(senders) :]
            spent_s += sum(last_s)
            pairs = zip(senders, last_s, strict=True)
            rounds_s.append(fsum(sender.route.weight * took_s for sender, took_s in pairs))
            if len(senders) > 1 and spent_s >= MAX_TOTAL_LONE_S:
                break


def _without_pause(sender: "LoneSender", watch: PauseWatch) -> float:
    """The response time of a lone request, in seconds. Repeats it up to MAX_PAUSE_RETRIES times if
    the machine was paused: a pause would make the throughput bound too low."""
    took_s = sender.time_request()
    for _ in range(MAX_PAUSE_RETRIES):
        if not watch.paused_since(sender.begun_ns):
            break
        took_s = sender.time_request()
    return took_s


def are_sufficient(lone_s: Sequence[float], *, bundled: bool) -> bool:
    """Whether these lone response times suffice to estimate the cost of a request. `bundled` apps
    always take the same time. For other apps, the standard error of the mean decides, or the number
    and total time; short requests are repeated for MIN_TOTAL_LONE_S, since three may agree by
    chance."""
    count, spent_s = len(lone_s), sum(lone_s)
    if bundled:
        return count >= MAX_BUNDLED_LONE or spent_s >= MIN_TOTAL_LONE_S
    if count < MIN_LONE or (count < MAX_LONE and spent_s < MIN_TOTAL_LONE_S):
        return False
    if count >= MAX_LONE or spent_s >= MAX_TOTAL_LONE_S:
        return True
    return stdev(lone_s) / sqrt(count) <= MAX_LONE_ERROR * spent_s / count


class LoneResponse(NamedTuple):
    """`took_s`: from before connect to the last byte."""

    status: int
    body: bytes
    took_s: float
    location: str | None = None  # target of a redirect


def ask(server: Running, route: Route) -> LoneResponse:
    """The response to a request on a new connection. Raises REQUEST_ERRORS if it is incomplete."""
    body = Path(route.body_file).read_bytes() if route.body_file else None
    headers = {"Connection": "close", **dict(route.headers)}
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LONE_TIMEOUT_S)
    began = time.monotonic()
    with contextlib.closing(connection):
        connection.request(route.method, route.path, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
        took_s = time.monotonic() - began
        return LoneResponse(response.status, content, took_s, response.getheader("Location"))


class LoneSender:
    """Sends the requests of a route one at a time. `begun_ns`: start of the last one
    (CLOCK_MONOTONIC)."""

    def __init__(self, server: Running, route: Route) -> None:
        self.route = route
        self.succeeded = self.failed = self.begun_ns = 0
        self._server = server
        self._failing_s = 0.0

    def time_request(self, path: str | None = None) -> float:
        """Send requests until one gets the expected response, and return its response time in
        seconds. `path`: request this instead of the route's. Raises TrialFailed if most requests
        fail, after MAX_FAILURES failures or MAX_FAILING_S of them."""
        route = replace(self.route, path=path) if path else self.route
        while True:
            self.begun_ns = time.monotonic_ns()
            try:
                took_s = _expected_response_s(self._server, route)
            except TrialFailed:
                self.failed += 1
                self._failing_s += (time.monotonic_ns() - self.begun_ns) / NS
                if self._mostly_fails:
                    raise
            else:
                self.succeeded += 1
                return took_s

    @property
    def _mostly_fails(self) -> bool:
        if self.failed <= MAX_FAILURES_PER_SUCCESS * self.succeeded:
            return False
        return self.failed >= MAX_FAILURES or self._failing_s >= MAX_FAILING_S


def _expected_response_s(server: Running, route: Route) -> float:
    """The response time of a lone request, in seconds. Raises TrialFailed if it gets no
    expected response."""
    log = f"its log: {server.log}"
    try:
        response = ask(server, route)
    except REQUEST_ERRORS as error:
        timed_out = isinstance(error, TimeoutError)
        cause = f"within {LONE_TIMEOUT_S:.0f} s" if timed_out else f"({error!r})"
        why = f"no response to a first request {cause}"
        why = f"{route.label}: {why}" if server.launch.app.mix else why
        raise TrialFailed("answer", explained(why, server.log), log) from error
    status = response.status
    as_expected = status in route.expect if route.expect else 200 <= status < 400
    if not as_expected:
        raise TrialFailed("answer", _why_unexpected(server, route, response), log)
    return response.took_s


def _why_unexpected(server: Running, route: Route, response: LoneResponse) -> str:
    """The difference from the expected response, with the app's own message and advice."""
    status = response.status
    is_mix, request = bool(server.launch.app.mix), f"{route.method} {route.path}"
    label = f"{route.name} ({request})" if route.name else request
    expected = " or ".join(map(str, route.expect)) or "2xx or 3xx"
    why = f"{label} returned {status}, expected {expected}"
    failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    explanation = explained(why, server.log) if failed else why
    if explanation == why and not response.location and (lines := first_lines(response.body)):
        explanation = f"{why}: {lines}"
    why = explanation
    if failed and last_exception(log_lines(server.log)):  # no option would help
        return why
    if response.location:
        why += f", with Location: {response.location}"
    option = f"expect={status} in a --mix file" if is_mix else f"--expect-status {status}"
    why += f" (use {option} if that is intended"
    if response.location and not is_mix:
        target = urlsplit(response.location)
        path = urlunsplit(("", "", target.path or "/", target.query, ""))
        why += f", or --path {shlex.quote(path)} to measure that page"
    if status == HTTPStatus.BAD_REQUEST:
        host = {name.lower(): value for name, value in route.headers}.get("host", server.host)
        why += (
            f"; if the app rejects the Host header {host}, allow it there (Django: ALLOWED_HOSTS)"
            " or send another: --header 'Host: NAME'"
        )
    return f"{why})"


def _reach_every_worker(server: Running, routes: Sequence[Route], deadline_s: float) -> None:
    """Send bursts of requests to all routes until every worker has served one: the kernel chooses
    the worker."""
    launch = server.launch
    workers = launch.server.workers
    burst_size = min(32, 2 * workers)
    path = launch.warmup_path
    next_routes = cycle([replace(route, path=path) for route in routes] if path else routes)

    def ask_once(route: Route) -> None:
        with contextlib.suppress(*REQUEST_ERRORS):  # an overloaded server may refuse
            ask(server, route)

    pool = ThreadPoolExecutor(burst_size)
    try:
        while len(reached_pids := serving_pids(launch.trial) - server.earlier_pids) < workers:
            if time.monotonic() > deadline_s:
                server.warnings.append(stored(WorkersNotWarmedUp(workers - len(reached_pids))))
                return
            list(pool.map(ask_once, islice(next_routes, burst_size)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interrupt must not wait for responses
