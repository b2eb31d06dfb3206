"""Launches that take time: connections that stay open, workers that do not report, stops, a reload
of the file, a worker replaced while a request is in progress, and as many silent clients as a
worker accepts."""

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from functools import partial

from workerlab.experiments.settings.launches.common import Seen, SettingLaunch, fixed
from workerlab.experiments.settings.site import (
    EVENT_TIMEOUT_S,
    FORWARDED_IP,
    HOST,
    AppReply,
    InconclusiveLaunch,
    Site,
    exchange,
)
from workerlab.server.services import free_port

KEEPALIVE_S, WATCHED_S = 3, 8.0
TIMEOUT_S, TOO_LONG_S = 2, 6.0
SILENT_S = 9.0
GRACE_S, UNDER_WAY_S = 2, 5.0
# Before a worker's first heartbeat, Gunicorn compares with the wall clock, and a fresh worker may
# time out early
SETTLED_S = 1.5


def _sockets(_site: Site) -> Mapping[str, object]:
    return {
        "bind": f"{HOST}:{free_port()}",  # with :0, each worker would get its own port
        "workers": 2,
        "reuse_port": True,
        "proxy_protocol": True,
        "keepalive": KEEPALIVE_S,
    }


def _look_at_sockets(site: Site) -> Seen:
    # Workers create their sockets before they load the app
    site.require(lambda: _loaded(site) >= 2, "not every worker loaded the app")
    site.wait_until(lambda: len(site.listeners()) >= 2, 1.0)
    proxied = site.ask("/about", prefix=f"PROXY TCP4 {FORWARDED_IP} {HOST} 1000 2000\r\n")
    answer, closed_s = site.repeat_if_stalled(partial(_kept_open, site), _is_open)
    if answer.status != 200:
        raise InconclusiveLaunch(f"expected status 200, got {answer.error or answer.status}")
    return {
        "listeners": len(site.listeners()),
        "shared": _binds(site.port),
        "proxied": proxied.conclusive_status,
        "proxied_address": proxied.about["address"] if proxied.status == 200 else None,
        "answered": answer.status,
        "says_close": answer.closes,
        "closed_s": closed_s,
    }


def _loaded(site: Site) -> int:
    """Number of workers that have loaded the app."""
    return sum(name == "post_worker_init" for name, _ in site.called_hooks())


def _kept_open(site: Site) -> tuple[AppReply, float | None]:
    """The answer to a request, and the time until the server closed its connection."""
    with site.connect() as connection:
        answer = exchange(connection, "/about")
        return answer, site.closed_after_s(connection, WATCHED_S)


def _is_open(outcome: tuple[AppReply, float | None]) -> bool:
    """Whether the connection stayed open, which is certain even if the machine stalled."""
    answer, closed_s = outcome
    return answer.status == 200 and closed_s is None


def _binds(port: int) -> bool:
    """Whether another socket can bind the same address. Linux allows it if all of them set
    SO_REUSEPORT."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            other.bind((HOST, port))
        except OSError:
            return False
        return True


def _looks_at(path: str) -> SettingLaunch:
    def look(site: Site) -> Seen:
        # No worker reports while the machine is stalled, so Gunicorn may kill one wrongly
        return site.repeat_if_stalled(partial(_too_long, site, path), _is_not_killed)

    return SettingLaunch(f"timeout_{path}", fixed(timeout=TIMEOUT_S, keepalive=2), look, 6.0)


def _too_long(site: Site, path: str) -> Seen:
    site.wait(SETTLED_S)
    before = site.timeout_kills()
    answer = site.ask(f"/{path}?s={TOO_LONG_S:g}")
    return {
        "status": answer.status,
        "took_s": answer.took_s,
        "killed": site.timeout_kills() > before,
    }


def _is_not_killed(observed: Seen) -> bool:
    return not observed["killed"]


def _look_at_silence(site: Site) -> Seen:
    return site.repeat_if_stalled(partial(_silence, site), _is_not_killed)


def _silence(site: Site) -> Seen:
    site.wait(SETTLED_S)
    before, began = site.timeout_kills(), time.monotonic()
    with site.connect() as connection:
        closed_s = site.closed_after_s(connection, SILENT_S)
    site.wait_until(lambda: site.timeout_kills() > before, 0.5)
    return {
        "closed_s": closed_s,
        "killed": site.timeout_kills() > before,
        "watched_s": time.monotonic() - began,
    }


def _look_at_stop(site: Site) -> Seen:
    under_way = site.start_requests([f"/wait?s={UNDER_WAY_S:g}"])
    site.wait_until_accepted()
    site.wait(0.5)
    stop_s = site.repeat_if_stalled(site.stop, attempts=1)
    (answer,) = under_way.answers()
    return {"stop_s": stop_s, "status": answer.status}


SOCKETS = SettingLaunch("sockets", _sockets, _look_at_sockets, 4.0)
TIMEOUT_WAIT, TIMEOUT_BLOCK = _looks_at("wait"), _looks_at("block")
SILENT = SettingLaunch("silent", fixed(timeout=TIMEOUT_S, keepalive=2), _look_at_silence, 7.0)
STOP = SettingLaunch("stop", fixed(graceful_timeout=GRACE_S), _look_at_stop, 3.0)


BACKLOG, BACKLOG_AFTER = 7, 9
APP_FILE, EXTRA_FILE = "inspected.py", "extra.txt"
CHANGED_S = 8.0  # far longer than Gunicorn takes between two looks at its files
REPLACED_S = EVENT_TIMEOUT_S  # limit for replacing workers
LIMIT, BEGUN_S = 4, 0.3
CROWD, CROWD_S, PATIENCE_S = 3, 9.0, 5.0


def _look_at_reload(site: Site) -> Seen:
    """Change the backlog in the file and send HUP; Gunicorn then rereads the file."""
    before, pids, arbiter = _queue(site), set(site.pids), site.process.pid
    assert arbiter is not None
    file = site.directory / "gunicorn.conf.py"
    text = file.read_text()
    file.write_text(text.replace(f"backlog = {BACKLOG}", f"backlog = {BACKLOG_AFTER}"))
    os.kill(arbiter, signal.SIGHUP)
    replaced_s = site.wait_until(lambda: site.pids and not pids & set(site.pids), REPLACED_S)
    site.ask("/about").about  # noqa: B018 - raises if the app does not answer
    return {"before": before, "after": _queue(site), "replaced_s": replaced_s}


def _queue(site: Site) -> int:
    """The kernel's limit of the accept queue."""
    return next(listener.send_queue for listener in site.listeners())


def _look_at_request_under_way(site: Site) -> Seen:
    """Other requests reach max_requests during a long one, which is cut off if the grace ends
    first. Whether it ends first is uncertain if the machine stalls."""
    return site.repeat_if_stalled(partial(_request_under_way, site), attempts=1)


def _request_under_way(site: Site) -> Seen:
    pids = set(site.pids)
    under_way = site.start_requests([f"/wait?s={UNDER_WAY_S:g}"])
    site.wait_until_accepted()
    site.wait(BEGUN_S)
    others = site.start_requests(["/about"] * LIMIT)
    (answer,) = under_way.answers()
    replaced_s = site.wait_until(lambda: site.pids and not pids & set(site.pids), REPLACED_S)
    others.answers()
    return {
        "status": answer.status,
        "took_s": answer.took_s,
        "replaced": replaced_s is not None,
    }


def _look_at_crowd(site: Site) -> Seen:
    """CROWD clients connect, send nothing and leave. Then another one sends a request."""
    with contextlib.ExitStack() as stack:
        for _ in range(CROWD):
            stack.enter_context(site.connect())
        site.wait(CROWD_S)
    answer = site.repeat_if_stalled(
        lambda: site.ask("/about", timeout_s=PATIENCE_S), lambda answer: answer.status == 200
    )
    return {"status": answer.status, "took_s": answer.took_s}


def _reloads(site: Site) -> Mapping[str, object]:
    """The app is a copy in the server's directory, so that no other server sees it change."""
    shutil.copy(site.code / APP_FILE, site.directory / APP_FILE)
    (site.directory / EXTRA_FILE).touch()
    return {
        "reload": True,
        "reload_extra_files": [str(site.directory / EXTRA_FILE)],
        "graceful_timeout": GRACE_S,
    }


def _look_at_changes(site: Site) -> Seen:
    """Change the app's file, then an extra file. Raises InconclusiveLaunch if workers are replaced
    without a change."""
    site.ask("/about").about  # noqa: B018 - raises if the app does not answer
    pids = set(site.pids)
    site.wait(SETTLED_S)  # Gunicorn notes when each file was last changed
    if set(site.pids) != pids:
        raise InconclusiveLaunch("a worker was replaced although no file had changed")
    return {"code_s": _replaced_s(site, APP_FILE), "extra_s": _replaced_s(site, EXTRA_FILE)}


def _replaced_s(site: Site, name: str) -> float | None:
    """Seconds from a change of this file until all workers are replaced; None if they are not."""
    site.wait(SETTLED_S)  # the new worker notes it as well
    pids = set(site.pids)
    os.utime(site.directory / name)
    return site.wait_until(lambda: site.pids and not pids & set(site.pids), CHANGED_S)


TOUCHED = SettingLaunch("touched", _reloads, _look_at_changes, 7.0)
RELOAD = SettingLaunch(
    "reload", fixed(backlog=BACKLOG, graceful_timeout=GRACE_S), _look_at_reload, 1.0
)
UNDER_WAY = SettingLaunch(
    "under_way",
    fixed(max_requests=LIMIT, graceful_timeout=GRACE_S),
    _look_at_request_under_way,
    5.0,
)
CROWDED = SettingLaunch(
    "crowded", fixed(worker_connections=CROWD, keepalive=2), _look_at_crowd, 9.0
)
