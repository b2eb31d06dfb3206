"""The cost of the probe: the ratio of hello-world throughput with and without it, per class.

    python -m tests.benchmarks.probe_cost [CLASSES] [--launches 8] [--pairs 4] [--seconds 1]

Two servers of one worker run at the same time, one with and one without the probe; wrk loads them
in turn, in alternating order. Two launches of the same server differ by several percent (memory
layout, hash seeds), so the pair is launched several times. Printed are the median of all paired
ratios, and the quartiles of the launches' medians. `--same` runs both without the probe and shows
the error of the method. Each request has its own connection, as in the lab's cells, except with
`--keepalive`, where a request is cheapest and the probe's share highest.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.machine import alternating, wrk_rps
from tests.builders.launch import launch
from workerlab.model.plan import App, Server
from workerlab.server.running import Launch
from workerlab.server.serve import serve
from workerlab.server.worker_classes import ASGI_CLASSES, CLASSES

HELLO = """\
def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "6")])
    return [b"hello\\n"]


async def asgi(scope, receive, send):
    if scope["type"] != "http":
        return
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"6")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello\\n"})
"""


def hello(name: str, directory: Path, records: int) -> Launch:
    directory.mkdir()
    (directory / "hello.py").write_text(HELLO)
    target = "hello:asgi" if name in ASGI_CLASSES else "hello:wsgi"
    server = Server(name, 1, 2 if name == "gthread" else 1, 2048, 1000)
    return launch(directory, server, App(target, str(directory)), records=records)


def ratios(name: str, options: argparse.Namespace) -> list[float]:
    """The ratios with / without of all pairs of one launch."""
    connection = "keep-alive" if options.keepalive else "close"
    records = 0 if options.same else 40_000 * options.seconds * (options.pairs + 2)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="probe-cost-")))
        with_url, without_url = (
            stack.enter_context(serve(hello(name, directory / side, count))).url
            for side, count in (("with", records), ("without", 0))
        )

        def measure(has_probe: bool) -> float:
            return wrk_rps(with_url if has_probe else without_url, options.seconds, connection)

        return [a / b for a, b in alternating(options.pairs, measure)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("classes", nargs="?", default=",".join(CLASSES))
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--same", action="store_true", help="no probe in either")
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--keepalive", action="store_true", help="reuse connections")
    parser.add_argument("--json", type=Path, help="keep the ratios")
    options = parser.parse_args()
    table = {}
    print(f"{'class':10} {'median':>7} {'quartiles':>15}   with probe / without")
    for name in options.classes.split(","):
        launches = table[name] = [ratios(name, options) for _ in range(options.launches)]
        middle = statistics.median(chain.from_iterable(launches))
        low, _, high = statistics.quantiles(map(statistics.median, launches), n=4)
        print(f"{name:10} {middle:7.3f} {low:7.3f} {high:7.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
