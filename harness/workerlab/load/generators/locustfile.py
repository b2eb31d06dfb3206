"""The lab's locustfile. Locust sends it to workers, including those on other hosts, so it must not
import the lab. The option --workerlab is a JSON object that says what to send:

    urls, method, headers, body_file, keepalive, expect_status, same_body
    duration_s   counted from the start of the first user
    rate_rps, arrivals, schedule   with a rate, requests are due by a schedule that begins once all
                 users have started. The user that became free last sends the next request; while
                 no user is free, requests wait, and are timed from their due times. Each process
                 has its share of the schedule; processes on one machine (`together`) begin at the
                 same time, those on other machines when the message arrives
    mix, schedule, shares   the file of a mix, the seed of its order, and the number of processes
                 that share its requests
    ramp_s       approximate time until all users have started: Locust spawns once a second
    grace_s      time for requests in flight at the end
    timeout_s    of one request
    result       the file to write

Each process keeps an account of its requests, as timed by Locust, and sends it to the master once
its users have stopped; the master (or the only process) writes all of them to `result`:

    {"tool": "locust", "format": 1, "version", "user", "expected", "whole", "parts": {process: {
        "sent", "complete", "errors": {cause: n}, "first_ns", "last_ns",
        "in_flight_ns", "cpu_ns", "note", "response": histogram, "unsent", "lag": histogram,
        "socket_ns": {"connect", "send", "receive"}, "received_bytes", "answers_ns": with a ramp on
        one machine, when each response ended and how long it took,
        "body_sha256": of the first body, if the others are compared with it,
        "routes": {label: a RouteTotals of format.py}}}}

Times of socket calls (connect, send, receive) include the wait until gevent resumes the user. Each
timing costs some 0.5 microseconds of CPU; a request makes two or three calls and costs 200 or more.

IP addresses are not resolved. gevent would do that in ten threads, which starve in a busy process:
after several seconds, fewer than half of its users were connected.

This file ends the run itself. Locust's --run-time leaves the workers half a second to report, which
would lose the last requests to a slow server. Locust's own statistics are not used: they round to
two digits and mix responses with failures.
"""

import base64
import errno
import hashlib
import ipaddress
import json
import math
import random
import time
import zlib
from _socket import getaddrinfo as native_getaddrinfo
from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterator
from itertools import accumulate, islice, repeat
from typing import Any

import gevent
import locust
from gevent.event import AsyncResult
from gevent.resolver.thread import Resolver
from gevent.socket import socket as Socket
from locust import FastHttpUser, HttpUser, events, runners
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

# Locust drops a worker after 3 s without a heartbeat, which a busy machine can delay for longer
runners.HEARTBEAT_LIVENESS = 15

HISTOGRAM_BITS = 7  # a bucket is 1/128 of its value wide, as in the lab's own histograms
OWN_HEADERS = {"connection", "content-length", "transfer-encoding", "expect", "keep-alive"}
FRAMING_HEADERS = {"content-length", "transfer-encoding"}
GO, STOP, PART = "workerlab-go", "workerlab-stop", "workerlab-part"  # messages
POLL_S = 0.1
START_LEAD_S = 0.3  # before the schedule starts, for a message to reach the workers
NS = 1_000_000_000
MESSAGE_SLACK_S = 5.0  # for a message to a worker and back
CAUSE_BY_ERRNO = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "connect_timeout",
    errno.EADDRNOTAVAIL: "no_address",
    errno.EMFILE: "no_files",
}
# By substring of the repr of an error of requests, urllib3, http.client or geventhttpclient
CAUSE_BY_TEXT = {
    "ConnectTimeout": "connect_timeout",
    **dict.fromkeys(("RemoteDisconnected", "HTTPConnectionClosed"), "closed"),
    "got length b''": "truncated",
    "InvalidChunkLength": "protocol",
    **dict.fromkeys(("IncompleteRead", "Incomplete response", "Invalid EOF"), "truncated"),
    **dict.fromkeys(("timed out", "Timeout"), "timeout"),
    **dict.fromkeys(("HTTPParseError", "ProtocolError", "InvalidHeader"), "protocol"),
    "BadStatusLine": "protocol",
}

# The account of this process. Nanoseconds, CLOCK_MONOTONIC
EMPTY_HISTOGRAM: dict[str, Any] = {"count": 0, "sum": 0, "least": None, "most": None}
RESPONSE, LAG = {**EMPTY_HISTOGRAM, "buckets": Counter()}, {**EMPTY_HISTOGRAM, "buckets": Counter()}
ACCOUNT: dict[str, Any] = {
    "sent": 0,
    "complete": 0,
    "errors": Counter(),
    "body_sha256": None,
    "first_ns": None,
    "last_ns": None,
    "in_flight_ns": 0,
    "cpu_ns": 0,
    "note": "",
    "response": RESPONSE,
    "routes": {},
    "unsent": 0,
    "lag": LAG,
    "socket_ns": Counter(),
    "received_bytes": 0,
    "answers_ns": [],
}
MAX_RECORDED_RESPONSES = 100_000  # in answers_ns
SOCKET_CALLS = {"connect": "connect", "sendall": "send", "recv": "receive", "recv_into": "receive"}
PARTS: dict[str, object] = {}  # accounts of all processes, in the one that writes the result
STATE: dict[str, Any] = {"stopping": False, "whole": False, "environment": None, "checksum": None}
LOAD: dict[str, Any] = {}
KINDS: list[dict[str, Any]] = []  # of requests: one, or those of the mix
MAX_KEPT_BODY_BYTES = 8_192  # of an unexpected response
DUE_OFFSETS_NS: list[int] = []  # from the start of the schedule; later, only this process's
QUEUED_DUE_NS: deque[int] = deque()  # due times of requests that wait for a user
FREE_USERS: list[AsyncResult] = []  # users that wait for a request


class AddressResolver(Resolver):
    """A resolver that returns IP addresses without a lookup."""

    def getaddrinfo(self, host: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return super().getaddrinfo(host, *args, **kwargs)
        return native_getaddrinfo(host, *args, **kwargs)


gevent.get_hub().resolver = AddressResolver()


def _patch_socket_method(name: str) -> None:
    """Patch a socket method to add up its time on all sockets, and the bytes it receives."""
    method, call, spent_ns = getattr(Socket, name), SOCKET_CALLS[name], ACCOUNT["socket_ns"]

    def timed(self: Any, *args: Any) -> Any:
        start_ns = time.monotonic_ns()
        try:
            result = method(self, *args)
        finally:
            spent_ns[call] += time.monotonic_ns() - start_ns
        if call == "receive":
            ACCOUNT["received_bytes"] += result if isinstance(result, int) else len(result)
        return result

    setattr(Socket, name, timed)


for method_name in SOCKET_CALLS:
    _patch_socket_method(method_name)


def schedule(kind: str, rate_rps: float, duration_s: float, seed: int) -> list[int]:
    """The due times, as in the lab's numbers/schedule.py, which other hosts lack."""
    uniform, due_ns, due_times_ns = random.Random(seed).random, 0.0, list[int]()
    while True:
        random_ns = due_ns - math.log(1 - uniform()) / rate_rps * NS
        due_ns = len(due_times_ns) / rate_rps * NS if kind == "even" else random_ns
        if due_ns >= int(duration_s * NS):
            return due_times_ns
        due_times_ns.append(int(due_ns))


def _record(histogram: dict[str, Any], took_ns: int) -> None:
    shift = max(0, took_ns.bit_length() - HISTOGRAM_BITS - 1)
    histogram["buckets"][(shift << HISTOGRAM_BITS) + (took_ns >> shift)] += 1
    is_first = not histogram["count"]
    histogram["count"] += 1
    histogram["sum"] += took_ns
    histogram["least"] = took_ns if is_first else min(histogram["least"], took_ns)
    histogram["most"] = took_ns if is_first else max(histogram["most"], took_ns)


def _record_response(took_ns: int) -> None:
    ACCOUNT["complete"] += 1
    _record(RESPONSE, took_ns)
    if LOAD["ramp_s"] and LOAD["together"] and len(ACCOUNT["answers_ns"]) < MAX_RECORDED_RESPONSES:
        ACCOUNT["answers_ns"].append((time.monotonic_ns(), took_ns))


def sequence(weights: list[float], seed: int) -> Iterator[int]:
    """The order of a mix, as in the lab's numbers/schedule.py, which other hosts lack."""
    bounds = list(accumulate(weights))
    draw = random.Random(f"mix {seed}").random
    while True:
        yield bisect(bounds, draw() * bounds[-1], hi=len(bounds) - 1)


def _end_request(start_ns: int, cause: str | None, route: dict[str, Any] | None) -> None:
    ACCOUNT["last_ns"] = time.monotonic_ns()
    ACCOUNT["in_flight_ns"] += ACCOUNT["last_ns"] - start_ns
    if cause is not None:
        ACCOUNT["errors"][cause] += 1
        if route is not None:
            route["errors"][cause] += 1


def cause_of(error: BaseException | None) -> str:
    """The cause of an error of either client."""
    texts = repr(error)
    while error is not None:
        if isinstance(error, OSError) and error.errno in CAUSE_BY_ERRNO:
            return CAUSE_BY_ERRNO[error.errno]
        inner = (*error.args, getattr(error, "reason", None), error.__cause__, error.__context__)
        error = next((value for value in inner if isinstance(value, BaseException)), None)
        texts += repr(error)
    return next((cause for text, cause in CAUSE_BY_TEXT.items() if text in texts), "exception")


def count_response(response: Any, lag_ns: int, kind: dict[str, Any]) -> str | None:
    """Count a response if it is complete. Returns the cause of failure, or None for a success.
    `lag_ns`: how long after its due time the request was sent."""
    error = response.request_meta["exception"] or getattr(response, "error", None)
    if not response.status_code or (error is not None and getattr(error, "code", None) is None):
        return cause_of(error)
    body = response.content or b""
    # If the connection closes within the head, requests returns a response without a length
    is_plausible = body or kind["method"] == "HEAD" or response.status_code in (204, 304)
    if not (is_plausible or FRAMING_HEADERS & {name.lower() for name in response.headers}):
        return "truncated"
    took_ns = max(0, int(response.request_meta["response_time"] * 1e6))
    _record_response(lag_ns + took_ns)
    cause = _failure_cause(response.status_code, body, kind["expect"])
    if (route := kind["route"]) is not None:
        route["complete"] += 1
        if cause is None:
            _record(route["response"], lag_ns + took_ns)
        else:
            route["statuses"][str(response.status_code)] += 1
            route["body"] = route["body"] or body[:MAX_KEPT_BODY_BYTES].decode(errors="replace")
    return cause


def _failure_cause(status: int, body: bytes, expect: list[int] | None) -> str | None:
    """Why a complete response is a failure; None for a success. `expect`: only in a mix."""
    if expect is not None:
        return None if (status in expect if expect else 200 <= status < 400) else "status"
    expected = LOAD["expect_status"]
    if expected == 200 and not 200 <= status < 300:
        return "non_2xx"
    if expected not in (200, status):
        return "status"
    if LOAD["same_body"]:
        checksum = zlib.crc32(body)
        if STATE["checksum"] is None:  # the first one
            STATE["checksum"], ACCOUNT["body_sha256"] = checksum, hashlib.sha256(body).hexdigest()
        return None if checksum == STATE["checksum"] else "body"
    return None


def _wait_for_due_ns() -> int | None:
    """Wait for the next request. Returns its due time, or None if there are no more."""
    if QUEUED_DUE_NS:
        return QUEUED_DUE_NS.popleft()
    FREE_USERS.append(next_due := AsyncResult())
    due_ns: int | None = next_due.get()
    return due_ns


def send_request(user: Any) -> None:
    """Send one request, which is the task of every user."""
    due_ns = _wait_for_due_ns() if LOAD["rate_rps"] and not STATE["stopping"] else None
    if STATE["stopping"]:  # otherwise Locust would stop the user in the middle of its next request
        raise StopUser
    start_ns, lag_ns = time.monotonic_ns(), 0
    if due_ns is not None:
        lag_ns = max(0, start_ns - due_ns)
        _record(LAG, lag_ns)
    ACCOUNT["sent"] += 1
    kind = KINDS[next(STATE["mix_order"])]
    if (route := kind["route"]) is not None:
        route["sent"] += 1
    ACCOUNT["first_ns"] = ACCOUNT["first_ns"] or start_ns
    try:
        with user.client.request(
            kind["method"], random.choice(kind["urls"]), **kind["arguments"]
        ) as response:
            cause = count_response(response, lag_ns, kind)
            response.failure(cause) if cause else response.success()
            connection = response.headers.get("Connection", "") if response.headers else ""
            if not (LOAD["keepalive"] or connection.lower() == "close"):  # still open
                user.close_connections()
    except gevent.GreenletExit:  # the grace period has passed
        _end_request(start_ns, "timeout", route)
        raise
    except Exception as error:  # the libraries' parsers may raise anything
        cause = cause_of(error)
        if cause == "exception":
            ACCOUNT["note"] = ACCOUNT["note"] or f"an exception: {error!r}"[:300]
    _end_request(start_ns, cause, route)


class Http(HttpUser):
    """Locust's HttpUser, based on requests."""

    host = "http://named.in.each.request"
    tasks = [send_request]  # noqa: RUF012

    def on_start(self) -> None:
        self.client.trust_env = False  # no proxy, no .netrc

    def close_connections(self) -> None:
        self.client.close()


class Fast(FastHttpUser):
    """Locust's FastHttpUser, based on geventhttpclient."""

    host = Http.host
    tasks = Http.tasks

    def close_connections(self) -> None:
        self.client.client.close()


@events.init_command_line_parser.add_listener
def _add_option(parser: Any) -> None:
    parser.add_argument("--workerlab", default="", help="JSON object that says what to send")


@events.init.add_listener
def _prepare(environment: Any, runner: Any, **_: object) -> None:
    STATE["environment"] = environment
    if isinstance(runner, WorkerRunner):
        runner.register_message(STOP, _stop_worker, concurrent=True)
        runner.register_message(GO, _start_schedule_on_worker, concurrent=True)
        return
    options = json.loads(environment.parsed_options.workerlab)
    if options["mix"] is not None:
        with open(options["mix"], encoding="utf-8") as file:
            options["kinds"] = json.load(file)
    for kind in (options, *options.get("kinds", ())):  # workers on other hosts lack the files
        if kind["body_file"] is not None:
            with open(kind["body_file"], "rb") as file:
                kind["body"] = base64.b64encode(file.read()).decode()
    environment.parsed_options.workerlab = json.dumps(options)
    if isinstance(runner, MasterRunner):
        runner.register_message(PART, _receive_part)


@events.test_start.add_listener
def _begin(environment: Any, **_: object) -> None:
    """Read the load to send, which a worker has just received from its master."""
    STATE["start_s"] = time.monotonic()
    LOAD.update(json.loads(environment.parsed_options.workerlab))
    kinds = LOAD.get("kinds", ())
    KINDS[:] = [_kind(kind, kind["path"]) for kind in kinds] or [_kind(LOAD, None)]
    _select_requests(max(0, getattr(environment.runner, "worker_index", 0)), LOAD["shares"])
    Fast.network_timeout = Fast.connection_timeout = LOAD["timeout_s"]
    if LOAD["rate_rps"] and not isinstance(environment.runner, MasterRunner):
        kind, rate_rps, seed = LOAD["arrivals"], LOAD["rate_rps"], LOAD["schedule"]
        DUE_OFFSETS_NS.extend(schedule(kind, rate_rps, LOAD["duration_s"], seed))


def _select_requests(number: int, processes: int) -> None:
    """Select this process's requests of a mix."""
    weights = [kind["weight"] for kind in LOAD.get("kinds", ())]
    order = sequence(weights, LOAD["schedule"])
    STATE["mix_order"] = islice(order, number, None, processes) if weights else repeat(0)


def _kind(request: dict[str, Any], path: str | None) -> dict[str, Any]:
    """An entry of KINDS. `path`: set only in a mix, whose routes have accounts."""
    urls, route = LOAD["urls"], None
    if path is not None:
        urls = ["/".join(url.split("/", 3)[:3]) + path for url in urls]
        counts = {"sent": 0, "complete": 0, "errors": Counter(), "statuses": Counter(), "body": ""}
        route = {**counts, "response": {**EMPTY_HISTOGRAM, "buckets": Counter()}}
        route = ACCOUNT["routes"].setdefault(request["label"], route)
    return {
        "method": request["method"],
        "urls": urls,
        "arguments": _arguments(request),
        "route": route,
        "expect": request.get("expect"),
    }


def _arguments(request: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for Locust's clients."""
    headers = {"User-Agent": "workerlab", "Accept": "*/*", "Accept-Encoding": "identity"}
    if (body := request.get("body")) is not None:
        body = base64.b64decode(body)
        headers["Content-Type"] = "application/octet-stream"
    custom = {name: value for name, value in request["headers"] if name.lower() not in OWN_HEADERS}
    names = {name.lower() for name in custom}
    headers = {name: value for name, value in headers.items() if name.lower() not in names} | custom
    if not LOAD["keepalive"]:
        headers["Connection"] = "close"
    arguments = {"headers": headers, "data": body, "allow_redirects": False}
    return arguments | {"catch_response": True, "name": "load"}


@events.spawning_complete.add_listener
def _start_timer(**_: object) -> None:
    """Start the timer of the run once all users have started. During a ramp they already send."""
    runner = STATE["environment"].runner
    if not isinstance(runner, WorkerRunner):
        ramp_s = time.monotonic() - STATE["start_s"] if LOAD["ramp_s"] else 0.0
        lead_s = START_LEAD_S if LOAD["rate_rps"] else 0.0
        _start_schedule(runner, time.monotonic_ns() + int(lead_s * NS))
        gevent.get_hub().loop.update_now()  # otherwise the timer counts from the last update
        gevent.spawn_later(max(0.0, lead_s + LOAD["duration_s"] - ramp_s), _end, runner)


def _start_schedule(runner: Any, origin_ns: int) -> None:
    """If the load has a rate, start its schedule at `origin_ns`."""
    if not LOAD["rate_rps"]:
        return
    if not isinstance(runner, MasterRunner):
        gevent.spawn(_dispatch_due, origin_ns)
        return
    workers = [client.id for client in runner.clients.all]
    for number, worker in enumerate(workers):
        share = {"number": number, "of": len(workers)}
        when = {"origin_ns": origin_ns} if LOAD["together"] else {}
        runner.send_message(GO, share | when, client_id=worker)


def _start_schedule_on_worker(environment: Any, msg: Any, **_: object) -> None:
    number, processes = msg.data["number"], msg.data["of"]
    DUE_OFFSETS_NS[:] = DUE_OFFSETS_NS[number::processes]
    _select_requests(number, processes)
    _dispatch_due(msg.data.get("origin_ns", time.monotonic_ns()))


def _dispatch_due(origin_ns: int) -> None:
    """Give each due request to the user freed last, or queue it for the next free user."""
    ACCOUNT["first_ns"] = origin_ns
    for offset_ns in DUE_OFFSETS_NS:
        due_ns = origin_ns + offset_ns
        while (now := time.monotonic_ns()) < due_ns and not STATE["stopping"]:
            gevent.get_hub().loop.update_now()
            gevent.sleep((due_ns - now) / NS)
        if STATE["stopping"]:
            return
        if FREE_USERS:
            FREE_USERS.pop().set(due_ns)
        else:
            QUEUED_DUE_NS.append(due_ns)


def _end(runner: Any) -> None:
    """Stop the users, and wait for the accounts of the other processes."""
    if isinstance(runner, MasterRunner):
        runner.send_message(STOP)
        deadline_s = time.monotonic() + LOAD["grace_s"] + MESSAGE_SLACK_S
        while time.monotonic() < deadline_s and _has_missing_parts(runner):
            gevent.sleep(POLL_S)
    else:
        PARTS["local"] = _stop(runner)
    STATE["whole"] = True
    runner.quit()


def _stop(runner: Any) -> dict[str, object]:
    STATE["stopping"] = True
    for next_due in FREE_USERS:
        next_due.set(None)
    runner.stop()
    if LOAD["rate_rps"]:
        ACCOUNT["unsent"] = len(DUE_OFFSETS_NS) - ACCOUNT["sent"]
    ACCOUNT["cpu_ns"] = time.process_time_ns()
    return ACCOUNT


def _has_missing_parts(runner: Any) -> bool:
    """Whether a worker that is still running has not sent its account."""
    lost_ids = {client.id for client in runner.clients.missing}
    return any(client.id not in lost_ids | PARTS.keys() for client in runner.clients.all)


def _stop_worker(environment: Any, msg: Any, **_: object) -> None:
    environment.runner.send_message(PART, _stop(environment.runner))


def _receive_part(environment: Any, msg: Any, **_: object) -> None:
    PARTS[msg.node_id] = msg.data


@events.quit.add_listener
def _write(**_: object) -> None:
    environment = STATE["environment"]
    if environment is None or isinstance(environment.runner, WorkerRunner):
        return
    options = json.loads(environment.parsed_options.workerlab)
    expected = environment.parsed_options.expect_workers if environment.parsed_options.master else 1
    document = {
        "tool": "locust",
        "format": 1,
        "version": locust.__version__,
        "user": options["user"],
        "rate_rps": options["rate_rps"],
        "expected": expected,
        "whole": STATE["whole"],
        "cpu_ns": time.process_time_ns(),
        "parts": PARTS,
    }
    with open(options["result"], "w", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")
