"""A server's first requests: it answers as expected, what a lone request costs, all are warm."""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor

from harness.observe.spans import served
from harness.server.http import Answer, ask
from harness.server.running import Faulty, Running, last_error, read_proofs

LONE_TIMEOUT_S = 60.0
LONE_MOST = 5  # lone requests, where they are short: one alone would be all noise
LONE_S = 0.5  # enough of them
WARMUP_S = 1.0


def warm_up(server: Running) -> None:
    """The readiness request, short bursts until every worker has served one, lone requests.

    What a lone request costs is asked of warm workers: the first request of each may connect to a
    database or fill a cache, and would make the bound several times too low. Readiness and bursts
    use a cheaper request where the lab knows one.
    """
    began = time.monotonic()
    path = server.launch.warmup_path
    first = _expected(server, path)
    slow_s = 0.0 if path else 2 * first.response_s
    _reach_every_worker(server, until=time.monotonic() + max(WARMUP_S, slow_s))
    while len(server.lone_s) < LONE_MOST and sum(server.lone_s) < LONE_S:
        server.lone_s.append(_expected(server).response_s)
    server.proofs = read_proofs(server.launch.trial, but=server.strangers)
    server.warmup_s = time.monotonic() - began


def _expected(server: Running, path: str | None = None) -> Answer:
    """A lone request that got the expected answer. Raises Faulty otherwise."""
    app = server.launch.app
    try:
        answer = ask(app, server.host, server.port, path=path, timeout_s=LONE_TIMEOUT_S)
    except (OSError, http.client.HTTPException) as error:
        log = last_error(server.log)
        raise Faulty("answer", f"no answer to a first request ({error!r}); log: {log}") from error
    if answer.status != app.expect_status:
        raise Faulty(
            "answer",
            f"{app.method} {app.path} answered {answer.status}, expected {app.expect_status}"
            f" (say --expect-status if that is right); its log: {server.log}",
        )
    return answer


def _reach_every_worker(server: Running, until: float) -> None:
    """Bursts of requests; which worker takes which is the kernel's choice, so look who served."""
    launch = server.launch
    at_once = min(32, 2 * launch.server.workers)

    def one(_: int) -> None:
        try:
            ask(
                launch.app,
                server.host,
                server.port,
                path=launch.warmup_path,
                timeout_s=LONE_TIMEOUT_S,
            )
        except (OSError, http.client.HTTPException):
            return  # an overloaded server may refuse; the load will show it

    pool = ThreadPoolExecutor(at_once)
    try:
        while len(reached := served(launch.trial) - server.strangers) < launch.server.workers:
            if time.monotonic() > until:
                left = launch.server.workers - len(reached)
                server.warnings.append(f"warm-up did not reach {left} worker(s)")
                return
            list(pool.map(one, range(at_once)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interrupt must not wait for answers
