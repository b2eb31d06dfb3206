"""Launches in which Gunicorn rereads its file, replaces a worker while a request is in progress, or
meets as many silent clients as it accepts."""

import contextlib
import os
import signal
from collections.abc import Mapping
from functools import partial

from workerlab.experiments.settings.launches.launch import Seen, SettingLaunch
from workerlab.experiments.settings.site import LONG_S, Site

BACKLOG, BACKLOG_AFTER = 7, 9
REPLACED_S = LONG_S  # limit for replacing workers
LIMIT, UNDER_WAY_S, GRACE_S, BEGUN_S = 4, 5.0, 2, 0.3
CROWD, CROWD_S, PATIENCE_S = 3, 9.0, 5.0


def _small_backlog(_site: Site) -> Mapping[str, object]:
    return {"backlog": BACKLOG, "graceful_timeout": GRACE_S}


def _look_at_reload(site: Site) -> Seen:
    """Changes the backlog in the file and sends HUP, so that Gunicorn rereads it."""
    before, pids, arbiter = _queue(site), set(site.pids), site.process.pid
    assert arbiter is not None
    file = site.directory / "gunicorn.conf.py"
    text = file.read_text()
    file.write_text(text.replace(f"backlog = {BACKLOG}", f"backlog = {BACKLOG_AFTER}"))
    os.kill(arbiter, signal.SIGHUP)
    replaced_s = site.until(lambda: site.pids and not pids & set(site.pids), REPLACED_S)
    site.ask("/about").about  # noqa: B018 - raises where nobody answers
    return {"before": before, "after": _queue(site), "replaced_s": replaced_s}


def _queue(site: Site) -> int:
    """The kernel's limit of the accept queue."""
    return next(listener.send_queue for listener in site.listeners())


def _recycled(_site: Site) -> Mapping[str, object]:
    return {"max_requests": LIMIT, "graceful_timeout": GRACE_S}


def _look_at_request_under_way(site: Site) -> Seen:
    """Other requests reach the worker's limit during a long one. It is cut only if the grace ends
    first, which is uncertain if the machine stands still."""
    return site.undisturbed(partial(_request_under_way, site), tries=1)


def _request_under_way(site: Site) -> Seen:
    pids = set(site.pids)
    under_way = site.ask_at_once([f"/wait?s={UNDER_WAY_S:g}"])
    site.begun()
    site.wait(BEGUN_S)
    others = site.ask_at_once(["/about"] * LIMIT)
    (answer,) = under_way.answers()
    replaced_s = site.until(lambda: site.pids and not pids & set(site.pids), REPLACED_S)
    others.answers()
    return {
        "status": answer.status,
        "took_s": answer.took_s,
        "replaced": replaced_s is not None,
    }


def _few_connections(_site: Site) -> Mapping[str, object]:
    return {"worker_connections": CROWD, "keepalive": 2}


def _look_at_crowd(site: Site) -> Seen:
    """CROWD clients connect, send nothing and leave; then another one sends a request."""
    with contextlib.ExitStack() as stack:
        for _ in range(CROWD):
            stack.enter_context(site.connect())
        site.wait(CROWD_S)
    answer = site.undisturbed(
        lambda: site.ask("/about", timeout_s=PATIENCE_S), lambda answer: answer.status == 200
    )
    return {"status": answer.status, "took_s": answer.took_s}


RELOAD = SettingLaunch("reload", _small_backlog, _look_at_reload, 2.0)
UNDER_WAY = SettingLaunch("under_way", _recycled, _look_at_request_under_way, 7.0)
CROWDED = SettingLaunch("crowded", _few_connections, _look_at_crowd, 11.0)
