"""WSGI apps with known behaviour, selected by CASE:

steady       sleeps SLEEP_MS, computes CPU_MS
exponential, bimodal, heavy     the same with random sleeps
lock, pool   holds a lock for three fifths of the sleep; a place in a pool of 2 for all of it
machine-lock as lock, with one lock for all workers
gil          holds the GIL for two fifths of the sleep
drift, leak  each request of a worker sleeps, or computes, longer than the previous one
slow-first   a pool of connections that grows on demand: opening one takes a second
slow-boot    a worker takes 4 s to boot
dies         a worker exits after its 50th request
sheds        503 at once if the worker is serving 2 other requests
fails        500 for each fifth request that is not alone in its worker
errors       500 for 1 in 20 requests, at random
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import accept_quota
from work import CASE, CPU_S, QUOTAS, SLEEP_S, burn, hold_gil, random_s

if TYPE_CHECKING:
    from collections.abc import Iterator
    from wsgiref.types import StartResponse, WSGIEnvironment

OPEN_S = 1.0  # to open a connection
MAX_REQUESTS = 50  # of a worker in "dies"

LOCK, POOL, SHED = threading.Lock(), threading.BoundedSemaphore(2), threading.BoundedSemaphore(2)
ALONE = threading.Lock()
COUNTER = itertools.count(1)
IDLE: list[object] = []  # connections of the growing pool


@contextmanager
def pooled_connection() -> Iterator[None]:
    """A connection of the growing pool."""
    try:
        connection = IDLE.pop()
    except IndexError:
        connection = object()
        time.sleep(OPEN_S)
    try:
        yield
    finally:
        IDLE.append(connection)


def steady() -> str:
    time.sleep(random_s())
    return "200 OK"


def lock() -> str:
    time.sleep(SLEEP_S * 0.4)
    with LOCK:
        time.sleep(SLEEP_S * 0.6)
    return "200 OK"


def machine_lock() -> str:
    time.sleep(SLEEP_S * 0.4)
    with open(__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(SLEEP_S * 0.6)
    return "200 OK"


def errors() -> str:
    time.sleep(SLEEP_S)
    return "200 OK" if random.random() < 0.95 else "500 Internal Server Error"


def pool() -> str:
    with POOL:
        time.sleep(SLEEP_S)
    return "200 OK"


def gil() -> str:
    time.sleep(SLEEP_S * 0.6)
    hold_gil(SLEEP_S * 0.4)
    return "200 OK"


def drift() -> str:
    time.sleep(SLEEP_S * (1 + next(COUNTER) / 40))
    return "200 OK"


def leak() -> str:
    burn(0.0004 * next(COUNTER))
    time.sleep(SLEEP_S)
    return "200 OK"


def slow_first() -> str:
    with pooled_connection():
        time.sleep(SLEEP_S)
    return "200 OK"


def dies() -> str:
    time.sleep(SLEEP_S)
    if next(COUNTER) == MAX_REQUESTS:
        os._exit(3)
    return "200 OK"


def sheds() -> str:
    if not SHED.acquire(blocking=False):
        return "503 Service Unavailable"
    try:
        time.sleep(SLEEP_S)
    finally:
        SHED.release()
    return "200 OK"


def fails() -> str:
    alone = ALONE.acquire(blocking=False)
    try:
        time.sleep(SLEEP_S)
    finally:
        if alone:
            ALONE.release()
    return "200 OK" if alone or next(COUNTER) % 5 else "500 Internal Server Error"


CASES: dict[str, Callable[[], str]] = {
    "lock": lock,
    "pool": pool,
    "machine-lock": machine_lock,
    "errors": errors,
    "gil": gil,
    "drift": drift,
    "leak": leak,
    "slow-first": slow_first,
    "dies": dies,
    "sheds": sheds,
    "fails": fails,
}
WORK = CASES.get(CASE, steady)

if CASE == "slow-boot":
    time.sleep(4.0)
if QUOTAS:
    accept_quota.limit_accepts(QUOTAS)


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    if CPU_S:
        burn(CPU_S)
    status = WORK()
    body = f"{status}\n".encode()
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
