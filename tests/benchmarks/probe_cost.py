"""What the probe costs: hello-world throughput with it, over throughput without it, per class.

    python -m tests.benchmarks.probe_cost [CLASSES] [--launches 8] [--pairs 4] [--seconds 1]

Two servers of one worker run side by side, one with and one without the probe, and wrk drives
them in turn, the first of each pair alternating, so that both meet the same machine. Two launches
of the very same server differ by several percent (memory layout, hash seeds), so that the pair is
launched anew several times. Printed is the median of all paired ratios, and the quartiles of the
launches' medians. `--same` runs both without the probe: what the method itself shows where there
is nothing to show. One connection per request, as the lab loads its cells; `--keepalive` where the
class has it: there a request is cheapest and the probe weighs most.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from tests.benchmarks.machine import wrk_rps
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
    """With / without, one per pair, of one launch."""
    pairs, seconds = options.pairs, options.seconds
    connection = "keep-alive" if options.keepalive else "close"
    place = Path(tempfile.mkdtemp(prefix="probe-cost-"))
    try:
        with ExitStack() as stack:
            records = 0 if options.same else 40_000 * seconds * (pairs + 2)
            servers = {
                "with": stack.enter_context(serve(hello(name, place / "with", records))),
                "without": stack.enter_context(serve(hello(name, place / "without", 0))),
            }
            results = []
            for number in range(pairs + 1):
                order = ("with", "without") if number % 2 else ("without", "with")
                rps = {side: wrk_rps(servers[side].url, seconds, connection) for side in order}
                results.append(rps["with"] / rps["without"])
            return results[1:]  # the first pair warmed both up
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("classes", nargs="?", default=",".join(CLASSES))
    words.add_argument("--launches", type=int, default=8)
    words.add_argument("--pairs", type=int, default=4)
    words.add_argument("--same", action="store_true", help="no probe in either")
    words.add_argument("--seconds", type=int, default=1)
    words.add_argument("--keepalive", action="store_true", help="reuse connections")
    words.add_argument("--json", type=Path, help="keep the ratios")
    options = words.parse_args()
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
