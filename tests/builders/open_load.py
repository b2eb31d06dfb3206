"""A load at a rate on a real server, with the times of each request."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.builders.launch import launch
from workerlab.model.plan import App, Server
from workerlab.observe.spans import read_spans
from workerlab.server import serve as serving

GENERATORS = Path(__file__).parents[2] / "harness" / "workerlab" / "load" / "generators"

# The number of a request determines how long it sleeps. The environment sets the mean and the
# distribution of the sleep, the CPU time of a request, and how many may sleep at once
APP = """
import itertools, os, random, threading, time

MEAN_S, KIND = float(os.environ.get("MEAN_S", "0.05")), os.environ.get("KIND", "constant")
CPU_S = float(os.environ.get("CPU_S", "0"))
POOL = threading.Semaphore(int(os.environ.get("POOL", "1000")))

COUNT = itertools.count(os.getpid() * 1000000)  # for requests without a number


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
    """Seconds since the load's origin: due, and inside the app of worker `pid`. `response_s`: since
    the request was due."""

    arrival_s: float
    response_s: float
    connect_s: float
    pid: int
    start_s: float
    end_s: float


class Served(Struct, frozen=True):
    requests: tuple[Request, ...]  # by arrival
    lone_s: tuple[float, ...]  # response times of lone requests before the load
    lone_spans_s: tuple[float, ...]  # their times inside the app
    failed: int


def serve(server: Server, rate_rps: float, duration_s: float, seed: int, **env: object) -> Served:
    """`env`: the environment of APP."""
    with tempfile.TemporaryDirectory(prefix="open-load-") as name:
        directory = Path(name)
        (directory / "app").mkdir()
        (directory / "app" / "known.py").write_text(APP)
        variables = tuple((name, str(value)) for name, value in env.items())
        app = App(target="known:wsgi", chdir=str(directory / "app"), env=variables)
        records, rows = round(rate_rps * duration_s * 2) + 1000, directory / "rows.csv"
        request = launch(directory, server, app, records=records, names_requests=True)
        with serving.serve(request) as running:
            argv = [sys.executable, "-I", "-S", str(GENERATORS), "fast", "--url", running.url]
            argv += ["--concurrency", "1000", "--rows", str(rows)]
            argv += ["--rate", str(rate_rps), "--duration", str(duration_s)]
            argv += ["--arrivals", "poisson", "--seed", str(seed)]
            process = subprocess.run(argv, capture_output=True, text=True, check=True)
            lone_s = tuple(running.lone_s)
        return _with_spans(directory / "trial", rows, json.loads(process.stdout), lone_s)


def _with_spans(
    trial: Path, rows: Path, measurement: dict[str, Any], lone_s: tuple[float, ...]
) -> Served:
    """The successful requests in `rows`, each with its span."""
    all_spans = read_spans(trial).spans
    spans = {span.request_id: span for span in all_spans if span.request_id and span.end_ns}
    origin, requests = measurement["origin_ns"], []
    with rows.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["cause"] or (span := spans.get(row["id"])) is None:
                continue
            request = Request(
                arrival_s=int(row["start_ns"]) / 1e9,
                response_s=int(row["end_ns"]) / 1e9,
                connect_s=int(row["connect_ns"]) / 1e9,
                pid=span.pid,
                start_s=(span.start_ns - origin) / 1e9,
                end_s=(span.end_ns - origin) / 1e9,
            )
            requests.append(request)
    requests.sort(key=lambda request: request.arrival_s)
    lone = sorted((s.start_ns, s.end_ns or 0) for s in all_spans if s.start_ns < origin)
    lone_spans_s = tuple((end_ns - start_ns) / 1e9 for start_ns, end_ns in lone[-len(lone_s) :])
    return Served(tuple(requests), lone_s, lone_spans_s, measurement["failed"])
