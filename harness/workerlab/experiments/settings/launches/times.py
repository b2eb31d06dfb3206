"""Launches that take time: connections that stay open, workers that do not report, stops."""

import socket
import time
from collections.abc import Mapping
from functools import partial

from workerlab.experiments.settings.launches.launch import Seen, SettingLaunch
from workerlab.experiments.settings.site import FAR, HOST, AppReply, Site, exchange
from workerlab.server.services import free_port

KEEPALIVE_S, WATCHED_S = 3, 8.0
TIMEOUT_S, TOO_LONG_S = 2, 6.0
SILENT_S = 9.0
GRACE_S, UNDER_WAY_S = 2, 5.0
# Until a worker's first heartbeat Gunicorn compares with the wall clock, so a fresh worker may time
# out early
SETTLED_S = 1.5


def _sockets(_site: Site) -> Mapping[str, object]:
    return {
        "bind": f"{HOST}:{free_port()}",  # with :0 each worker would get a port of its own
        "workers": 2,
        "reuse_port": True,
        "proxy_protocol": True,
        "keepalive": KEEPALIVE_S,
    }


def _look_at_sockets(site: Site) -> Seen:
    # Workers create their sockets before they load the app
    site.surely(lambda: _loaded(site) >= 2, "each worker loads the app")
    site.until(lambda: len(site.listeners()) >= 2, 1.0)
    proxied = site.ask("/about", first=f"PROXY TCP4 {FAR} {HOST} 1000 2000\r\n")
    answer, closed_s = site.undisturbed(partial(_kept_open, site), _is_open)
    if answer.status != 200:
        raise ValueError(f"the app did not answer: {answer.error or answer.status}")
    return {
        "listeners": len(site.listeners()),
        "shared": _binds(site.port),
        "proxied": proxied.refusal,
        "proxied_address": proxied.about["address"] if proxied.status == 200 else None,
        "answered": answer.status,
        "says_close": answer.closed,
        "closed_s": closed_s,
    }


def _loaded(site: Site) -> int:
    """Number of workers that have loaded the app."""
    return sum(name == "post_worker_init" for name, _ in site.called())


def _kept_open(site: Site) -> tuple[AppReply, float | None]:
    """The answer to a request, and the time until the server closed its connection."""
    with site.connect() as connection:
        answer = exchange(connection, "/about")
        return answer, site.closes_within(connection, WATCHED_S)


def _is_open(outcome: tuple[AppReply, float | None]) -> bool:
    """Whether it was still open at the end, which holds even if the machine stood still."""
    answer, closed_s = outcome
    return answer.status == 200 and closed_s is None


def _binds(port: int) -> bool:
    """Whether another socket can bind the same address: Linux requires that all have asked for
    it."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            other.bind((HOST, port))
        except OSError:
            return False
        return True


def _short_timeout(_site: Site) -> Mapping[str, object]:
    return {"timeout": TIMEOUT_S, "keepalive": 2}


def _looks_at(path: str) -> SettingLaunch:
    def look(site: Site) -> Seen:
        # No worker reports while the machine stands still, so Gunicorn may kill one wrongly
        return site.undisturbed(partial(_too_long, site, path), _is_not_killed)

    return SettingLaunch(f"timeout_{path}", _short_timeout, look, 9.0)


def _too_long(site: Site, path: str) -> Seen:
    site.wait(SETTLED_S)
    before = site.killed()
    answer = site.ask(f"/{path}?s={TOO_LONG_S:g}")
    return {
        "status": answer.status,
        "took_s": answer.took_s,
        "killed": site.killed() > before,
    }


def _is_not_killed(observed: Seen) -> bool:
    return not observed["killed"]


def _look_at_silence(site: Site) -> Seen:
    return site.undisturbed(partial(_silence, site), _is_not_killed)


def _silence(site: Site) -> Seen:
    site.wait(SETTLED_S)
    before, began = site.killed(), time.monotonic()
    with site.connect() as connection:
        closed_s = site.closes_within(connection, SILENT_S)
    site.until(lambda: site.killed() > before, 0.5)
    return {
        "closed_s": closed_s,
        "killed": site.killed() > before,
        "watched_s": time.monotonic() - began,
    }


def _short_grace(_site: Site) -> Mapping[str, object]:
    return {"graceful_timeout": GRACE_S}


def _look_at_stop(site: Site) -> Seen:
    under_way = site.ask_at_once([f"/wait?s={UNDER_WAY_S:g}"])
    site.begun()
    site.wait(0.5)
    stop_s = site.undisturbed(site.stop, tries=1)
    (answer,) = under_way.answers()
    return {"stop_s": stop_s, "status": answer.status}


SOCKETS = SettingLaunch("sockets", _sockets, _look_at_sockets, 10.0)
TIMEOUT_WAIT, TIMEOUT_BLOCK = _looks_at("wait"), _looks_at("block")
SILENT = SettingLaunch("silent", _short_timeout, _look_at_silence, 11.0)
STOP = SettingLaunch("stop", _short_grace, _look_at_stop, 6.0)
