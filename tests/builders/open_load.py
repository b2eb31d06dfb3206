"""A load by a schedule on a real server, and what became of each request."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.builders.launch import launch
from workerlab.load.generators.format import COLUMNS
from workerlab.model.plan import App, Arrivals, Server
from workerlab.observe.spans import read_spans
from workerlab.server import serve as serving

GENERATORS = Path(__file__).parents[2] / "harness" / "workerlab" / "load" / "generators"

# Sleeps and computes as long as its number says, so that each of a load's requests is known. The
# mean of the sleep, of what kind, seconds of CPU and how many may sleep at once stand in the
# environment
APP = """
import itertools, os, random, threading, time

MEAN_S, KIND = float(os.environ.get("MEAN_S", "0.05")), os.environ.get("KIND", "constant")
CPU_S = float(os.environ.get("CPU_S", "0"))
POOL = threading.Semaphore(int(os.environ.get("POOL", "1000")))

COUNT = itertools.count(os.getpid() * 1000000)  # for those without a number


def needs(number):
    rng = random.Random(number or next(COUNT))
    if KIND == "exponential":
        return rng.expovariate(1 / MEAN_S), CPU_S
    if KIND == "tail":
        return (1.0 if rng.random() < 0.03 else MEAN_S), CPU_S
    return MEAN_S, CPU_S


def burn(cpu_s):
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        sum(range(100))


def wsgi(environ, start_response):
    wait_s, cpu_s = needs(environ.get("HTTP_X_WORKERLAB_REQUEST", ""))
    if wait_s:
        with POOL:
            time.sleep(wait_s)
    if cpu_s:
        burn(cpu_s)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"ok\\n"]


async def asgi(scope, receive, send):
    import asyncio

    if scope["type"] != "http":
        return
    number = dict(scope["headers"]).get(b"x-workerlab-request", b"").decode()
    wait_s, cpu_s = needs(number)
    if wait_s:
        await asyncio.sleep(wait_s)
    if cpu_s:
        burn(cpu_s)
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"3")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok\\n"})
"""


class Request(Struct, frozen=True):
    """Seconds since the load's origin: due, and inside the app of worker `pid`. `response_s` from
    the moment it was due; `sent_late_s` is not known to rows, and part of it."""

    arrival_s: float
    response_s: float
    connect_s: float
    pid: int
    start_s: float
    end_s: float
    accept_s: float | None


class Served(Struct, frozen=True):
    requests: tuple[Request, ...]  # by arrival
    lone_s: tuple[float, ...]  # responses of requests on their own, before it
    lone_spans_s: tuple[float, ...]  # and how long these were inside the app
    server_cpu_s: float  # of all workers during the load
    tool_cpu_s: float
    failed: int


def serve(
    server: Server,
    rate_rps: float,
    duration_s: float,
    seed: int,
    *,
    arrivals: Arrivals = "poisson",
    connections: int = 1000,
    asgi: bool = False,
    **env: object,
) -> Served:
    """`env`: of APP."""
    with tempfile.TemporaryDirectory(prefix="open-load-") as directory:
        place = Path(directory)
        (place / "app").mkdir()
        (place / "app" / "known.py").write_text(APP)
        app = App(
            target="known:asgi" if asgi else "known:wsgi",
            chdir=str(place / "app"),
            env=tuple((name, str(value)) for name, value in env.items()),
        )
        room = round(rate_rps * duration_s * 2) + 1000
        with serving.serve(launch(place, server, app, records=room, names_requests=True)) as up:
            rows = place / "rows.csv"
            argv = [sys.executable, "-I", "-S", str(GENERATORS), "fast", "--url", up.url]
            argv += ["--concurrency", str(connections), "--rows", str(rows)]
            argv += ["--rate", str(rate_rps), "--duration", str(duration_s)]
            argv += ["--arrivals", arrivals, "--seed", str(seed)]
            before = [cpu_s(pid) for pid in up.proofs]
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            used = sum(map(cpu_s, up.proofs)) - sum(before)
            lone_s = tuple(up.lone_s)
        return _joined(place, rows, json.loads(done.stdout), lone_s, used)


def cpu_s(pid: int) -> float:
    """Of all threads that the process has now."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _joined(
    place: Path, rows: Path, measurement: dict[str, Any], lone_s: tuple[float, ...], used_s: float
) -> Served:
    all_spans = read_spans(place / "trial").spans
    spans = {span.request_id: span for span in all_spans if span.request_id}
    origin, requests = measurement["origin_ns"], []
    columns = COLUMNS.split(",")
    for line in rows.read_text().splitlines()[1:]:
        row = dict(zip(columns, line.split(","), strict=True))
        span = spans.get(row["id"])
        if row["cause"] or span is None or span.end_ns is None:
            continue
        requests.append(
            Request(
                arrival_s=int(row["start_ns"]) / 1e9,
                response_s=int(row["end_ns"]) / 1e9,
                connect_s=int(row["connect_ns"]) / 1e9,
                pid=span.pid,
                start_s=(span.start_ns - origin) / 1e9,
                end_s=(span.end_ns - origin) / 1e9,
                accept_s=None if span.accept_ns is None else (span.accept_ns - origin) / 1e9,
            )
        )
    requests.sort(key=lambda request: request.arrival_s)
    before = sorted((s.start_ns, s.end_ns or 0) for s in all_spans if s.start_ns < origin)
    alone = tuple((end_ns - start_ns) / 1e9 for start_ns, end_ns in before[-len(lone_s) :])
    tool_cpu_s = measurement["cpu_ns"] / 1e9
    return Served(tuple(requests), lone_s, alone, used_s, tool_cpu_s, measurement["failed"])
