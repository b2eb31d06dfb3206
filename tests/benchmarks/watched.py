"""What it costs a server to be watched: requests per second of the live page's load while its
events are read twenty times a second, against the same while nobody looks. Paired, medians.

    python -m tests.benchmarks.watched [PAIRS] [SECONDS]

Watched: spans, the accept queue and the clients' events are read, and all moves are encoded. Else
only the clients' events are read, so that they can go on. Compared are the throughput of a closed
load and the CPU of the server per request.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import psutil

from workerlab import codec
from workerlab.experiments.lesson.settings import LoadSettings, ServerSettings
from workerlab.experiments.live.side import LiveServer, Side
from workerlab.report.player.places import as_rows
from workerlab.server.preflight import Interpreter

TICK_S = 0.05
WARM_S = 1.0


def measured(
    live: LiveServer, workers: list[psutil.Process], seconds: float, *, watched: bool
) -> tuple:
    """(requests per second, CPU seconds of the workers per request)"""

    def cpu_s() -> float:
        return sum(sum(worker.cpu_times()[:2]) for worker in workers)

    live.poll()
    before, began_s, before_s, served = live.places.answered, time.monotonic(), cpu_s(), 0
    while time.monotonic() - began_s < seconds:
        time.sleep(TICK_S)
        if watched:
            codec.encode(as_rows(live.poll().moves, 0))
        else:
            served += answers_in(live)
    used_s, lasted_s = cpu_s() - before_s, time.monotonic() - began_s
    if watched:
        served = live.places.answered - before
    return served / lasted_s, used_s / served


def answers_in(live: LiveServer) -> int:
    """Reads the clients' events and does nothing else."""
    try:
        return sum(line.startswith(b"e ") for line in os.read(live._events, 1 << 20).splitlines())
    except BlockingIOError:
        return 0


def main(pairs: int = 10, seconds: float = 4.0) -> None:
    interpreter = Interpreter(sys.executable, "", (), (), {}, {})
    side = Side(ServerSettings(worker_class="gthread", workers=1, threads=8), interpreter)
    side.start(LoadSettings(clients=8, delay_s=0.02))
    while side.live is None:
        assert side.phase != "failed", side.why
        time.sleep(TICK_S)
    live = side.live
    workers = [psutil.Process(pid) for pid in live._server.proofs]
    time.sleep(WARM_S)
    ratios: list[tuple[float, float]] = []
    for number in range(pairs):
        sides = {
            watched: measured(live, workers, seconds, watched=watched)
            for watched in ((True, False) if number % 2 else (False, True))
        }
        ratios.append(tuple(a / b for a, b in zip(sides[True], sides[False], strict=True)))
        print("watched / not: req/s {:.3f}, CPU/request {:.3f}".format(*ratios[-1]), flush=True)
    rps, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"medians of {pairs} pairs: req/s {rps:.3f}, CPU of the server per request {cpu:.3f}")
    side.stop()
    side.join(10)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
