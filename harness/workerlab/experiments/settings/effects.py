"""What a worker class does with each setting, from the observations of the launches. Pure.

    honoured    it does what Gunicorn's documentation says
    ignored     the value makes no difference (for times: nothing happens within N seconds)
    clamped     honoured only up to a limit
    changes     it does something else, or more

An effect is a code with values. A setting has none if one of its launches is missing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from workerlab.experiments.settings.effect_types import HAPPENINGS, Effect, Evidence, Setting
from workerlab.experiments.settings.launches import common, slots, times
from workerlab.experiments.settings.site import FORWARDED_IP

NOT_ANSWERED = "not answered: the connection was closed"
IMMEDIATE_S = 1.0  # limit for an immediate reaction
MAX_EARLY_S = 1.0  # that a timer fires early
MAX_LATE_S = 1.75  # that it fires late: classes add their own grace or check once a second


def _honoured_or_ignored(
    code: str, honoured: bool, sentence: str, ignored: str = "", **values: Any
) -> Effect:
    """`ignored`: the sentence if the setting is not honoured; "": the same."""
    if honoured:
        return Effect("honoured", code, sentence, values)
    return Effect("ignored", f"{code}.ignored", ignored or sentence, values)


def _backlog(evidence: Evidence) -> Effect:
    queue, huge = evidence["common"]["queue"], evidence["preload"]["queue"]
    somaxconn = evidence["preload"]["most_queue"]
    values = {"value": common.BACKLOG, "queue": queue[0], "huge": common.HUGE_BACKLOG}
    values |= {"huge_queue": huge[0], "most": somaxconn}
    sentence = "at {value}, the kernel limited the accept queue to {queue}"
    if queue[0] != common.BACKLOG:
        return Effect("ignored", "backlog.ignored", sentence, values)
    sentence += "; at {huge:count}, to {huge_queue:count} (net.core.somaxconn is {most:count})"
    return Effect("clamped" if huge[0] == somaxconn else "honoured", "backlog", sentence, values)


def _workers(evidence: Evidence) -> Effect:
    count = evidence["common"]["workers"]
    return _honoured_or_ignored(
        "workers",
        count == common.WORKERS,
        "at {value}, the arbiter had {count:# child process/child processes}",
        value=common.WORKERS,
        count=count,
    )


def _umask(evidence: Evidence) -> Effect:
    mode = evidence["common"]["socket_mode"]
    mode_text = None if mode is None else f"{mode:04o}"
    value = f"{common.UMASK:04o}"
    return _honoured_or_ignored(
        "umask",
        mode == 0o777 & ~common.UMASK,
        "no Unix socket was found" if mode is None else "at {value}, a Unix socket had mode {mode}",
        value=value,
        mode=mode_text,
    )


def _limit(name: str, what: str, value: int, sent: int) -> Callable[[Evidence], Effect]:
    answered = f"at {{value}}, {what} was answered with {{status}}"
    not_answered = f"at {{value}}, {what} was {NOT_ANSWERED}"

    def effect(evidence: Evidence) -> Effect:
        status = evidence["common"][name]
        values = {"value": value, "sent": sent, "status": status}
        refused = status is None or 400 <= status < 500
        sentence = not_answered if status is None else answered
        return _honoured_or_ignored(f"limit.{name}", refused, sentence, **values)

    return effect


def _header_map(evidence: Evidence) -> Effect:
    status = evidence["common"]["underscore"]
    answered = NOT_ANSWERED if status is None else "answered with {status}"
    return _honoured_or_ignored(
        "header_map",
        status is None or 400 <= status < 500,
        f'at "refuse", a header with an underscore was {answered}',
        status=status,
    )


def _forwarded(evidence: Evidence) -> Effect:
    trusted, stranger = evidence["common"]["trusted"], evidence["common"]["stranger"]
    scheme = (trusted["scheme"], stranger["scheme"]) == ("https", "http")
    address = trusted["address"] == FORWARDED_IP and stranger["address"] != FORWARDED_IP
    trusted_part = "both" if scheme and address else "scheme" if scheme else "address"
    if not (scheme or address):
        sentence = "a trusted proxy said https, and the app saw {scheme}"
        return Effect("ignored", "forwarded.ignored", sentence, {"scheme": trusted["scheme"]})
    sentences = {
        "both": "the client's scheme and address are taken from a trusted proxy only",
        "scheme": "the scheme is taken from a trusted proxy only; the client's address stays the"
        " proxy's",
        "address": "the client's address is taken from a trusted proxy only; the scheme is ignored",
    }
    return Effect("honoured", f"forwarded.{trusted_part}", sentences[trusted_part])


def _sendfile(evidence: Evidence) -> Effect:
    """Unset means on: a class that can use sendfile does so by default."""
    values = {
        "unset": evidence["common"]["sendfiles"],
        "on": evidence["lingering"]["sendfiles"],
        "off": evidence["preload"]["sendfiles"],
    }
    if values["unset"] and not values["on"] and not values["off"]:
        sentence = "os.sendfile was called only while it was unset: any value, even True, turns it"
        sentence += " off"
        return Effect("changes", "sendfile.any", sentence, values)
    counts = "calls of os.sendfile: {unset} while unset, {on} at True, {off} at False"
    return _honoured_or_ignored(
        "sendfile",
        bool(values["unset"]) and not values["off"],
        "os.sendfile was called to serve files, but not at False",
        counts if any(values.values()) else "os.sendfile was not called at any value",
        **values,
    )


def _access_log_format(evidence: Evidence) -> Effect:
    log = evidence["common"]["log"]
    if not log:
        return Effect("ignored", "access_log_format.no_log", "nothing is logged")
    return _honoured_or_ignored(
        "access_log_format",
        any(line == common.LOGGED for line in log),
        'at "{value}", the log says: {line}',
        value=common.FORMAT,
        line=log[0],
    )


def _statsd(evidence: Evidence) -> Effect:
    metrics = evidence["common"]["metrics"]
    if "gunicorn.requests" in metrics:
        sentence = "it received {metrics:# metric}, including requests"
        return Effect("honoured", "statsd", sentence, {"metrics": len(metrics)})
    if metrics:
        sentence = "it received only {metrics:list}, nothing about requests"
        return Effect("changes", "statsd.few", sentence, {"metrics": tuple(metrics)})
    return Effect("ignored", "statsd.none", "it received nothing")


def _hook(name: str) -> Callable[[Evidence], Effect]:
    def effect(evidence: Evidence) -> Effect:
        called = name in evidence["common"]["hooks"]
        return _honoured_or_ignored("hook", called, "it was called", "it was not called", hook=name)

    return effect


def _preload(evidence: Evidence) -> Effect:
    launch = evidence["preload"]
    if not launch["imported_by_arbiter"]:
        sentence = "each worker imported the app for itself"
        return Effect("ignored", "preload.ignored", sentence)
    values = {"value_s": common.WAITS_S, "both_s": launch["both_s"]}
    if launch["unpatched"] and launch["both_s"] > common.TURNS * common.WAITS_S:
        sentence = (
            "the arbiter imported the app before anything was patched: two simultaneous requests"
            " that wait {value_s:duration} each took {both_s:duration}, since a name imported with"
            " from ... import blocks the worker"
        )
        return Effect("changes", "preload.blocks", sentence, values)
    return Effect("honoured", "preload", "the arbiter imported the app", values)


def _replaced(name: str) -> Callable[[Evidence], Effect]:
    """`name`: which file was changed."""
    changed = "the app's file" if name == "code" else "one of these files"

    def effect(evidence: Evidence) -> Effect:
        took_s = evidence["touched"][f"{name}_s"]
        values = {"took_s": took_s, "watched_s": times.CHANGED_S}
        return _honoured_or_ignored(
            f"reload.{name}",
            took_s is not None,
            f"after {changed} changed, the worker was replaced within {{took_s:duration}}",
            f"after {changed} changed, no worker was replaced within {{watched_s:duration}}",
            **values,
        )

    return effect


def _reuse_port(evidence: Evidence) -> Effect:
    count = evidence["sockets"]["listeners"]
    if count < 2 and evidence["sockets"]["shared"]:
        sentence = "other sockets can bind the port, but both workers share one socket"
        values = {"count": count}
        return Effect("honoured", "reuse_port.one", sentence, values, shown="honoured: one socket")
    return _honoured_or_ignored(
        "reuse_port",
        count >= 2,
        "{count:# socket listens/sockets listen} on the port of two workers",
        count=count,
    )


def _proxy_protocol(evidence: Evidence) -> Effect:
    launch = evidence["sockets"]
    answered = "a PROXY line was answered with {status}"
    if launch["proxied"] is None:
        answered = f"a PROXY line was {NOT_ANSWERED}"
    return _honoured_or_ignored(
        "proxy_protocol",
        launch["proxied_address"] == FORWARDED_IP,
        f"{answered}, and the app saw the address {{address}}",
        f"{answered}, and the app did not see its address[[ (it saw {{address}})]]",
        status=launch["proxied"],
        address=launch["proxied_address"],
    )


def _keepalive(evidence: Evidence) -> Effect:
    launch, value = evidence["sockets"], times.KEEPALIVE_S
    closed_s = launch["closed_s"]
    values = {"value_s": value, "closed_s": closed_s}
    if launch["says_close"] or (closed_s is not None and closed_s < IMMEDIATE_S):
        sentence = "every connection is closed after one response"
        return Effect("ignored", "keepalive.closed", sentence, values)
    if closed_s is None:
        sentence = "at {value_s} s, an idle connection was not closed within {watched_s:duration}"
        values["watched_s"] = times.WATCHED_S
        return Effect("ignored", "keepalive.open", sentence, values)
    return _honoured_or_ignored(
        "keepalive",
        value - MAX_EARLY_S < closed_s < value + MAX_LATE_S,
        "at {value_s} s, an idle connection was closed after {closed_s:duration}",
        **values,
    )


def _timeout(evidence: Evidence) -> Effect:
    waited, blocked = evidence["timeout_wait"], evidence["timeout_block"]
    values = {"value_s": times.TIMEOUT_S, "tried_s": times.TOO_LONG_S}
    values |= {"waited_s": waited["took_s"], "blocked_s": blocked["took_s"]}
    if waited["killed"] and blocked["killed"]:
        sentence = (
            "at {value_s} s, a request of {tried_s:duration} was cut and its worker killed, whether"
            " it waited (after {waited_s:duration}) or blocked (after {blocked_s:duration})"
        )
        return Effect("honoured", "timeout.both", sentence, values)
    if blocked["killed"]:
        sentence = (
            "at {value_s} s, a worker that a request blocked for {tried_s:duration} was killed"
            " after {blocked_s:duration}; one whose request waited that long was not"
        )
        return Effect("honoured", "timeout.blocked", sentence, values)
    if waited["killed"]:
        sentence = (
            "at {value_s} s, a worker whose request waited for {tried_s:duration} was killed after"
            " {waited_s:duration}; one that a request blocked was not"
        )
        return Effect("changes", "timeout.waiting", sentence, values)
    sentence = (
        "at {value_s} s, no worker was killed in the {tried_s:duration} that a request waited or"
        " blocked: the timeout does not cover requests"
    )
    return Effect("changes", "timeout.none", sentence, values)


def _graceful(evidence: Evidence) -> Effect:
    busy_s, idle_s = evidence["stop"]["stop_s"], evidence["preload"]["stop_s"]
    value = times.GRACE_S
    values = {
        "value_s": value,
        "busy_s": busy_s,
        "idle_s": idle_s,
        "idle_value_s": common.GRACE_S,
    }
    values |= {"under_way_s": times.UNDER_WAY_S}
    duration = "did not end" if busy_s is None else "took {busy_s:duration}"
    busy = (
        f"at {{value_s}} s, a stop with a request of {{under_way_s:duration}} in progress"
        f" {duration}"
    )
    if busy_s is None or not value - MAX_EARLY_S < busy_s < value + MAX_LATE_S:
        return Effect("ignored", "graceful.ignored", busy, values)
    duration = "did not end" if idle_s is None else "took {idle_s:duration}"
    sentence = f"{busy}; at {{idle_value_s}} s, one with no request in progress {duration}"
    if idle_s is None or idle_s > common.GRACE_S - MAX_EARLY_S:
        sentence += ", the whole timeout"
        return Effect("changes", "graceful.idle", sentence, values)
    return Effect("honoured", "graceful", sentence, values)


def _max_requests(evidence: Evidence) -> Effect:
    served = evidence["recycling"]["served"]
    values = {
        "value": slots.LIMIT,
        "served": tuple(served),
        "sent": evidence["recycling"]["asked"],
    }
    if not served:
        sentence = "at {value}, no worker was replaced at that limit in {sent} requests"
        return Effect("ignored", "max_requests.ignored", sentence, values)
    sentence = "at {value}, workers were replaced after {served:, } requests"
    if any(count > slots.LIMIT for count in served):  # fewer: a request failed in between
        sentence += ": the limit is checked from time to time, not after each request"
        return Effect("honoured", "max_requests.overrun", sentence, values)
    return Effect("honoured", "max_requests", sentence, values)


def _jitter(evidence: Evidence) -> Effect:
    limits = evidence["common"]["limits"]
    return _honoured_or_ignored(
        "jitter",
        len(limits) > 1,
        "two workers drew {limits: and } as their request limits",
        "two workers had the same request limit",
        limits=tuple(limits),
    )


def _worker_connections(evidence: Evidence) -> Effect:
    launch, value = evidence["slots"], slots.CONNECTIONS
    accepted = launch["accepted"]
    values = {
        "value": value,
        "sent": launch["asked"],
        "most": launch["most"],
        "accepted": accepted,
    }
    sentence = (
        "at {value}, one worker accepted at most {accepted} of {sent} simultaneous requests, and"
        " had {most} of them in the app at once"
    )
    if launch["most"] == value:
        return Effect("honoured", "worker_connections", sentence, values)
    if not value <= accepted <= value + 1:
        return Effect("ignored", "worker_connections.ignored", sentence, values)
    sentence += ": it limits what is accepted, not what is served"
    if not evidence["recycling"]["says_close"] or launch["says_close"]:
        return Effect("changes", "worker_connections.accepts", sentence, values)
    sentence += "; if it equals threads, connections are not kept alive"
    return Effect("changes", "worker_connections.accepts.ends", sentence, values)


def _threads(evidence: Evidence) -> Effect:
    launch = evidence["threads"]
    values = {"value": slots.THREADS, "most": launch["most"], "sent": launch["asked"]}
    in_app = "one worker had at most {most} of {sent} simultaneous requests in the app"
    if launch["using"] == "gthread" and evidence["slots"]["using"] == "sync":
        sentence = f"with {{value}} threads, Gunicorn uses the class gthread instead; {in_app}"
        return Effect("changes", "threads.gthread", sentence, values)
    used = launch["most"] == slots.THREADS != evidence["slots"]["most"]
    return _honoured_or_ignored("threads", used, f"at {{value}}, {in_app}", **values)


def _observed(
    name: str, honoured: Callable[[Mapping[str, Any]], object], sentence: str, ignored: str
) -> Setting:
    """A setting that a single observation of the common launch decides."""

    def effect(evidence: Evidence) -> Effect:
        return _honoured_or_ignored(name, bool(honoured(evidence["common"])), sentence, ignored)

    return Setting(name, ("common",), effect)


HOOK_NAMES = (
    "when_ready", "pre_fork", "post_fork", "post_worker_init", "pre_request", "post_request",
    "worker_int", "worker_abort", "worker_exit", "child_exit", "on_exit",
)  # fmt: skip
_SETTINGS = (
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
    Setting("reload", ("touched",), _replaced("code")),
    Setting("reload_extra_files", ("touched",), _replaced("extra")),
    Setting("reuse_port", ("sockets",), _reuse_port),
    Setting("sendfile", ("common", "preload", "lingering"), _sendfile),
    _observed(
        "chdir",
        lambda common: common["directory"] == "app",
        "it was the app's working directory",
        "the app's working directory was another one",
    ),
    Setting("umask", ("common",), _umask),
    _observed(
        "worker_tmp_dir",
        lambda common: common["tmp"],
        "a worker had its heartbeat file there",
        "a worker had no file open there",
    ),
    _observed(
        "raw_env",
        lambda common: common["word"] == "seen",
        "the app saw the variable",
        "the app did not see the variable",
    ),
    Setting(
        "limit_request_line",
        ("common",),
        _limit("line", "a request line of more than {sent} bytes", common.LINE, common.LINE_SENT),
    ),
    Setting(
        "limit_request_fields",
        ("common",),
        _limit("fields", "a request with {sent} headers", common.FIELDS, common.FIELDS_SENT),
    ),
    Setting(
        "limit_request_field_size",
        ("common",),
        _limit(
            "field_size",
            "a header of more than {sent} bytes",
            common.FIELD_SIZE,
            common.FIELD_SENT,
        ),
    ),
    Setting("header_map", ("common",), _header_map),
    Setting("forwarded_allow_ips", ("common",), _forwarded),
    _observed(
        "secure_scheme_headers",
        lambda common: common["own_header"] == "https",
        "a header that it names, from a trusted proxy, made the scheme https",
        "a header that it names, from a trusted proxy, left the scheme as it was",
    ),
    Setting("proxy_protocol", ("sockets",), _proxy_protocol),
    _observed(
        "accesslog",
        lambda common: common["log"],
        "requests were logged to the file",
        "the file had no line after many requests",
    ),
    Setting("access_log_format", ("common",), _access_log_format),
    Setting("statsd_host", ("common",), _statsd),
    *(Setting(name, ("common",), _hook(name)) for name in HOOK_NAMES),
    *HAPPENINGS,
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _SETTINGS}
EXAMINED = tuple(setting.name for setting in _SETTINGS if not setting.happening)


def effects(evidence: Evidence) -> dict[str, Effect]:
    """The effect of every setting that has evidence from all its launches."""
    return {
        setting.name: setting.effect(evidence)
        for setting in _SETTINGS
        if all(name in evidence for name in setting.launches)
    }
