"""Launches that test how many requests a worker serves at once and in all, and what blocks it."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from workerlab.experiments.settings.launches.common import Seen, SettingLaunch, fixed
from workerlab.experiments.settings.site import POLL_S, AppReply, Site, exchange

CONNECTIONS, THREADS, AT_ONCE, WAIT_S = 3, 4, 8, 0.5
LIMIT, REQUESTS, PACE_S = 4, 24, 0.15
MAX_REQUESTS = 10 * REQUESTS
GRACE_S = 1
TRIES = 4  # a class with threads is blocked only occasionally
HELD_S = 0.5  # a lone request delayed by more than this shows that the worker was held


def _look_at_slots(site: Site) -> Seen:
    """Send several requests at once to one worker: how many connections does it accept, and how
    many requests are in the app at once?"""
    says_close = _says_close(site)
    site.wait(0.1)
    # If the machine stalls, the requests do not arrive at once
    accepted = site.repeat_if_stalled(lambda: _most_accepted(site))
    return {
        "using": site.logged_class(),
        "asked": AT_ONCE,
        "accepted": accepted,
        "most": site.ask("/about").about.get("most"),
        "says_close": says_close,
    }


def _most_accepted(site: Site) -> int:
    """The most connections accepted at the same time, of AT_ONCE with a request each."""
    path, accepted = f"/wait?s={WAIT_S:g}", 0
    first = site.start_requests([path])
    site.wait(WAIT_S / 5)  # the first request blocks the loop if it can; then the others arrive
    others = site.start_requests([path] * (AT_ONCE - 1))
    while first.in_progress or others.in_progress:
        accepted = max(accepted, site.accepted_count())
        site.wait(POLL_S)
    return accepted


def _says_close(site: Site) -> bool:
    """Whether the server announces that it closes a connection after its first answer."""
    with site.connect() as connection:
        return exchange(connection, "/about").closes


def _recycled(site: Site) -> Mapping[str, object]:
    """`max_requests`, and as many `worker_connections` as gthread has threads."""
    return {
        "max_requests": LIMIT,
        "worker_connections": site.server.threads,
        "graceful_timeout": GRACE_S,  # some classes wait for all of it before replacing a worker
    }


def _look_at_recycling(site: Site) -> Seen:
    """Consecutive requests served by each worker, except the first, which already answered the
    readiness check, and the last, which has not reached its limit."""
    says_close = _says_close(site)
    pids: list[int | None] = []
    # Continue until a worker's whole life was observed
    while len(pids) < REQUESTS or (not _served(pids) and len(pids) < MAX_REQUESTS):
        answer = site.ask("/about")  # may fail while workers are replaced
        pids.append(answer.about["pid"] if answer.status == 200 else None)
        site.wait(PACE_S)
    return {
        "served": _served(pids),
        "failed": pids.count(None),
        "asked": len(pids),
        "says_close": says_close,
    }


def _served(pids: Sequence[int | None]) -> list[int]:
    """Consecutive requests served by each worker, except the first and the last."""
    return [len(list(answers)) for pid, answers in groupby(pids) if pid is not None][1:-1]


def _look_at_lingering(site: Site) -> Seen:
    """One client keeps its connection open after its last answer while another sends a request.
    Repeated TRIES times."""
    site.ask("/file")
    free_s = _fastest([site.ask("/about") for _ in range(3)])
    behind_s = [site.repeat_if_stalled(lambda: _behind_s(site)) for _ in range(TRIES)]
    return {
        "free_s": free_s,
        "behind_s": behind_s,
        "sendfiles": site.ask("/about").about.get("sendfiles"),
    }


def _behind_s(site: Site) -> float:
    """The response time of the second client (see `_look_at_lingering`)."""
    with site.connect() as connection:
        exchange(connection, "/about", "Connection: close")
        return site.ask("/about").took_s


def _fastest(answers: Sequence[AppReply]) -> float:
    return min(answer.took_s for answer in answers)


SLOTS = SettingLaunch("slots", fixed(worker_connections=CONNECTIONS), _look_at_slots, 2.5)
THREADED = SettingLaunch("threads", fixed(threads=THREADS), _look_at_slots, 1.5, threads=THREADS)
RECYCLING = SettingLaunch("recycling", _recycled, _look_at_recycling, 4.0)
LINGERING = SettingLaunch("lingering", fixed(sendfile=True), _look_at_lingering, 1.0)
