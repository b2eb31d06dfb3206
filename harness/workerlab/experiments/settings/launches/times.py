"""What takes its time: connections that stay open, workers that do not report, stops."""

import socket
import time
from collections.abc import Mapping

from workerlab.experiments.settings.launches.launch import Launch, Seen
from workerlab.experiments.settings.site import FAR, HOST, Site, closes_within, exchange
from workerlab.server.services import free_port

KEEPALIVE_S, WATCHED_S = 3, 8.0
TIMEOUT_S, TOO_LONG_S = 2, 6.0
SILENT_S = 9.0
GRACE_S, UNDER_WAY_S = 2, 5.0
# The heartbeat is compared with the wall clock until a worker's first one: a timeout of a worker
# that has just started may be seen early
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
    site.until(lambda: len(site.pids) >= 2, WATCHED_S)
    site.until(lambda: len(site.listeners()) >= 2, 1.0)
    told = site.ask("/about", first=f"PROXY TCP4 {FAR} {HOST} 1000 2000\r\n")
    with site.connect() as connection:
        answer = exchange(connection, "/about")
        closed_s = closes_within(connection, WATCHED_S)
    if answer.status != 200:
        raise ValueError(f"the app did not answer: {answer.error or answer.status}")
    return {
        "listeners": len(site.listeners()),
        "shared": _binds(site.port),
        "proxied": told.status,
        "proxied_address": told.about["address"] if told.status == 200 else None,
        "answered": answer.status,
        "says_close": answer.closed,
        "closed_s": closed_s,
    }


def _binds(port: int) -> bool:
    """Whether another socket may have the same address: Linux allows that where all have asked."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            other.bind((HOST, port))
        except OSError:
            return False
        return True


def _short_timeout(_site: Site) -> Mapping[str, object]:
    return {"timeout": TIMEOUT_S, "keepalive": 2}


def _looks_at(path: str) -> Launch:
    def look(site: Site) -> Seen:
        site.wait(SETTLED_S)
        before = site.killed()
        answer = site.ask(f"/{path}?s={TOO_LONG_S:g}")
        return {
            "status": answer.status,
            "took_s": answer.took_s,
            "killed": site.killed() > before,
        }

    return Launch(f"timeout_{path}", _short_timeout, look, 9.0)


def _look_at_silence(site: Site) -> Seen:
    site.wait(SETTLED_S)
    before, began = site.killed(), time.monotonic()
    with site.connect() as connection:
        closed_s = closes_within(connection, SILENT_S)
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
    site.wait(0.5)
    stop_s = site.stop()
    (answer,) = under_way.answers()
    return {"stop_s": stop_s, "status": answer.status}


SOCKETS = Launch("sockets", _sockets, _look_at_sockets, 10.0)
TIMEOUT_WAIT, TIMEOUT_BLOCK = _looks_at("wait"), _looks_at("block")
SILENT = Launch("silent", _short_timeout, _look_at_silence, 11.0)
STOP = Launch("stop", _short_grace, _look_at_stop, 6.0)
