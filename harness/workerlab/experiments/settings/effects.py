"""Concludes from the observations of the launches what a worker class does with each setting.

    honoured    the setting does what Gunicorn's documentation says
    ignored     the value makes no difference (for times: nothing happens within N seconds)
    clamped     honoured only up to a limit
    changes     the setting does something else, or more

An effect is a code with values. A setting has none if one of its launches is missing.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from workerlab.experiments.settings import common_launches as common
from workerlab.experiments.settings import launches as timed
from workerlab.experiments.settings.effect_types import EVENTS, Effect, Evidence, Setting, Word
from workerlab.experiments.settings.site import FORWARDED_IP
from workerlab.numbers.units import format_duration

IMMEDIATE_S = 1.0  # maximum for an immediate reaction
MAX_EARLY_S = 1.0  # by which a timer may fire early
MAX_LATE_S = 1.75  # by which it may fire late: classes add their own grace or check once a second


def _honoured_or_ignored(
    code: str, honoured: object, sentence: str, values: Mapping[str, Any], ignored: str = ""
) -> Effect:
    """`ignored`: the sentence if the setting is not honoured; "": also `sentence`."""
    if honoured:
        return Effect("honoured", code, sentence, values)
    return Effect("ignored", code, ignored or sentence, values)


def _answered(status: int | None) -> str:
    if status is None:
        return "not answered: the connection was closed"
    return f"answered with {status}"


def _backlog(evidence: Evidence) -> Effect:
    queue, huge = (evidence[launch]["queue"][0] for launch in ("common", "preload"))
    values = {"queue": queue, "huge": huge, "most": evidence["preload"]["most_queue"]}
    sentence = "at {BACKLOG}, the kernel limited the accept queue to {queue}"
    if queue != common.BACKLOG:
        return Effect("ignored", "backlog", sentence, values)
    sentence += "; at {HUGE_BACKLOG:count}, to {huge:count} (net.core.somaxconn is {most:count})"
    return Effect("clamped" if huge == values["most"] else "honoured", "backlog", sentence, values)


def _umask(evidence: Evidence) -> Effect:
    mode = evidence["common"]["socket_mode"]
    if mode is None:
        return Effect("ignored", "umask", "no Unix socket was found")
    sentence = "at {UMASK:04o}, a Unix socket had mode {mode:04o}"
    return _honoured_or_ignored("umask", mode == 0o777 & ~common.UMASK, sentence, {"mode": mode})


def _refused(request: str, name: str, evidence: Evidence) -> Effect:
    """The effect of a limit that `request` exceeds. `name`: key of its status."""
    status = evidence["common"][name]
    is_refused = status is None or 400 <= status < 500
    sentence = f"at {request} was {{answered}}"
    return _honoured_or_ignored(name, is_refused, sentence, {"answered": _answered(status)})


def _forwarded(evidence: Evidence) -> Effect:
    trusted, stranger = evidence["common"]["trusted"], evidence["common"]["stranger"]
    scheme = (trusted["scheme"], stranger["scheme"]) == ("https", "http")
    address = trusted["address"] == FORWARDED_IP and stranger["address"] != FORWARDED_IP
    if not (scheme or address):
        sentence = "a trusted proxy said https, and the app saw {scheme}"
        return Effect("ignored", "forwarded", sentence, trusted)
    sentences = {
        "both": "the client's scheme and address are taken from a trusted proxy only",
        "scheme": "the scheme is taken from a trusted proxy only; the client's address stays the"
        " proxy's",
        "address": "the client's address is taken from a trusted proxy only; the scheme is ignored",
    }
    trusted_part = "both" if scheme and address else "scheme" if scheme else "address"
    return Effect("honoured", f"forwarded.{trusted_part}", sentences[trusted_part])


def _sendfile(evidence: Evidence) -> Effect:
    """Unset means on: a class that can use sendfile does so by default."""
    launches = {"unset": "common", "on": "lingering", "off": "preload"}
    values = {value: evidence[launch]["sendfiles"] for value, launch in launches.items()}
    if values["unset"] and not values["on"] and not values["off"]:
        sentence = "os.sendfile was called only while the setting was unset: any value, even True,"
        return Effect("changes", "sendfile.any", f"{sentence} turns it off", values)
    counts = "calls of os.sendfile: {unset} while unset, {on} at True, {off} at False"
    return _honoured_or_ignored(
        "sendfile",
        values["unset"] and not values["off"],
        "os.sendfile was called to serve files, but not at False",
        values,
        counts if any(values.values()) else "os.sendfile was not called at any value",
    )


def _access_log_format(evidence: Evidence) -> Effect:
    log = evidence["common"]["log"]
    if not log:
        return Effect("ignored", "access_log_format.no_log", "nothing is logged")
    sentence, values = 'at "{FORMAT}", the log has the line: {line}', {"line": log[0]}
    return _honoured_or_ignored(
        "access_log_format", common.EXPECTED_LOG_LINE in log, sentence, values
    )


def _statsd(evidence: Evidence) -> Effect:
    metrics = evidence["common"]["metrics"]
    values = {"metrics": metrics, "count": len(metrics)}
    if "gunicorn.requests" in metrics:
        sentence = "it received {count:# metric}, including requests"
        return Effect("honoured", "statsd", sentence, values)
    if metrics:
        sentence = "it received only {metrics:list}, nothing about requests"
        return Effect("changes", "statsd.few", sentence, values)
    return Effect("ignored", "statsd.none", "it received nothing")


def _preload(evidence: Evidence) -> Effect:
    launch = evidence["preload"]
    if not launch["imported_by_arbiter"]:
        return Effect("ignored", "preload", "each worker imported the app itself")
    if launch["unpatched"] and launch["both_s"] > common.SERIAL_RATIO * common.PAIR_S:
        sentence = (
            "the arbiter imported the app before anything was patched: two simultaneous requests"
            " that wait {PAIR_S:duration} each took {both_s:duration}, since a name imported with"
            " from ... import blocks the worker"
        )
        return Effect("changes", "preload.blocks", sentence, launch)
    return Effect("honoured", "preload", "the arbiter imported the app")


def _reload(file: str, name: str, evidence: Evidence) -> Effect:
    """The effect of a change to `file`. `name`: key of the time until workers were replaced."""
    took_s = evidence["touched"][name]
    return _honoured_or_ignored(
        "reload",
        took_s is not None,
        f"after {file} changed, the worker was replaced within {{took_s:duration}}",
        {"took_s": took_s},
        f"after {file} changed, no worker was replaced within {{RELOAD_WATCH_S:duration}}",
    )


def _reuse_port(evidence: Evidence) -> Effect:
    launch = evidence["sockets"]
    if launch["listeners"] < 2 and launch["shared"]:
        sentence = "other sockets can bind the port, but both workers share one socket"
        return Effect("honoured", "reuse_port.one", sentence, cell_text="honoured: one socket")
    return _honoured_or_ignored(
        "reuse_port",
        launch["listeners"] >= 2,
        "{listeners:# socket listens/sockets listen} on the port of two workers",
        launch,
    )


def _proxy_protocol(evidence: Evidence) -> Effect:
    launch = evidence["sockets"]
    beginning = "a PROXY line was {answered}, and the app"
    return _honoured_or_ignored(
        "proxy_protocol",
        launch["proxied_address"] == FORWARDED_IP,
        f"{beginning} saw the address {{proxied_address}}",
        {**launch, "answered": _answered(launch["proxied"])},
        f"{beginning} did not see its address[[ (it saw {{proxied_address}})]]",
    )


def _keepalive(evidence: Evidence) -> Effect:
    launch, value_s = evidence["sockets"], timed.KEEPALIVE_S
    closed_s = launch["closed_s"]
    if launch["says_close"] or (closed_s is not None and closed_s < IMMEDIATE_S):
        sentence = "every connection is closed after one response"
        return Effect("ignored", "keepalive.closed", sentence, launch)
    idle = "at {KEEPALIVE_S} s, an idle connection was"
    if closed_s is None:
        return Effect(
            "ignored", "keepalive.open", f"{idle} not closed within {{KEEPALIVE_WATCH_S:duration}}"
        )
    is_honoured = value_s - MAX_EARLY_S < closed_s < value_s + MAX_LATE_S
    sentence = f"{idle} closed after {{closed_s:duration}}"
    return _honoured_or_ignored("keepalive", is_honoured, sentence, launch)


# By whether a worker whose request waited was killed, and whether a blocked one was
_TIMEOUTS: Mapping[tuple[bool, bool], tuple[Word, str, str]] = {
    (True, True): (
        "honoured",
        "timeout.both",
        "a request of {REQUEST_S:duration} was cut off and its worker killed, whether it waited"
        " (after {waited_s:duration}) or blocked (after {blocked_s:duration})",
    ),
    (False, True): (
        "honoured",
        "timeout.blocked",
        "a worker that a request blocked for {REQUEST_S:duration} was killed after"
        " {blocked_s:duration}; one whose request waited that long was not",
    ),
    (True, False): (
        "changes",
        "timeout.waiting",
        "a worker whose request waited for {REQUEST_S:duration} was killed after"
        " {waited_s:duration}; one that a request blocked was not",
    ),
    (False, False): (
        "changes",
        "timeout.none",
        "no worker was killed in the {REQUEST_S:duration} that a request waited or blocked: the"
        " timeout does not cover requests",
    ),
}


def _timeout(evidence: Evidence) -> Effect:
    waited, blocked = evidence["timeout_wait"], evidence["timeout_block"]
    word, code, sentence = _TIMEOUTS[waited["killed"], blocked["killed"]]
    values = {"waited_s": waited["took_s"], "blocked_s": blocked["took_s"]}
    return Effect(word, code, f"at {{TIMEOUT_S}} s, {sentence}", values)


def _graceful(evidence: Evidence) -> Effect:
    busy_s, idle_s = evidence["stop"]["stop_s"], evidence["preload"]["stop_s"]
    values = {
        name: "did not end" if stop_s is None else f"took {format_duration(stop_s)}"
        for name, stop_s in (("busy", busy_s), ("idle", idle_s))
    }
    value_s = timed.GRACE_S
    sentence = "at {GRACE_S} s, a stop with a request of {ONGOING_S:duration} in progress {busy}"
    if busy_s is None or not value_s - MAX_EARLY_S < busy_s < value_s + MAX_LATE_S:
        return Effect("ignored", "graceful", sentence, values)
    sentence += "; at {IDLE_GRACE_S} s, one with no request in progress {idle}"
    if idle_s is None or idle_s > common.IDLE_GRACE_S - MAX_EARLY_S:
        return Effect("changes", "graceful.idle", f"{sentence}, the whole timeout", values)
    return Effect("honoured", "graceful", sentence, values)


def _max_requests(evidence: Evidence) -> Effect:
    launch = evidence["recycling"]
    if not launch["served"]:
        sentence = "at {RECYCLE_LIMIT}, no worker was replaced at that limit in {asked} requests"
        return Effect("ignored", "max_requests", sentence, launch)
    sentence = "at {RECYCLE_LIMIT}, workers were replaced after {served:, } requests"
    if max(launch["served"]) > timed.RECYCLE_LIMIT:  # fewer: a request failed in between
        sentence += ": the limit is checked from time to time, not after each request"
        return Effect("honoured", "max_requests.overrun", sentence, launch)
    return Effect("honoured", "max_requests", sentence, launch)


def _worker_connections(evidence: Evidence) -> Effect:
    launch, value = evidence["slots"], timed.CONNECTIONS
    sentence = (
        "at {CONNECTIONS}, one worker accepted at most {accepted} of {asked} simultaneous requests,"
        " and had {most} of them in the app at once"
    )
    if launch["most"] == value:
        return Effect("honoured", "worker_connections", sentence, launch)
    if not value <= launch["accepted"] <= value + 1:
        return Effect("ignored", "worker_connections", sentence, launch)
    sentence += ": it limits what is accepted, not what is served"
    if not evidence["recycling"]["says_close"] or launch["says_close"]:
        return Effect("changes", "worker_connections.accepts", sentence, launch)
    sentence += "; if it equals threads, connections are not kept alive"
    return Effect("changes", "worker_connections.accepts.ends", sentence, launch)


def _threads(evidence: Evidence) -> Effect:
    launch = evidence["threads"]
    in_app = "one worker had at most {most} of {asked} simultaneous requests in the app"
    if launch["using"] == "gthread" and evidence["slots"]["using"] == "sync":
        sentence = f"with {{THREADS}} threads, Gunicorn uses the class gthread instead; {in_app}"
        return Effect("changes", "threads.gthread", sentence, launch)
    is_used = launch["most"] == timed.THREADS != evidence["slots"]["most"]
    return _honoured_or_ignored("threads", is_used, f"at {{THREADS}}, {in_app}", launch)


def _single_observation(
    name: str, honoured: Callable[[Mapping[str, Any]], object], sentence: str, ignored: str = ""
) -> Setting:
    """A setting whose effect follows from a single observation of the common launch."""

    def effect(evidence: Evidence) -> Effect:
        launch = evidence["common"]
        return _honoured_or_ignored(name, honoured(launch), sentence, launch, ignored)

    return Setting(name, ("common",), effect)


def _hook(name: str) -> Setting:
    called, not_called = "it was called", "it was not called"
    return _single_observation(name, lambda launch: name in launch["hooks"], called, not_called)


def _limit(setting: str, request: str, name: str) -> Setting:
    return Setting(setting, ("common",), partial(_refused, request, name))


HOOK_NAMES = (
    "when_ready", "pre_fork", "post_fork", "post_worker_init", "pre_request", "post_request",
    "worker_int", "worker_abort", "worker_exit", "child_exit", "on_exit",
)  # fmt: skip
_SETTINGS = (
    Setting("backlog", ("common", "preload"), _backlog),
    _single_observation(
        "workers",
        lambda launch: launch["workers"] == common.WORKERS,
        "at {WORKERS}, the arbiter had {workers:# child process/child processes}",
    ),
    Setting("threads", ("threads", "slots"), _threads),
    Setting("worker_connections", ("slots", "recycling"), _worker_connections),
    Setting("timeout", ("timeout_wait", "timeout_block"), _timeout),
    Setting("graceful_timeout", ("stop", "preload"), _graceful),
    Setting("keepalive", ("sockets",), _keepalive),
    Setting("max_requests", ("recycling",), _max_requests),
    _single_observation(
        "max_requests_jitter",
        lambda launch: len(launch["limits"]) > 1,
        "two workers drew {limits: and } as their request limits",
        "two workers had the same request limit",
    ),
    Setting("preload_app", ("preload",), _preload),
    Setting("reload", ("touched",), partial(_reload, "the app's file", "code_s")),
    Setting("reload_extra_files", ("touched",), partial(_reload, "one of these files", "extra_s")),
    Setting("reuse_port", ("sockets",), _reuse_port),
    Setting("sendfile", ("common", "preload", "lingering"), _sendfile),
    _single_observation(
        "chdir",
        lambda launch: launch["directory"] == "app",
        "it was the app's working directory",
        "the app had a different working directory",
    ),
    Setting("umask", ("common",), _umask),
    _single_observation(
        "worker_tmp_dir",
        lambda launch: launch["tmp"],
        "a worker had its heartbeat file there",
        "a worker had no file open there",
    ),
    _single_observation(
        "raw_env",
        lambda launch: launch["word"] == "seen",
        "the app saw the variable",
        "the app did not see the variable",
    ),
    _limit(
        "limit_request_line",
        "{LINE_LIMIT}, a request line of more than {LONG_LINE_BYTES} bytes",
        "line",
    ),
    _limit(
        "limit_request_fields",
        "{FIELD_COUNT_LIMIT}, a request with {MANY_FIELDS} headers",
        "fields",
    ),
    _limit(
        "limit_request_field_size",
        "{FIELD_SIZE_LIMIT}, a header of more than {LONG_FIELD_BYTES} bytes",
        "field_size",
    ),
    _limit("header_map", '"refuse", a header with an underscore', "underscore"),
    Setting("forwarded_allow_ips", ("common",), _forwarded),
    _single_observation(
        "secure_scheme_headers",
        lambda launch: launch["own_header"] == "https",
        "a header that it names, from a trusted proxy, made the scheme https",
        "a header that it names, from a trusted proxy, left the scheme unchanged",
    ),
    Setting("proxy_protocol", ("sockets",), _proxy_protocol),
    _single_observation(
        "accesslog",
        lambda launch: launch["log"],
        "requests were logged to the file",
        "the file had no line after many requests",
    ),
    Setting("access_log_format", ("common",), _access_log_format),
    Setting("statsd_host", ("common",), _statsd),
    *map(_hook, HOOK_NAMES),
    *EVENTS,
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _SETTINGS}
SETTING_NAMES = tuple(setting.name for setting in _SETTINGS if not setting.event)


def effects(evidence: Evidence) -> dict[str, Effect]:
    """The effect of every setting that has evidence from all its launches."""
    return {
        setting.name: setting.effect(evidence)
        for setting in _SETTINGS
        if all(name in evidence for name in setting.launches)
    }
