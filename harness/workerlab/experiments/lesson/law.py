"""What the settings make of a load: the law, and a sentence about it. Pure.

Closed loop (Denning & Buzen 1978): with N clients, C requests served at once and S seconds each,
X = min(N, C) / S requests per second, and each takes R = N / X in the mean. More clients than the
knee N* = Xmax S wait. Requests that compute are bounded by the cores, too, and in one worker by
one. Random arrivals: R = S + W, with W as Allen and Cunneen approximate it for services of one
length (`analysis/prediction/theory.py`). What waits beyond the slots is L = X W (Little).

Closed loop with clients that give up after T seconds, where R > T: each sends a request per T, so
N / T > X of them come. The server serves all of them in turn, those without a client as well, so
the queue grows; once its wait exceeds T - S, no request is answered in time.
"""

from math import sqrt
from typing import Any

from msgspec import Struct

from workerlab.analysis.prediction.theory import allen_cunneen, closed_bound
from workerlab.experiments.lesson.settings import LoadAsked, ServerAsked
from workerlab.experiments.own_apps import at_once
from workerlab.model import Finding
from workerlab.report.messages import text
from workerlab.server.worker_classes import class_named, configured_slots

# Where nothing limits them, requests under way are Poisson: more than so many standard deviations
# above the mean in one moment of 30 000 (of a normal distribution)
SELDOM = 4
ASYNCIO_BACKLOG = 100  # with which a worker listens again that ignores the setting
NEGLIGIBLE = 0.001  # waiting, as a share of the service time


class Law(Struct, frozen=True):
    """`rps`: the throughput, None where the app does nothing that bounds it; `response_s`: of each
    request in the mean; `queue`: how many wait in the accept queue. Where one is None, `why` says
    of "response_s" and "queue" what there is to know instead. `knee`: clients from which on
    requests wait, None: never. `at_once`: None: without limit."""

    rps: float | None
    knee: float | None
    response_s: float | None
    at_once: int | None
    queue: float | None
    why: dict[str, Finding]


def law(server: ServerAsked, load: LoadAsked, cores: float) -> Law:
    slots, cpu_s = at_once(server.app, server.server), load.cpu_ms / 1000
    service_s = load.delay_s + cpu_s
    bound = closed_bound(server.workers, slots, cores, load.delay_s, cpu_s)
    knee = None if bound is None else bound * service_s
    if service_s <= 0:  # what Gunicorn itself takes is all there is
        rps = load.rate if load.model == "open" else None
        return Law(rps, None, None, slots, None, {})
    if load.model == "open":
        rps = load.rate if bound is None else min(load.rate, bound)
        response_s, why = _mean_at_random(server, load, bound, slots)
    else:
        rps = load.clients / service_s if bound is None else min(load.clients / service_s, bound)
        response_s, why = load.clients / rps, None
        if 0 < load.patience_s < response_s:
            fills = Finding("live.law.fills", {"room": server.backlog + 1})
            reasons = {"response_s": Finding("live.law.gives_up"), "queue": fills}
            return Law(0.0, None, None, slots, None, reasons)
    queue, not_queue = _queue(server, load, rps, response_s)
    unknown = {"response_s": why, "queue": not_queue}
    given = {name: reason for name, reason in unknown.items() if reason is not None}
    return Law(rps, knee, response_s, slots, queue, given)


def _mean_at_random(
    server: ServerAsked, load: LoadAsked, bound: float | None, slots: int | None
) -> tuple[float | None, Finding | None]:
    """The mean response time, seconds, of requests that come at random; or why none is known."""
    service_s = load.delay_s + load.cpu_ms / 1000
    if bound is None:
        return service_s, None
    if load.rate >= bound:
        return None, Finding("live.law.grows")
    if slots is None or _computed(bound * service_s, slots):
        return None, Finding("live.law.shares", {"response_s": service_s})
    wait_s = allen_cunneen(load.rate, service_s, service_s**2, slots)
    own_queues = class_named(server.worker_class).accepts_first or server.blocks
    if own_queues and server.workers > 1 and wait_s > NEGLIGIBLE * service_s:
        return None, Finding("live.law.at_least", {"response_s": service_s + wait_s})
    return service_s + wait_s, None


def _queue(
    server: ServerAsked, load: LoadAsked, rps: float, response_s: float | None
) -> tuple[float | None, Finding | None]:
    """How many wait in the accept queue in the mean; or why that is not known. The kernel lets one
    more in than the backlog says."""
    row, room = class_named(server.worker_class), server.backlog + 1
    at_loop = row.loop or (row.accepts_first and row.slots == "one")
    if at_loop and (server.blocks or load.cpu_ms > 0 or not row.loop):
        return None, Finding("live.law.loop")  # what blocks its loop keeps it from accepting
    if row.slots == "unlimited":
        return 0.0, None
    if response_s is None:
        code = "live.law.accepts_first" if row.accepts_first else "live.law.fills"
        return None, Finding(code, {"room": room}) if load.cpu_ms <= 0 else None
    if load.model == "open" and not row.accepts_first:  # all that wait; meanwhile slots may be free
        return min(room, rps * (response_s - load.delay_s - load.cpu_ms / 1000)), None
    held = server.workers if row.slots == "one" else server.workers * server.worker_connections
    return min(room, max(0.0, round(rps * response_s - held, 6))), None


def side_view(server: ServerAsked, load: LoadAsked, cores: float) -> dict[str, object]:
    """What the page shows of a server, live or recorded: settings, slots, law and sentence."""
    prediction = law(server, load, cores)
    return {
        "server": server,
        "backlog": server.backlog if "backlog" in server.heeds else ASYNCIO_BACKLOG,
        "slots": configured_slots(server.server),
        "blocked": prediction.at_once if server.blocks else None,
        "accepts_first": class_named(server.worker_class).accepts_first,
        "recent_s": load.recent_s,
        "sentence": text(sentence(server, load, cores)),
        "law": {
            "rps": prediction.rps,
            "knee": prediction.knee,
            "response_s": prediction.response_s,
            "queue": prediction.queue,
            "why": {name: text(reason) for name, reason in prediction.why.items()},
        },
    }


def sentence(server: ServerAsked, load: LoadAsked, cores: float) -> Finding:
    """What becomes of the load, in the words of `report/messages.py`."""
    prediction = law(server, load, cores)
    row = class_named(server.worker_class)
    values: dict[str, Any] = {
        "worker_class": server.worker_class,
        "workers": server.workers,
        "threads": server.threads if row.slots == "threads" and server.threads > 1 else None,
        "at_once": prediction.at_once,
        "each": prediction.at_once and prediction.at_once // server.workers,
        "most": Finding(
            "live.as_many" if prediction.at_once is None else "live.at_most",
            {"at_once": prediction.at_once},
        ),
        "blocks": Finding("live.blocks") if server.blocks else None,
        "shares": Finding("live.shares", {"cores": cores}) if load.cpu_ms > 0 else None,
    }
    if load.model == "open":
        return _open(prediction, load, values)
    if load.delay_s + load.cpu_ms <= 0:
        return Finding("live.nothing_to_do", values)
    return _closed(prediction, server, load, {**values, "clients": load.clients, "cores": cores})


def _closed(
    prediction: Law, server: ServerAsked, load: LoadAsked, values: dict[str, Any]
) -> Finding:
    row = class_named(server.worker_class)
    if prediction.rps == 0:
        return Finding("live.gives_up", {**values, "patience_s": load.patience_s})
    if (
        prediction.knee is not None
        and load.clients > prediction.knee
        and _computed(prediction.knee, prediction.at_once)
    ):
        code = "live.cores" if server.workers >= values["cores"] else "live.cores.workers"
        return Finding(code, {**values, "rps": prediction.rps})
    if prediction.at_once is None or load.clients <= prediction.at_once:
        dealt = ".dealt" if _dealt(server, load, prediction) else ""
        return Finding(f"live.room{dealt}", values)
    values["waiting"] = waiting = load.clients - prediction.at_once
    if row.accepts_first:
        bound = Finding("live.bound") if load.keepalive and server.workers > 1 else None
        return Finding("live.waits.inside", {**values, "bound": bound})
    if prediction.queue is None:
        return Finding("live.waits.somewhere", values)
    room = server.backlog + 1
    full = ".full" if waiting > room else ""
    return Finding(f"live.waits{full}", {**values, "waiting": min(waiting, room)})


def _dealt(server: ServerAsked, load: LoadAsked, prediction: Law) -> bool:
    """Whether a worker may get more clients than it serves at once, while another has room."""
    if prediction.at_once is None or server.workers == 1:
        return False
    each = prediction.at_once / server.workers
    accepts_more = server.blocks or (
        class_named(server.worker_class).accepts_first and server.worker_connections > each
    )
    return accepts_more and load.clients > each


def _open(prediction: Law, load: LoadAsked, values: dict[str, Any]) -> Finding:
    values["rate"] = load.rate
    if prediction.knee is None:
        return Finding("live.open.room", values)
    service_s = load.delay_s + load.cpu_ms / 1000
    bound = prediction.knee / service_s
    values["bound"] = bound
    values["busy"] = load.rate / bound
    if load.rate >= bound:
        return Finding("live.open.over", values)
    if prediction.at_once is None or _computed(prediction.knee, prediction.at_once):
        return Finding("live.open.cores", values)
    taken = load.rate * service_s  # Little
    if taken + SELDOM * sqrt(taken) < prediction.at_once:
        return Finding("live.open.seldom", {**values, "taken": taken})
    wait_s = None if prediction.response_s is None else prediction.response_s - service_s
    return Finding("live.open", {**values, "wait_s": wait_s})


def _computed(knee: float, at_once: int | None) -> bool:
    """The cores bound it, not the slots."""
    return at_once is None or knee < 0.99 * at_once
