"""Two launches of a few seconds each, testing sockets, processes, limits, headers, logs and hooks.

A launch is a Gunicorn file and the experiments on a server started from it.
"""

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab.experiments.settings.site import (
    EVENT_TIMEOUT_S,
    FORWARDED_IP,
    HOST,
    TRUSTED_IP,
    InconclusiveLaunch,
    Site,
)
from workerlab.server.preflight import sysctl

# Observations, as JSON; the launch chooses the names
LaunchObservations = dict[str, Any]


class SettingLaunch(Struct, frozen=True):
    """`settings(site)`: further settings of its file; `observe(site)`: runs the experiments and
    returns the observations; `typical_s`: typical duration; `threads`: per gthread worker (other
    classes have one); `quick`: included in --quick."""

    name: str
    settings: Callable[[Site], Mapping[str, object]]
    observe: Callable[[Site], LaunchObservations]
    typical_s: float
    threads: int = 2
    quick: bool = False


def fixed(**settings: object) -> Callable[[Site], Mapping[str, object]]:
    """Settings of a launch that are the same for every site."""
    return lambda _: settings


BACKLOG, UMASK, WORKERS = 7, 0o027, 2
LINE_LIMIT, FIELD_COUNT_LIMIT, FIELD_SIZE_LIMIT = 300, 20, 400
LONG_LINE_BYTES, MANY_FIELDS, LONG_FIELD_BYTES = 600, 40, 800
FORMAT = "lab %(m)s %(s)s"
EXPECTED_LOG_LINE = "lab GET 200"  # a line in that format
REQUEST_LIMIT = 1_000_000  # and its jitter: so high that two workers rarely draw the same limit
SOCKET = "lab.sock"  # relative, since socket paths must be short
HUGE_BACKLOG = 1_000_000
IDLE_GRACE_S = 3  # of a stop with no request in progress
PAIR_S = 0.4  # wait of each of two simultaneous requests
SERIAL_RATIO = 1.6  # times PAIR_S; if the requests take longer, they were served one by one


def _settings(site: Site) -> Mapping[str, object]:
    app_directory, tmp_directory = site.directory / "app", site.directory / "worker_tmp"
    app_directory.mkdir()
    tmp_directory.mkdir()
    return {
        "bind": [f"{HOST}:0", f"unix:{SOCKET}"],
        "workers": WORKERS,
        "backlog": BACKLOG,
        "chdir": str(app_directory),
        "umask": UMASK,
        "worker_tmp_dir": str(tmp_directory),
        "raw_env": ["LAB_WORD=seen"],
        "limit_request_line": LINE_LIMIT,
        "limit_request_fields": FIELD_COUNT_LIMIT,
        "limit_request_field_size": FIELD_SIZE_LIMIT,
        "header_map": "refuse",
        "forwarded_allow_ips": TRUSTED_IP,
        "secure_scheme_headers": {"X-FORWARDED-PROTO": "https", "X-LAB-SCHEME": "secure"},
        "accesslog": str(site.directory / "access.log"),
        "access_log_format": FORMAT,
        "statsd_host": f"{HOST}:{site.statsd.getsockname()[1]}",
        "max_requests": REQUEST_LIMIT,
        "max_requests_jitter": REQUEST_LIMIT,
        "graceful_timeout": IDLE_GRACE_S,
    }


def _observe_common(site: Site) -> LaunchObservations:
    site.wait_until(lambda: len(site.pids) >= WORKERS, EVENT_TIMEOUT_S)
    about = site.ask("/about").about
    return {  # in this order: the log and the metrics cover the requests made before them
        "queue": [listener.send_queue for listener in site.listeners()],
        "workers": len(site.pids),
        "directory": Path(about["directory"]).name,
        "word": about.get("word"),
        "tmp": _has_open_file(site.pids[0], site.directory / "worker_tmp"),
        "socket_mode": _socket_mode(site.directory),
        **_limits(site),
        **_proxy(site),
        "sendfiles": _sendfiles(site),
        "log": (site.directory / "access.log").read_text().splitlines()[:3],
        "metrics": _metrics(site),
        "limits": _limits_drawn(site),
        "hooks": _hooks(site),
    }


def _limits_drawn(site: Site) -> list[int]:
    """The workers' request limits; each reports its own once it has loaded the app."""

    def limits() -> list[int]:
        return [int(limit) for _, limit in site.called_hooks() if limit != "None"]

    site.require(lambda: len(limits()) >= WORKERS, "not every worker loaded the app")
    return sorted(set(limits()))


def _metrics(site: Site) -> list[str]:
    """The metrics received, once the arbiter has sent its own."""
    names: set[str] = set()

    def is_complete() -> bool:
        names.update(site.new_metrics())
        return "gunicorn.workers" in names

    site.wait_until(is_complete, EVENT_TIMEOUT_S)
    return sorted(names)


def _has_open_file(pid: int, directory: Path) -> bool:
    """Whether the process has a file in that directory open, even a deleted one."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed by now
            if os.readlink(link).startswith(f"{directory}/"):
                return True
    return False


def _socket_mode(directory: Path) -> int | None:
    path = next(directory.rglob(SOCKET), None)
    return None if path is None else stat.S_IMODE(path.stat().st_mode)


def _limits(site: Site) -> LaunchObservations:
    """Status of requests beyond each limit, and of one with an ambiguous header."""
    headers = [f"X-Lab-{number}: 1" for number in range(MANY_FIELDS)]
    return {
        "line": site.ask(f"/about?{'x' * LONG_LINE_BYTES}").conclusive_status,
        "fields": site.ask("/about", *headers).conclusive_status,
        "field_size": site.ask("/about", f"X-Lab: {'x' * LONG_FIELD_BYTES}").conclusive_status,
        "underscore": site.ask("/about", "X_Lab: 1").conclusive_status,
    }


def _proxy(site: Site) -> LaunchObservations:
    """The scheme and client address that the app sees if a trusted or untrusted client sends
    them."""
    by_source: LaunchObservations = {}
    for client, source in (("trusted", TRUSTED_IP), ("stranger", HOST)):
        headers = ("X-Forwarded-Proto: https", f"X-Forwarded-For: {FORWARDED_IP}")
        about = site.ask("/about", *headers, source=source).about
        by_source[client] = {name: about.get(name) for name in ("scheme", "address")}
    about = site.ask("/about", "X-Lab-Scheme: secure", source=TRUSTED_IP).about
    return {**by_source, "own_header": about.get("scheme")}


def _sendfiles(site: Site) -> int:
    """The most calls of os.sendfile in any worker."""
    requests = 4 * WORKERS
    for _ in range(requests):
        site.ask("/file")
    return max(int(site.ask("/about").about["sendfiles"]) for _ in range(requests))


def _hooks(site: Site) -> list[str]:
    """The hooks called during the life of a server, including those of workers that receive SIGINT
    or SIGABRT."""

    def was_called(name: str) -> bool:
        return any(line[0] == name for line in site.called_hooks())

    def called_or_ended(hook: str, worker: int) -> bool:
        return was_called(hook) or worker not in site.pids

    def has_new_worker(pids_before: set[int]) -> bool:
        return bool(set(site.pids) - pids_before)

    signalled: set[int] = set()
    for signum, hook in ((signal.SIGINT, "worker_int"), (signal.SIGABRT, "worker_abort")):
        pids_before = set(site.pids)
        # The oldest one: a worker that is booting or stopping ends without its hook
        worker = next(pid for pid in site.pids if pid not in signalled)
        signalled.add(worker)
        os.kill(worker, signum)
        site.require(partial(called_or_ended, hook, worker), f"no worker ended by {signum.name}")
        site.require(partial(has_new_worker, pids_before), "no worker was replaced")
    if site.stop() is None and not was_called("on_exit"):
        raise InconclusiveLaunch("the server did not end in time")
    return sorted({line[0] for line in site.called_hooks()})


def _observe_preload(site: Site) -> LaunchObservations:
    about = site.ask("/about").about

    def slower_of_two() -> float:
        requests = site.start_requests([f"/wait?s={PAIR_S}"] * 2)
        return max(request.result().took_s for request in requests)

    both_s = site.stalls.repeat(slower_of_two)
    site.ask("/file")
    return {
        "imported_by_arbiter": about.get("imported_by") == site.process.pid,
        "queue": [listener.send_queue for listener in site.listeners()],
        "unpatched": about.get("unpatched"),
        "most_queue": int(sysctl("net.core.somaxconn") or ""),
        "both_s": both_s,
        "sendfiles": site.ask("/about").about.get("sendfiles"),
        "stop_s": site.stalls.repeat(
            site.stop,
            # A stop well before its grace ends is certain even if the machine stalls
            lambda stop_s: stop_s is not None and stop_s < IDLE_GRACE_S - 1,
            attempts=1,
        ),
    }


COMMON = SettingLaunch("common", _settings, _observe_common, 2.0, quick=True)
_WITH_PRELOAD = fixed(
    preload_app=True, backlog=HUGE_BACKLOG, sendfile=False, graceful_timeout=IDLE_GRACE_S
)
PRELOAD = SettingLaunch("preload", _WITH_PRELOAD, _observe_preload, 1.5, quick=True)
