"""What the settings make of a load: the law, and a sentence about it. Pure.

Of a closed loop (Denning & Buzen 1978): with N clients, C requests served at once and S seconds
each, X = min(N, C) / S requests per second, and each takes R = N / X. More clients than the knee
N* = Xmax S wait. Requests that compute are bounded by the cores, too, and in one worker by one.
"""

from math import sqrt
from typing import Any

from msgspec import Struct

from workerlab.experiments.live.asked import LoadAsked, ServerAsked
from workerlab.experiments.own_apps import at_once
from workerlab.model import Finding
from workerlab.server.worker_classes import class_named

# Where nothing limits them, requests under way are Poisson: more than so many standard deviations
# above the mean in one moment of 30 000 (of a normal distribution)
SELDOM = 4


class Law(Struct, frozen=True):
    """`rps`: the throughput, None where the app does nothing that bounds it; `response_s`: of each
    request, None where chance decides it; `knee`: clients from which on requests wait, None: never.
    `at_once`: None: without limit."""

    rps: float | None
    knee: float | None
    response_s: float | None
    at_once: int | None


def law(server: ServerAsked, load: LoadAsked, cores: float) -> Law:
    slots, cpu_s = at_once(server.app, server.server), load.cpu_ms / 1000
    service_s = load.delay_s + cpu_s
    bounds = []
    if slots is not None and service_s > 0:
        bounds.append(slots / service_s)
    if cpu_s > 0:
        bounds.append(min(cores, server.workers) / cpu_s)
    bound = min(bounds, default=None)
    knee = None if bound is None else bound * service_s
    if load.model == "open":
        rps = load.rate if bound is None else min(load.rate, bound)
        return Law(rps, knee, service_s if bound is None else None, slots)
    if service_s <= 0:  # what Gunicorn itself takes is all there is
        return Law(None, None, None, slots)
    rps = load.clients / service_s if bound is None else min(load.clients / service_s, bound)
    return Law(rps, knee, load.clients / rps, slots)


def sentence(server: ServerAsked, load: LoadAsked, cores: float) -> Finding:
    """What becomes of the load, in the words of `report/messages.py`."""
    found = law(server, load, cores)
    row = class_named(server.worker_class)
    values: dict[str, Any] = {
        "worker_class": server.worker_class,
        "workers": server.workers,
        "threads": server.threads if row.slots == "threads" and server.threads > 1 else None,
        "at_once": found.at_once,
        "blocks": Finding("live.blocks") if server.blocks else None,
        "shares": Finding("live.shares", {"cores": cores}) if load.cpu_ms > 0 else None,
    }
    if load.model == "open":
        return _open(found, load, values)
    if load.delay_s + load.cpu_ms <= 0:
        return Finding("live.nothing_to_do", values)
    if _computed(found) and found.knee is not None and load.clients > found.knee:
        return Finding("live.cores", {**values, "clients": load.clients, "cores": cores})
    values["clients"] = load.clients
    if found.at_once is None or load.clients <= found.at_once:
        return Finding("live.room", values)
    waiting = load.clients - found.at_once
    if row.accepts_first or server.blocks:
        bound = Finding("live.bound") if load.keepalive and server.workers > 1 else None
        return Finding("live.waits.inside", {**values, "waiting": waiting, "bound": bound})
    room = server.backlog + 1
    refused = waiting - room if waiting > room else None
    return Finding("live.waits", {**values, "waiting": min(waiting, room), "refused": refused})


def _open(found: Law, load: LoadAsked, values: dict[str, Any]) -> Finding:
    values["rate"] = load.rate
    if found.knee is None:
        return Finding("live.open.room", values)
    service_s = load.delay_s + load.cpu_ms / 1000
    bound = found.knee / service_s
    values["bound"] = bound
    values["busy"] = load.rate / bound
    if load.rate >= bound:
        return Finding("live.open.over", values)
    if _computed(found) or found.at_once is None:
        return Finding("live.open.cores", values)
    taken = load.rate * service_s  # Little
    if taken + SELDOM * sqrt(taken) < found.at_once:
        return Finding("live.open.seldom", {**values, "taken": taken})
    return Finding("live.open", values)


def _computed(found: Law) -> bool:
    """The cores bound it, not the slots."""
    return found.knee is not None and (found.at_once is None or found.knee < 0.99 * found.at_once)
