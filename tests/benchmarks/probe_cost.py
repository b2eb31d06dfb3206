"""What the probe costs: hello-world throughput with it, over throughput without it, per class.

    python tests/benchmarks/probe_cost.py [CLASSES] [--launches 8] [--pairs 4] [--seconds 1]

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
import re
import shutil
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from workerlab.model import App, Server
from workerlab.run_store import copy_code
from workerlab.server.gunicorn import running
from workerlab.server.running import Launch, Running
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


def launch(name: str, directory: Path, records: int) -> Launch:
    import sys

    code = directory / "code"
    code.mkdir(parents=True)
    copy_code(code)
    (code / "hello.py").write_text(HELLO)
    (directory / "trial").mkdir()
    target = "hello:asgi" if name in ASGI_CLASSES else "hello:wsgi"
    server = Server(name, workers=1, threads=2 if name == "gthread" else 1,
                    backlog=2048, worker_connections=1000)  # fmt: skip
    app = App(target=target, chdir=str(code))
    return Launch(server, app, sys.executable, code, directory / "trial", None, records)


def rate(server: Running, seconds: int, header: str) -> float:
    """Requests per second as wrk counts them."""
    argv = ["wrk", "-t1", "-c8", f"-d{seconds}s", "-H", header, server.url]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", text)
    assert found, text
    return float(found[1])


def ratios(name: str, options: argparse.Namespace) -> list[float]:
    """With / without, one per pair, of one launch."""
    pairs, seconds = options.pairs, options.seconds
    header = f"Connection: {'keep-alive' if options.keepalive else 'close'}"
    place = Path(tempfile.mkdtemp(prefix="probe-cost-"))
    try:
        with ExitStack() as stack:
            records = 0 if options.same else 40_000 * seconds * (pairs + 2)
            with_probe = stack.enter_context(running(launch(name, place / "with", records)))
            without = stack.enter_context(running(launch(name, place / "without", 0)))
            found = []
            for number in range(pairs + 1):
                order = [with_probe, without] if number % 2 else [without, with_probe]
                seen = {id(server): rate(server, seconds, header) for server in order}
                found.append(seen[id(with_probe)] / seen[id(without)])
            return found[1:]  # the first pair warmed both up
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
        found = table[name] = [ratios(name, options) for _ in range(options.launches)]
        middle = statistics.median(ratio for launch in found for ratio in launch)
        low, _, high = statistics.quantiles([statistics.median(one) for one in found], n=4)
        print(f"{name:10} {middle:7.3f} {low:7.3f} {high:7.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
