"""What a worker class does with each setting, from what the launches saw. Pure.

    honoured    it does what Gunicorn's documentation says
    ignored     another value changes nothing; where time is the question, not within N seconds
    clamped     only up to a limit
    changes     it does something, but not that, or more than that

An effect is a code with numbers; a launch that is missing proves nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from workerlab.experiments.settings.effect import Effect, Evidence, Setting
from workerlab.experiments.settings.happenings import HAPPENINGS
from workerlab.experiments.settings.launches import common, slots, times
from workerlab.experiments.settings.site import FAR

SOON_S = 1.0  # what ends at once
LATE_S = 1.75  # that a timer of a class may be off: its own grace, a look once a second


def _honoured(code: str, honoured: bool, **values: Any) -> Effect:
    """Or ignored."""
    if honoured:
        return Effect("honoured", code, values)
    return Effect("ignored", f"{code}.ignored", values)


def _backlog(seen: Evidence) -> Effect:
    queue, huge = seen["common"]["queue"], seen["preload"]["queue"]
    most = seen["preload"]["most_queue"]
    values = {"asked": common.BACKLOG, "queue": queue[0], "huge": common.HUGE_BACKLOG}
    values |= {"huge_queue": huge[0], "most": most}
    if queue[0] != common.BACKLOG:
        return Effect("ignored", "backlog.ignored", values)
    return Effect("clamped" if huge[0] == most else "honoured", "backlog", values)


def _workers(seen: Evidence) -> Effect:
    count = seen["common"]["workers"]
    return _honoured("workers", count == common.WORKERS, asked=common.WORKERS, count=count)


def _chdir(seen: Evidence) -> Effect:
    return _honoured("chdir", seen["common"]["directory"] == "app")


def _raw_env(seen: Evidence) -> Effect:
    return _honoured("raw_env", seen["common"]["word"] == "seen")


def _worker_tmp_dir(seen: Evidence) -> Effect:
    return _honoured("worker_tmp_dir", seen["common"]["tmp"])


def _umask(seen: Evidence) -> Effect:
    mode = seen["common"]["socket_mode"]
    mode_text = None if mode is None else f"{mode:04o}"
    asked = f"{common.UMASK:04o}"
    return _honoured("umask", mode == 0o777 & ~common.UMASK, asked=asked, mode=mode_text)


def _limit(name: str, asked: int, sent: int) -> Callable[[Evidence], Effect]:
    def effect(seen: Evidence) -> Effect:
        status = seen["common"][name]
        values = {"asked": asked, "sent": sent, "status": status}
        return _honoured(f"limit.{name}", status is None or 400 <= status < 500, **values)

    return effect


def _header_map(seen: Evidence) -> Effect:
    status = seen["common"]["underscore"]
    return _honoured("header_map", status is None or 400 <= status < 500, status=status)


def _forwarded(seen: Evidence) -> Effect:
    trusted, stranger = seen["common"]["trusted"], seen["common"]["stranger"]
    scheme = (trusted["scheme"], stranger["scheme"]) == ("https", "http")
    address = trusted["address"] == FAR and stranger["address"] != FAR
    which = "both" if scheme and address else "scheme" if scheme else "address"
    if not (scheme or address):
        return Effect("ignored", "forwarded.ignored", {"scheme": trusted["scheme"]})
    return Effect("honoured", f"forwarded.{which}")


def _secure_headers(seen: Evidence) -> Effect:
    return _honoured("secure_scheme_headers", seen["common"]["own_header"] == "https")


def _sendfile(seen: Evidence) -> Effect:
    """Unset, it is used where a class uses it at all."""
    values = {
        "unset": seen["common"]["sendfiles"],
        "on": seen["lingering"]["sendfiles"],
        "off": seen["preload"]["sendfiles"],
    }
    if values["unset"] and not values["on"] and not values["off"]:
        return Effect("changes", "sendfile.any", values)
    return _honoured("sendfile", bool(values["unset"]) and not values["off"], **values)


def _accesslog(seen: Evidence) -> Effect:
    log = seen["common"]["log"]
    return _honoured("accesslog", bool(log))


def _access_log_format(seen: Evidence) -> Effect:
    log = seen["common"]["log"]
    if not log:
        return Effect("ignored", "access_log_format.no_log")
    values = {"asked": common.FORMAT, "line": log[0]}
    return _honoured("access_log_format", any(line == common.LOGGED for line in log), **values)


def _statsd(seen: Evidence) -> Effect:
    metrics = seen["common"]["metrics"]
    if "gunicorn.requests" in metrics:
        return Effect("honoured", "statsd", {"metrics": len(metrics)})
    if metrics:
        return Effect("changes", "statsd.few", {"metrics": tuple(metrics)})
    return Effect("ignored", "statsd.none")


def _hook(name: str) -> Callable[[Evidence], Effect]:
    def effect(seen: Evidence) -> Effect:
        return _honoured("hook", name in seen["common"]["hooks"], hook=name)

    return effect


def _preload(seen: Evidence) -> Effect:
    found = seen["preload"]
    if not found["imported_by_arbiter"]:
        return Effect("ignored", "preload.ignored")
    values = {"asked_s": common.WAITS_S, "both_s": found["both_s"]}
    if found["unpatched"] and found["both_s"] > common.TURNS * common.WAITS_S:
        return Effect("changes", "preload.blocks", values)
    return Effect("honoured", "preload", values)


def _reuse_port(seen: Evidence) -> Effect:
    count = seen["sockets"]["listeners"]
    if count < 2 and seen["sockets"]["shared"]:
        return Effect("honoured", "reuse_port.one", {"count": count})
    return _honoured("reuse_port", count >= 2, count=count)


def _proxy_protocol(seen: Evidence) -> Effect:
    found = seen["sockets"]
    values = {"status": found["proxied"], "address": found["proxied_address"]}
    return _honoured("proxy_protocol", found["proxied_address"] == FAR, **values)


def _keepalive(seen: Evidence) -> Effect:
    found, asked = seen["sockets"], times.KEEPALIVE_S
    closed_s, values = found["closed_s"], {"asked_s": asked, "closed_s": found["closed_s"]}
    if found["says_close"] or (closed_s is not None and closed_s < SOON_S):
        return Effect("ignored", "keepalive.closed", values)
    if closed_s is None:
        return Effect("ignored", "keepalive.open", {**values, "watched_s": times.WATCHED_S})
    return _honoured("keepalive", asked - SOON_S < closed_s < asked + LATE_S, **values)


def _timeout(seen: Evidence) -> Effect:
    waited, blocked = seen["timeout_wait"], seen["timeout_block"]
    values = {"asked_s": times.TIMEOUT_S, "tried_s": times.TOO_LONG_S}
    values |= {"waited_s": waited["took_s"], "blocked_s": blocked["took_s"]}
    if waited["killed"] and blocked["killed"]:
        return Effect("honoured", "timeout.both", values)
    if blocked["killed"]:
        return Effect("honoured", "timeout.blocked", values)
    return Effect("changes", "timeout.waiting" if waited["killed"] else "timeout.none", values)


def _graceful(seen: Evidence) -> Effect:
    busy_s, idle_s, asked = seen["stop"]["stop_s"], seen["preload"]["stop_s"], times.GRACE_S
    values = {"asked_s": asked, "busy_s": busy_s, "idle_s": idle_s, "idle_asked_s": common.GRACE_S}
    values |= {"under_way_s": times.UNDER_WAY_S}
    if busy_s is None or not asked - SOON_S < busy_s < asked + LATE_S:
        return Effect("ignored", "graceful.ignored", values)
    if idle_s is None or idle_s > common.GRACE_S - SOON_S:
        return Effect("changes", "graceful.idle", values)
    return Effect("honoured", "graceful", values)


def _max_requests(seen: Evidence) -> Effect:
    served = seen["recycling"]["served"]
    values = {"asked": slots.LIMIT, "served": tuple(served), "sent": seen["recycling"]["asked"]}
    if not served:
        return Effect("ignored", "max_requests.ignored", values)
    overrun = any(one > slots.LIMIT for one in served)  # fewer: a request in between failed
    return Effect("honoured", "max_requests.overrun" if overrun else "max_requests", values)


def _jitter(seen: Evidence) -> Effect:
    limits = seen["common"]["limits"]
    return _honoured("jitter", len(limits) > 1, limits=tuple(limits))


def _worker_connections(seen: Evidence) -> Effect:
    found, asked = seen["slots"], slots.CONNECTIONS
    accepted = found["accepted"]
    values = {"asked": asked, "sent": found["asked"], "most": found["most"], "accepted": accepted}
    if found["most"] == asked:
        return Effect("honoured", "worker_connections", values)
    if asked <= accepted <= asked + 1:
        ends = seen["recycling"]["says_close"] and not found["says_close"]
        code = "worker_connections.accepts"
        return Effect("changes", f"{code}.ends" if ends else code, values)
    return Effect("ignored", "worker_connections.ignored", values)


def _threads(seen: Evidence) -> Effect:
    found = seen["threads"]
    values = {"asked": slots.THREADS, "most": found["most"], "sent": found["asked"]}
    if found["using"] == "gthread" and seen["slots"]["using"] == "sync":
        return Effect("changes", "threads.gthread", values)
    return _honoured("threads", found["most"] == slots.THREADS != seen["slots"]["most"], **values)


HOOKS = (
    "when_ready", "pre_fork", "post_fork", "post_worker_init", "pre_request", "post_request",
    "worker_int", "worker_abort", "worker_exit", "child_exit", "on_exit",
)  # fmt: skip
_EVERY = (
    Setting("backlog", ("common", "preload"), _backlog),
    Setting("workers", ("common",), _workers),
    Setting("threads", ("threads", "slots"), _threads),
    Setting("worker_connections", ("slots", "recycling"), _worker_connections),
    Setting("timeout", ("timeout_wait", "timeout_block"), _timeout),
    Setting("graceful_timeout", ("stop", "preload"), _graceful),
    Setting("keepalive", ("sockets",), _keepalive),
    Setting("max_requests", ("recycling",), _max_requests),
    Setting("max_requests_jitter", ("common",), _jitter),
    Setting("preload_app", ("preload",), _preload),
    Setting("reuse_port", ("sockets",), _reuse_port),
    Setting("sendfile", ("common", "preload", "lingering"), _sendfile),
    Setting("chdir", ("common",), _chdir),
    Setting("umask", ("common",), _umask),
    Setting("worker_tmp_dir", ("common",), _worker_tmp_dir),
    Setting("raw_env", ("common",), _raw_env),
    Setting("limit_request_line", ("common",), _limit("line", common.LINE, common.LINE_SENT)),
    Setting(
        "limit_request_fields", ("common",), _limit("fields", common.FIELDS, common.FIELDS_SENT)
    ),
    Setting(
        "limit_request_field_size",
        ("common",),
        _limit("field_size", common.FIELD_SIZE, common.FIELD_SENT),
    ),
    Setting("header_map", ("common",), _header_map),
    Setting("forwarded_allow_ips", ("common",), _forwarded),
    Setting("secure_scheme_headers", ("common",), _secure_headers),
    Setting("proxy_protocol", ("sockets",), _proxy_protocol),
    Setting("accesslog", ("common",), _accesslog),
    Setting("access_log_format", ("common",), _access_log_format),
    Setting("statsd_host", ("common",), _statsd),
    *(Setting(name, ("common",), _hook(name)) for name in HOOKS),
    *HAPPENINGS,
)
SETTINGS: Mapping[str, Setting] = {one.name: one for one in _EVERY}


def effects(seen: Evidence) -> dict[str, Effect]:
    """Of every setting whose launches were made."""
    return {
        one.name: one.effect(seen) for one in _EVERY if all(name in seen for name in one.launches)
    }
