"""What a worker class does with each setting, from the observations of the launches. Pure.

    honoured    it does what Gunicorn's documentation says
    ignored     the value makes no difference (for times: nothing happens within N seconds)
    clamped     honoured only up to a limit
    changes     it does something else, or more

An effect is a code with numbers. A setting whose launch is missing has none.
"""

from collections.abc import Callable, Mapping
from typing import Any

from workerlab.experiments.settings.effect_types import HAPPENINGS, Effect, Evidence, Setting
from workerlab.experiments.settings.launches import common, slots, times
from workerlab.experiments.settings.site import FAR

NOT_ANSWERED = "not answered: the connection was closed"
SOON_S = 1.0  # limit for an immediate reaction; tolerance of a timer that fires early
LATE_S = 1.75  # tolerance of a late timer: classes add their own grace or check once a second


def _honoured(code: str, honoured: bool, sentence: str, ignored: str = "", **values: Any) -> Effect:
    """Honoured or ignored. `ignored`: the sentence for the latter, if it differs."""
    if honoured:
        return Effect("honoured", code, sentence, values)
    return Effect("ignored", f"{code}.ignored", ignored or sentence, values)


def _backlog(evidence: Evidence) -> Effect:
    queue, huge = evidence["common"]["queue"], evidence["preload"]["queue"]
    somaxconn = evidence["preload"]["most_queue"]
    values = {"value": common.BACKLOG, "queue": queue[0], "huge": common.HUGE_BACKLOG}
    values |= {"huge_queue": huge[0], "most": somaxconn}
    sentence = "asked for {value}, and the kernel's limit of the accept queue was {queue}"
    if queue[0] != common.BACKLOG:
        return Effect("ignored", "backlog.ignored", sentence, values)
    sentence += "; asked for {huge:count}, it was {huge_queue:count} (net.core.somaxconn is"
    sentence += " {most:count})"
    return Effect("clamped" if huge[0] == somaxconn else "honoured", "backlog", sentence, values)


def _workers(evidence: Evidence) -> Effect:
    count = evidence["common"]["workers"]
    return _honoured(
        "workers",
        count == common.WORKERS,
        "asked for {value}, and the arbiter had {count:# child process/child processes}",
        value=common.WORKERS,
        count=count,
    )


def _chdir(evidence: Evidence) -> Effect:
    return _honoured(
        "chdir",
        evidence["common"]["directory"] == "app",
        "it was the app's working directory",
        "the app's working directory was another one",
    )


def _raw_env(evidence: Evidence) -> Effect:
    return _honoured(
        "raw_env",
        evidence["common"]["word"] == "seen",
        "the app saw the variable",
        "the app did not see the variable",
    )


def _worker_tmp_dir(evidence: Evidence) -> Effect:
    return _honoured(
        "worker_tmp_dir",
        evidence["common"]["tmp"],
        "a worker had its heartbeat file there",
        "a worker had no file there",
    )


def _umask(evidence: Evidence) -> Effect:
    mode = evidence["common"]["socket_mode"]
    mode_text = None if mode is None else f"{mode:04o}"
    value = f"{common.UMASK:04o}"
    return _honoured(
        "umask",
        mode == 0o777 & ~common.UMASK,
        "asked for {value}, and a Unix socket has the mode {mode}",
        value=value,
        mode=mode_text,
    )


def _limit(name: str, what: str, value: int, sent: int) -> Callable[[Evidence], Effect]:
    sentence = f"asked for {{value}}, and {what} was answered with {{status}}"
    closed = f"asked for {{value}}, and {what} was {NOT_ANSWERED}"

    def effect(evidence: Evidence) -> Effect:
        status = evidence["common"][name]
        values = {"value": value, "sent": sent, "status": status}
        refused = status is None or 400 <= status < 500
        observation = closed if status is None else sentence
        return _honoured(f"limit.{name}", refused, observation, **values)

    return effect


def _header_map(evidence: Evidence) -> Effect:
    status = evidence["common"]["underscore"]
    answered = NOT_ANSWERED if status is None else "answered with {status}"
    return _honoured(
        "header_map",
        status is None or 400 <= status < 500,
        f'at "refuse", a header with an underscore was {answered}',
        status=status,
    )


def _forwarded(evidence: Evidence) -> Effect:
    trusted, stranger = evidence["common"]["trusted"], evidence["common"]["stranger"]
    scheme = (trusted["scheme"], stranger["scheme"]) == ("https", "http")
    address = trusted["address"] == FAR and stranger["address"] != FAR
    trusted_part = "both" if scheme and address else "scheme" if scheme else "address"
    if not (scheme or address):
        sentence = "a trusted proxy said https, and the app saw {scheme}"
        return Effect("ignored", "forwarded.ignored", sentence, {"scheme": trusted["scheme"]})
    sentences = {
        "both": "scheme and address of the client are taken from a trusted proxy, and from no"
        " other",
        "scheme": "the scheme is taken from a trusted proxy, and from no other; the client's"
        " address stays that of the proxy",
        "address": "the client's address is taken from a trusted proxy, and from no other; the"
        " scheme is not",
    }
    return Effect("honoured", f"forwarded.{trusted_part}", sentences[trusted_part])


def _secure_headers(evidence: Evidence) -> Effect:
    return _honoured(
        "secure_scheme_headers",
        evidence["common"]["own_header"] == "https",
        "a header that it names, from a trusted proxy, made the scheme https",
        "a header that it names, from a trusted proxy, left the scheme as it was",
    )


def _sendfile(evidence: Evidence) -> Effect:
    """Unset means on: a class that can use sendfile does so by default."""
    values = {
        "unset": evidence["common"]["sendfiles"],
        "on": evidence["lingering"]["sendfiles"],
        "off": evidence["preload"]["sendfiles"],
    }
    called = "os.sendfile was called while files were served"
    if values["unset"] and not values["on"] and not values["off"]:
        sentence = f"{called}, neither at False nor at True: any value turns it off"
        return Effect("changes", "sendfile.any", sentence, values)
    return _honoured(
        "sendfile",
        bool(values["unset"]) and not values["off"],
        f"{called}, and not at False",
        "os.sendfile was not called at any value",
        **values,
    )


def _accesslog(evidence: Evidence) -> Effect:
    log = evidence["common"]["log"]
    return _honoured(
        "accesslog",
        bool(log),
        "the file had a line for each request",
        "the file had no line after many requests",
    )


def _access_log_format(evidence: Evidence) -> Effect:
    log = evidence["common"]["log"]
    if not log:
        return Effect("ignored", "access_log_format.no_log", "nothing is logged")
    return _honoured(
        "access_log_format",
        any(line == common.LOGGED for line in log),
        'asked for "{value}", and the log says: {line}',
        value=common.FORMAT,
        line=log[0],
    )


def _statsd(evidence: Evidence) -> Effect:
    metrics = evidence["common"]["metrics"]
    if "gunicorn.requests" in metrics:
        sentence = "{metrics:# metric} were sent, requests among them"
        return Effect("honoured", "statsd", sentence, {"metrics": len(metrics)})
    if metrics:
        sentence = "only {metrics:list} was sent, nothing about requests"
        return Effect("changes", "statsd.few", sentence, {"metrics": tuple(metrics)})
    return Effect("ignored", "statsd.none", "nothing was sent")


def _hook(name: str) -> Callable[[Evidence], Effect]:
    def effect(evidence: Evidence) -> Effect:
        called = name in evidence["common"]["hooks"]
        return _honoured("hook", called, "it was called", "it was not called", hook=name)

    return effect


def _preload(evidence: Evidence) -> Effect:
    launch = evidence["preload"]
    if not launch["imported_by_arbiter"]:
        sentence = "each worker imported the app for itself"
        return Effect("ignored", "preload.ignored", sentence)
    values = {"value_s": common.WAITS_S, "both_s": launch["both_s"]}
    if launch["unpatched"] and launch["both_s"] > common.TURNS * common.WAITS_S:
        sentence = (
            "the arbiter imported the app, before anything was patched: two requests that wait"
            " {value_s:duration} each took {both_s:duration} at once, so that a name imported with"
            " from ... import blocks the worker"
        )
        return Effect("changes", "preload.blocks", sentence, values)
    return Effect("honoured", "preload", "the arbiter imported the app", values)


def _reuse_port(evidence: Evidence) -> Effect:
    count = evidence["sockets"]["listeners"]
    if count < 2 and evidence["sockets"]["shared"]:
        sentence = "its socket can be shared, and both workers have the same one"
        values = {"count": count}
        return Effect("honoured", "reuse_port.one", sentence, values, shown="honoured: one socket")
    return _honoured(
        "reuse_port",
        count >= 2,
        "{count:# socket listens/sockets listen} at the port of two workers",
        count=count,
    )


def _proxy_protocol(evidence: Evidence) -> Effect:
    launch = evidence["sockets"]
    answered = "a PROXY line was answered with {status}"
    if launch["proxied"] is None:
        answered = f"a PROXY line was {NOT_ANSWERED}"
    return _honoured(
        "proxy_protocol",
        launch["proxied_address"] == FAR,
        f"{answered}, and the app saw the address {{address}}",
        f"{answered}, and the app did not see its address[[ (it saw {{address}})]]",
        status=launch["proxied"],
        address=launch["proxied_address"],
    )


def _keepalive(evidence: Evidence) -> Effect:
    launch, value = evidence["sockets"], times.KEEPALIVE_S
    closed_s, values = (
        launch["closed_s"],
        {"value_s": value, "closed_s": launch["closed_s"]},
    )
    if launch["says_close"] or (closed_s is not None and closed_s < SOON_S):
        sentence = "every connection is closed after its answer"
        return Effect("ignored", "keepalive.closed", sentence, values)
    if closed_s is None:
        sentence = "asked for {value_s} s, and an idle connection was not closed within"
        sentence += " {watched_s:duration}"
        values["watched_s"] = times.WATCHED_S
        return Effect("ignored", "keepalive.open", sentence, values)
    return _honoured(
        "keepalive",
        value - SOON_S < closed_s < value + LATE_S,
        "asked for {value_s} s, and an idle connection was closed after {closed_s:duration}",
        **values,
    )


def _timeout(evidence: Evidence) -> Effect:
    waited, blocked = evidence["timeout_wait"], evidence["timeout_block"]
    values = {"value_s": times.TIMEOUT_S, "tried_s": times.TOO_LONG_S}
    values |= {"waited_s": waited["took_s"], "blocked_s": blocked["took_s"]}
    if waited["killed"] and blocked["killed"]:
        sentence = (
            "at {value_s} s, a request of {tried_s:duration} was cut and its worker killed, whether"
            " it waits (after {waited_s:duration}) or blocks (after {blocked_s:duration})"
        )
        return Effect("honoured", "timeout.both", sentence, values)
    if blocked["killed"]:
        sentence = (
            "at {value_s} s, a worker that a request blocked for {tried_s:duration} was killed"
            " after {blocked_s:duration}; one with a request that waits so long was not"
        )
        return Effect("honoured", "timeout.blocked", sentence, values)
    if waited["killed"]:
        sentence = (
            "at {value_s} s, a worker with a request that waits for {tried_s:duration} was killed"
            " after {waited_s:duration}, and one that a request blocked was not"
        )
        return Effect("changes", "timeout.waiting", sentence, values)
    sentence = (
        "at {value_s} s, no worker was killed within the {tried_s:duration} that a request waited"
        " or blocked: it watches the worker's main thread, not its requests"
    )
    return Effect("changes", "timeout.none", sentence, values)


def _graceful(evidence: Evidence) -> Effect:
    busy_s, idle_s, value = (
        evidence["stop"]["stop_s"],
        evidence["preload"]["stop_s"],
        times.GRACE_S,
    )
    values = {
        "value_s": value,
        "busy_s": busy_s,
        "idle_s": idle_s,
        "idle_value_s": common.GRACE_S,
    }
    values |= {"under_way_s": times.UNDER_WAY_S}
    stopped = "did not end" if busy_s is None else "took {busy_s:duration}"
    busy = (
        f"at {{value_s}} s, a stop {stopped} with a request of {{under_way_s:duration}} in progress"
    )
    if busy_s is None or not value - SOON_S < busy_s < value + LATE_S:
        return Effect("ignored", "graceful.ignored", busy, values)
    idle = "at {idle_value_s} s, " + ("no end" if idle_s is None else "{idle_s:duration}")
    idle += " without one"
    if idle_s is None or idle_s > common.GRACE_S - SOON_S:
        sentence = f"{busy}; but {idle}: each stop waits for all of it"
        return Effect("changes", "graceful.idle", sentence, values)
    return Effect("honoured", "graceful", f"{busy}; {idle}", values)


def _max_requests(evidence: Evidence) -> Effect:
    served = evidence["recycling"]["served"]
    values = {
        "value": slots.LIMIT,
        "served": tuple(served),
        "sent": evidence["recycling"]["asked"],
    }
    if not served:
        sentence = "asked for {value}, and one worker served all of {sent}"
        return Effect("ignored", "max_requests.ignored", sentence, values)
    sentence = "asked for {value}, and workers served {served:, } requests, then were replaced"
    if any(count > slots.LIMIT for count in served):  # fewer: a request failed in between
        sentence += ": the limit is checked from time to time, not after each request"
        return Effect("honoured", "max_requests.overrun", sentence, values)
    return Effect("honoured", "max_requests", sentence, values)


def _jitter(evidence: Evidence) -> Effect:
    limits = evidence["common"]["limits"]
    return _honoured(
        "jitter",
        len(limits) > 1,
        "two workers drew {limits: and } as their limit of requests",
        "two workers had the same limit of requests",
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
        "asked for {value}; of {sent} requests at once, one worker had at most {accepted} accepted"
        " and {most} in the app"
    )
    if launch["most"] == value:
        return Effect("honoured", "worker_connections", sentence, values)
    if not value <= accepted <= value + 1:
        return Effect("ignored", "worker_connections.ignored", sentence, values)
    sentence += ": it limits what is accepted, not what is served"
    if not evidence["recycling"]["says_close"] or launch["says_close"]:
        return Effect("changes", "worker_connections.accepts", sentence, values)
    sentence += "; where it equals threads, connections are not kept alive"
    return Effect("changes", "worker_connections.accepts.ends", sentence, values)


def _threads(evidence: Evidence) -> Effect:
    launch = evidence["threads"]
    values = {"value": slots.THREADS, "most": launch["most"], "sent": launch["asked"]}
    in_app = "of {sent} requests at once, one worker had at most {most} in the app"
    if launch["using"] == "gthread" and evidence["slots"]["using"] == "sync":
        sentence = f"with {{value}} threads, Gunicorn uses the class gthread instead; {in_app}"
        return Effect("changes", "threads.gthread", sentence, values)
    used = launch["most"] == slots.THREADS != evidence["slots"]["most"]
    return _honoured("threads", used, f"asked for {{value}}; {in_app}", **values)


HOOKS = (
    "when_ready", "pre_fork", "post_fork", "post_worker_init", "pre_request", "post_request",
    "worker_int", "worker_abort", "worker_exit", "child_exit", "on_exit",
)  # fmt: skip
EXAMINED = (
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
    Setting("secure_scheme_headers", ("common",), _secure_headers),
    Setting("proxy_protocol", ("sockets",), _proxy_protocol),
    Setting("accesslog", ("common",), _accesslog),
    Setting("access_log_format", ("common",), _access_log_format),
    Setting("statsd_host", ("common",), _statsd),
    *(Setting(name, ("common",), _hook(name)) for name in HOOKS),
    *HAPPENINGS,
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in EXAMINED}


def effects(evidence: Evidence) -> dict[str, Effect]:
    """The effect of every setting that has evidence from all its launches."""
    return {
        setting.name: setting.effect(evidence)
        for setting in EXAMINED
        if all(name in evidence for name in setting.launches)
    }
