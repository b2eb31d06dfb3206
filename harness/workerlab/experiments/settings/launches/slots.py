"""How many requests a worker takes, how many it serves in its life, and what holds it."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from workerlab.experiments.settings.launches.launch import Launch, Seen
from workerlab.experiments.settings.site import POLL_S, Answer, Site, exchange

CONNECTIONS, THREADS, AT_ONCE, WAIT_S = 3, 4, 8, 0.5
LIMIT, REQUESTS, PACE_S = 4, 24, 0.15
MOST = 10 * REQUESTS
GRACE_S = 1
TRIES = 4  # a class with threads is held only now and then
HELD_S = 0.5  # a worker that answers a lone request so much later was held


def _few_connections(_site: Site) -> Mapping[str, object]:
    return {"worker_connections": CONNECTIONS}


def _threads(_site: Site) -> Mapping[str, object]:
    return {"threads": THREADS}


def _look_at_slots(site: Site) -> Seen:
    """Requests at once to one worker: how many connections it had accepted at the same time, and
    how many requests were in the app."""
    says_close = _says_close(site)
    site.wait(0.1)
    # What is sent while all stand still is not there at once
    accepted = site.undisturbed(lambda: _most_accepted(site))
    return {
        "using": site.using(),
        "asked": AT_ONCE,
        "accepted": accepted,
        "most": site.ask("/about").about.get("most"),
        "says_close": says_close,
    }


def _most_accepted(site: Site) -> int:
    """Connections that it had accepted at the same time, of AT_ONCE with a request in each."""
    path, accepted = f"/wait?s={WAIT_S:g}", 0
    first = site.ask_at_once([path])
    site.wait(WAIT_S / 5)  # it blocks a loop that it can block, which then accepts what has come
    others = site.ask_at_once([path] * (AT_ONCE - 1))
    while first.under_way or others.under_way:
        accepted = max(accepted, site.accepted())
        site.wait(POLL_S)
    return accepted


def _says_close(site: Site) -> bool:
    """Whether the server ends a connection after its first answer, unasked."""
    with site.connect() as connection:
        return exchange(connection, "/about").closed


def _recycled(site: Site) -> Mapping[str, object]:
    """And as many connections as gthread has threads."""
    return {
        "max_requests": LIMIT,
        "worker_connections": site.server.threads,
        "graceful_timeout": GRACE_S,  # some wait for all of it before they make room
    }


def _look_at_recycling(site: Site) -> Seen:
    """How many requests in turn each worker served: neither the first one, which was asked before
    whether it is ready, nor the last one, which was not at its end."""
    says_close = _says_close(site)
    pids: list[int | None] = []
    # More of them where workers are replaced so late that none of those between has been seen yet
    while len(pids) < REQUESTS or (not _served(pids) and len(pids) < MOST):
        answer = site.ask("/about")  # some fail while workers are replaced
        pids.append(answer.about["pid"] if answer.status == 200 else None)
        site.wait(PACE_S)
    return {
        "served": _served(pids),
        "failed": pids.count(None),
        "asked": len(pids),
        "says_close": says_close,
    }


def _served(pids: Sequence[int | None]) -> list[int]:
    """How many requests in turn each served, but for the first and the last one."""
    return [len(list(its)) for pid, its in groupby(pids) if pid is not None][1:-1]


def _sendfile(_site: Site) -> Mapping[str, object]:
    return {"sendfile": True}


def _look_at_lingering(site: Site) -> Seen:
    """A client keeps its connection open after the answer to its last request; another one asks.
    That again and again."""
    site.ask("/file")
    free = _fastest([site.ask("/about") for _ in range(3)])
    behind = [site.undisturbed(lambda: _behind_s(site)) for _ in range(TRIES)]
    return {
        "free_s": free,
        "behind_s": behind,
        "sendfiles": site.ask("/about").about.get("sendfiles"),
    }


def _behind_s(site: Site) -> float:
    """How long a request takes while a client keeps its connection open after its last answer."""
    with site.connect() as connection:
        exchange(connection, "/about", "Connection: close")
        return site.ask("/about").took_s


def _fastest(answers: Sequence[Answer]) -> float:
    return min(one.took_s for one in answers)


SLOTS = Launch("slots", _few_connections, _look_at_slots, 6.0)
THREADED = Launch("threads", _threads, _look_at_slots, 6.0, threads=THREADS)
RECYCLING = Launch("recycling", _recycled, _look_at_recycling, 7.0)
LINGERING = Launch("lingering", _sendfile, _look_at_lingering, 4.0)
