"""The launches that test what a worker class does with its settings. `effects` draws conclusions.

Those in this module take time. They test how many requests a worker serves at once and in all,
connections that stay open, workers that do not report, stops, a reload of the file, a worker
replaced while a request is in progress, and as many silent clients as a worker accepts.
"""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from itertools import groupby

from workerlab.experiments.settings.common_launches import (
    COMMON,
    PRELOAD,
    LaunchObservations,
    SettingLaunch,
    fixed,
)
from workerlab.experiments.settings.site import (
    EVENT_TIMEOUT_S,
    FORWARDED_IP,
    HOST,
    POLL_S,
    AppReply,
    InconclusiveLaunch,
    Site,
    exchange,
)
from workerlab.server.services import free_port

# --- how many requests --------------------------------------------------------------------------

CONNECTIONS, THREADS = 3, 4
BURST_REQUESTS, REQUEST_WAIT_S = 8, 0.5
RECYCLE_LIMIT = 4  # max_requests
MIN_REQUESTS, REQUEST_INTERVAL_S = 24, 0.15
MAX_REQUESTS = 10 * MIN_REQUESTS  # sent in all
RECYCLING_GRACE_S = 1
LINGERING_ATTEMPTS = 4  # a class with threads is blocked only occasionally
MIN_HELD_S = 0.5  # if a lone request is delayed by more than this, the other client held the worker


def _observe_slots(site: Site) -> LaunchObservations:
    """Send several requests at once to one worker, and count the connections that it accepts and
    the requests in the app at once."""
    says_close = _says_close(site)
    site.wait(0.1)
    # If the machine stalls, the requests do not arrive at once
    accepted = site.stalls.repeat(lambda: _most_accepted(site))
    return {
        "using": site.logged_class(),
        "asked": BURST_REQUESTS,
        "accepted": accepted,
        "most": site.ask("/about").about.get("most"),
        "says_close": says_close,
    }


def _most_accepted(site: Site) -> int:
    """The most connections accepted at the same time, out of BURST_REQUESTS with a request each."""
    path, accepted = f"/wait?s={REQUEST_WAIT_S:g}", 0
    requests = site.start_requests([path])
    # The first request blocks the loop if it can; then the others arrive
    site.wait(REQUEST_WAIT_S / 5)
    requests += site.start_requests([path] * (BURST_REQUESTS - 1))
    while not all(request.done() for request in requests):
        accepted = max(accepted, site.accepted_count())
        site.wait(POLL_S)
    return accepted


def _says_close(site: Site) -> bool:
    """Whether the server announces that it closes a connection after its first response."""
    with site.connect() as connection:
        return exchange(connection, "/about").closes


def _recycling_settings(site: Site) -> Mapping[str, object]:
    """`max_requests`, and as many `worker_connections` as gthread has threads."""
    return {
        "max_requests": RECYCLE_LIMIT,
        "worker_connections": site.server.threads,
        # Some classes wait for the whole timeout before replacing a worker
        "graceful_timeout": RECYCLING_GRACE_S,
    }


def _observe_recycling(site: Site) -> LaunchObservations:
    """Consecutive requests served by each worker, except the first worker, which has already
    answered the readiness check, and the last, which has not reached its limit."""
    says_close = _says_close(site)
    pids: list[int | None] = []
    # Continue until a whole lifetime of a worker has been observed
    while len(pids) < MIN_REQUESTS or (not _requests_per_worker(pids) and len(pids) < MAX_REQUESTS):
        reply = site.ask("/about")  # may fail while workers are replaced
        pids.append(reply.about["pid"] if reply.status == 200 else None)
        site.wait(REQUEST_INTERVAL_S)
    return {"served": _requests_per_worker(pids), "asked": len(pids), "says_close": says_close}


def _requests_per_worker(pids: Sequence[int | None]) -> list[int]:
    """Consecutive requests served by each worker, except the first and the last worker."""
    return [len(list(group)) for pid, group in groupby(pids) if pid is not None][1:-1]


def _observe_lingering(site: Site) -> LaunchObservations:
    """One client keeps its connection open after its last response while another sends a request.
    Repeated LINGERING_ATTEMPTS times."""
    site.ask("/file")
    free_s = min(site.ask("/about").took_s for _ in range(3))
    times_s = [site.stalls.repeat(lambda: _response_s(site)) for _ in range(LINGERING_ATTEMPTS)]
    return {
        "free_s": free_s,
        "behind_s": times_s,
        "sendfiles": site.ask("/about").about.get("sendfiles"),
    }


def _response_s(site: Site) -> float:
    """The response time of the second client (see `_observe_lingering`)."""
    with site.connect() as connection:
        exchange(connection, "/about", "Connection: close")
        return site.ask("/about").took_s


SLOTS = SettingLaunch("slots", fixed(worker_connections=CONNECTIONS), _observe_slots, 2.5)
THREADED = SettingLaunch("threads", fixed(threads=THREADS), _observe_slots, 1.5, threads=THREADS)
RECYCLING = SettingLaunch("recycling", _recycling_settings, _observe_recycling, 4.0)
LINGERING = SettingLaunch("lingering", fixed(sendfile=True), _observe_lingering, 1.0)


# --- timeouts and stops -------------------------------------------------------------------------

KEEPALIVE_S, KEEPALIVE_WATCH_S = 3, 8.0
TIMEOUT_S, REQUEST_S = 2, 6.0  # the setting, and a request that exceeds it
SILENCE_S = 9.0  # of a client that sends nothing
GRACE_S, ONGOING_S = 2, 5.0  # the setting, and a request in progress
# Before a worker's first heartbeat, Gunicorn compares with the wall clock, and a fresh worker may
# time out early
SETTLE_S = 1.5


def _socket_settings(_site: Site) -> Mapping[str, object]:
    return {
        "bind": f"{HOST}:{free_port()}",  # with :0, each worker would get its own port
        "workers": 2,
        "reuse_port": True,
        "proxy_protocol": True,
        "keepalive": KEEPALIVE_S,
    }


def _observe_sockets(site: Site) -> LaunchObservations:
    # Workers create their sockets before they load the app
    site.require(lambda: _loaded_workers(site) >= 2, "not every worker loaded the app")
    site.wait_until(lambda: len(site.listeners()) >= 2, 1.0)
    proxied = site.ask("/about", prefix=f"PROXY TCP4 {FORWARDED_IP} {HOST} 1000 2000\r\n")
    reply, closed_s = site.stalls.repeat(
        partial(_idle_connection, site),
        # A connection that stayed open is certain even if the machine stalled
        lambda outcome: outcome[0].status == 200 and outcome[1] is None,
    )
    if reply.status != 200:
        raise InconclusiveLaunch(f"expected status 200, got {reply.error or reply.status}")
    return {
        "listeners": len(site.listeners()),
        "shared": _can_bind(site.port),
        "proxied": proxied.conclusive_status,
        "proxied_address": proxied.about["address"] if proxied.status == 200 else None,
        "says_close": reply.closes,
        "closed_s": closed_s,
    }


def _loaded_workers(site: Site) -> int:
    """Number of workers that have loaded the app."""
    return sum(name == "post_worker_init" for name, _ in site.called_hooks())


def _idle_connection(site: Site) -> tuple[AppReply, float | None]:
    """The response to a request, and the time until the server closed the idle connection."""
    with site.connect() as connection:
        reply = exchange(connection, "/about")
        return reply, site.closed_after_s(connection, KEEPALIVE_WATCH_S)


def _can_bind(port: int) -> bool:
    """Whether another socket can bind the same address. Linux allows it if all sockets set
    SO_REUSEPORT."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            other.bind((HOST, port))
        except OSError:
            return False
        return True


def _with_timeout(
    name: str, observe: Callable[[Site], LaunchObservations], typical_s: float
) -> SettingLaunch:
    """A launch that checks for workers killed by `timeout`. No worker reports while the machine is
    stalled, so Gunicorn may kill one wrongly."""

    def observe_unstalled(site: Site) -> LaunchObservations:
        return site.stalls.repeat(partial(observe, site), lambda outcome: not outcome["killed"])

    return SettingLaunch(name, fixed(timeout=TIMEOUT_S, keepalive=2), observe_unstalled, typical_s)


def _observe_long_request(path: str, site: Site) -> LaunchObservations:
    site.wait(SETTLE_S)
    kills_before = site.timeout_kills()
    reply = site.ask(f"/{path}?s={REQUEST_S:g}")
    return {"took_s": reply.took_s, "killed": site.timeout_kills() > kills_before}


def _observe_silence(site: Site) -> LaunchObservations:
    site.wait(SETTLE_S)
    kills_before = site.timeout_kills()
    with site.connect() as connection:
        closed_s = site.closed_after_s(connection, SILENCE_S)
    killed_s = site.wait_until(lambda: site.timeout_kills() > kills_before, 0.5)
    return {"closed_s": closed_s, "killed": killed_s is not None}


def _observe_stop(site: Site) -> LaunchObservations:
    (request,) = site.start_requests([f"/wait?s={ONGOING_S:g}"])
    site.wait_until_accepted()
    site.wait(0.5)
    stop_s = site.stalls.repeat(site.stop, attempts=1)
    request.result()
    return {"stop_s": stop_s}


SOCKETS = SettingLaunch("sockets", _socket_settings, _observe_sockets, 4.0)
TIMEOUT_WAIT = _with_timeout("timeout_wait", partial(_observe_long_request, "wait"), 6.0)
TIMEOUT_BLOCK = _with_timeout("timeout_block", partial(_observe_long_request, "block"), 6.0)
SILENT = _with_timeout("silent", _observe_silence, 7.0)
STOP = SettingLaunch("stop", fixed(graceful_timeout=GRACE_S), _observe_stop, 3.0)


BACKLOG_BEFORE, BACKLOG_AFTER = 7, 9
APP_FILE, EXTRA_FILE = "inspected.py", "extra.txt"
RELOAD_WATCH_S = 8.0  # far longer than Gunicorn's interval between checks of its files
HEAD_START_S = 0.3
SILENT_CLIENTS, SILENT_S, RESPONSE_WAIT_S = 3, 9.0, 5.0


def _observe_reload(site: Site) -> LaunchObservations:
    """Change the backlog in the file and send SIGHUP; Gunicorn then rereads the file."""
    queue_before, pids, arbiter = _queue(site), set(site.pids), site.process.pid
    assert arbiter is not None
    file = site.directory / "gunicorn.conf.py"
    text = file.read_text()
    file.write_text(text.replace(f"backlog = {BACKLOG_BEFORE}", f"backlog = {BACKLOG_AFTER}"))
    os.kill(arbiter, signal.SIGHUP)
    replaced_s = site.replaced_s(pids, EVENT_TIMEOUT_S)
    site.ask("/about").about  # noqa: B018 - raises if the app does not respond
    return {"before": queue_before, "after": _queue(site), "replaced_s": replaced_s}


def _queue(site: Site) -> int:
    """The kernel's limit of the accept queue."""
    return next(listener.send_queue for listener in site.listeners())


def _observe_request_under_way(site: Site) -> LaunchObservations:
    """Other requests reach max_requests during a long one, which is cut off if the grace period
    ends first. Whether it ends first is uncertain if the machine stalls."""
    return site.stalls.repeat(partial(_request_under_way, site), attempts=1)


def _request_under_way(site: Site) -> LaunchObservations:
    pids = set(site.pids)
    (long_request,) = site.start_requests([f"/wait?s={ONGOING_S:g}"])
    site.wait_until_accepted()
    site.wait(HEAD_START_S)
    short_requests = site.start_requests(["/about"] * RECYCLE_LIMIT)
    reply = long_request.result()
    replaced_s = site.replaced_s(pids, EVENT_TIMEOUT_S)
    wait(short_requests)
    return {
        "status": reply.status,
        "took_s": reply.took_s,
        "replaced": replaced_s is not None,
    }


def _observe_crowd(site: Site) -> LaunchObservations:
    """Silent clients connect, send nothing and leave. Then another client sends a request."""
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT_CLIENTS):
            stack.enter_context(site.connect())
        site.wait(SILENT_S)
    reply = site.stalls.repeat(
        lambda: site.ask("/about", timeout_s=RESPONSE_WAIT_S), lambda reply: reply.status == 200
    )
    return {"status": reply.status}


def _reload_settings(site: Site) -> Mapping[str, object]:
    """The app is a copy in the server's directory, so that no other server sees it change."""
    shutil.copy(site.code / APP_FILE, site.directory / APP_FILE)
    (site.directory / EXTRA_FILE).touch()
    return {
        "reload": True,
        "reload_extra_files": [str(site.directory / EXTRA_FILE)],
        "graceful_timeout": GRACE_S,
    }


def _observe_changes(site: Site) -> LaunchObservations:
    """Change the app's file, then an extra file. Raises InconclusiveLaunch if workers are replaced
    without a change."""
    site.ask("/about").about  # noqa: B018 - raises if the app does not respond
    pids = set(site.pids)
    site.wait(SETTLE_S)  # until Gunicorn has recorded when each file was last changed
    if set(site.pids) != pids:
        raise InconclusiveLaunch("a worker was replaced although no file had changed")
    return {"code_s": _replaced_s(site, APP_FILE), "extra_s": _replaced_s(site, EXTRA_FILE)}


def _replaced_s(site: Site, name: str) -> float | None:
    """Seconds from a change of this file until all workers are replaced; None if they are not."""
    site.wait(SETTLE_S)  # until the new worker has also recorded when the files were last changed
    pids = set(site.pids)
    os.utime(site.directory / name)
    return site.replaced_s(pids, RELOAD_WATCH_S)


TOUCHED = SettingLaunch("touched", _reload_settings, _observe_changes, 7.0)
RELOAD = SettingLaunch(
    "reload", fixed(backlog=BACKLOG_BEFORE, graceful_timeout=GRACE_S), _observe_reload, 1.0
)
UNDER_WAY = SettingLaunch(
    "under_way",
    fixed(max_requests=RECYCLE_LIMIT, graceful_timeout=GRACE_S),
    _observe_request_under_way,
    5.0,
)
CROWDED = SettingLaunch(
    "crowded", fixed(worker_connections=SILENT_CLIENTS, keepalive=2), _observe_crowd, 9.0
)


# The longest first: both threads then end at about the same time
LAUNCHES: Mapping[str, SettingLaunch] = {
    launch.name: launch
    for launch in (
        SILENT, CROWDED, SOCKETS, TIMEOUT_WAIT, TIMEOUT_BLOCK, TOUCHED, COMMON, RECYCLING,
        UNDER_WAY, STOP, SLOTS, THREADED, PRELOAD, LINGERING, RELOAD,
    )
}  # fmt: skip
