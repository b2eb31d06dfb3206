"""Throughput and CPU of pairs of load generators, as ratios of repeated measurements.

    python -m tests.benchmarks.generators [PAIRS] [--repeats 7] [--seconds 3] [--json FILE]

The server runs on the last core: one that does nothing, or an nginx whose answers are all the same
(except the Date) or all different (its $request_id). The generators run on the first core, in
turn, and the order alternates between repetitions. Each repetition gives one ratio; printed are the
median and the quartiles of these, and the limits. A broken limit is no error: a wide spread, or
many busy cores besides the generator's, indicate that other programs used the machine.

The CPU of a generator, from wait4, is that of the whole program, including its start: 0.1 s for
fast, nearly nothing for wrk.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.machine import alternating, busy_s
from tests.benchmarks.nginx import nginx
from workerlab.load.registry import tool_named
from workerlab.model.evidence import Command, Output
from workerlab.model.plan import Load, NullServer, Route, Server
from workerlab.server.null_server import null_server

SLACK_S = 60.0


@dataclass(frozen=True)
class Pair:
    """`tool` against `reference`. `limits`: (figure, ">=" or "<=", limit) of the ratio. `answer`:
    of nginx, or "" for the server that does nothing. `rows`: `tool` writes a row per request;
    `mix`: the number of different requests that it sends in turn."""

    name: str
    tool: str
    reference: str
    connections: int
    keepalive: bool
    limits: tuple[tuple[str, str, float], ...]
    answer: str = ""
    rows: bool = False
    mix: int = 0


SAME, DIFFERENT = "0123456789abcdef" * 2, "$request_id"
PAIRS = (
    Pair("wrk", "fast", "wrk", 100, True,
         (("rps", ">=", 0.9), ("cpu_per_request_s", "<=", 1.5))),
    Pair("same", "fast", "wrk", 100, True,
         (("rps", ">=", 0.9), ("cpu_per_request_s", "<=", 1.5)), SAME),
    Pair("different", "fast", "wrk", 100, True,
         (("rps", ">=", 0.8), ("cpu_per_request_s", "<=", 1.8)), DIFFERENT),
    Pair("rows", "fast", "wrk", 100, True, (("rps", ">=", 0.9),), SAME, rows=True),
    Pair("different-rows", "fast", "wrk", 100, True, (("rps", ">=", 0.8),), DIFFERENT, rows=True),
    Pair("mix", "fast", "wrk", 100, True,
         (("rps", ">=", 0.8), ("cpu_per_request_s", "<=", 1.8)), DIFFERENT, mix=5),
    Pair("aiohttp", "fast", "coroutines", 100, True, (("rps", ">=", 8.0),)),
    Pair("locust", "fast", "locust-fast", 100, True, (("rps", ">=", 10.0),)),
    Pair("ab", "fast", "ab", 100, False, (("rps", ">=", 0.6),)),
)  # fmt: skip
AB_RPS = 8_000  # ab takes a number of requests instead of a duration


@dataclass(frozen=True)
class LoadResult:
    """Successes per second, CPU of the generator, cores used by all other programs."""

    rps: float
    cpu_per_request_s: float
    others_cores: float


def drive(tool: str, pair: Pair, url: str, seconds: float, core: int) -> LoadResult:
    """Run a tool on `core` until it ends."""
    load = Load(
        concurrency=pair.connections,
        requests=round(AB_RPS * seconds),
        duration_s=seconds,
        deadline_s=seconds + SLACK_S,
        keepalive=pair.keepalive,
        timed=True,
        same_body=pair.answer != DIFFERENT,
        summed=True,
        mix=tuple(Route(path=f"/{n}") for n in range(pair.mix if tool == pair.tool else 0)),
    )
    adapter = tool_named(tool)
    with tempfile.TemporaryDirectory(prefix="generators-") as name:
        directory = Path(name)
        command = _one_thread(adapter.command(load, url, name))
        if pair.rows and tool == pair.tool:
            rows = ("--rows", str(directory / adapter.OUTPUT_FILES[0]))
            command = Command((*command.argv, *rows), command.files)
        for name, text in command.files.items():
            (directory / name).write_text(text)
        before_s, start_s = busy_s(), time.monotonic()
        output, cpu_s = _run(command.argv, directory, core)
        duration_s, used_s = time.monotonic() - start_s, busy_s() - before_s
        paths = [directory / name for name in adapter.OUTPUT_FILES]
        files = {path.name: path.read_text() for path in paths if path.is_file()}
        measured = adapter.parse(Output(*output, files))
    assert not measured.failed, (tool, measured.errors)
    assert measured.rps, tool
    others_cores = max(0.0, (used_s - cpu_s) / duration_s)
    return LoadResult(measured.rps, cpu_s / measured.requests, others_cores)


def _one_thread(command: Command) -> Command:
    """By default wrk uses two threads for more than 64 connections."""
    argv = list(command.argv)
    if argv[0] == "wrk":
        argv[argv.index("-t") + 1] = "1"
    return Command(tuple(argv), command.files)


def _run(argv: Sequence[str], cwd: Path, core: int) -> tuple[tuple[str, str, int], float]:
    """((stdout, stderr, exit code), CPU seconds) of a program on one core."""
    pinned = ["taskset", "-c", str(core), *argv]
    with (cwd / "stdout").open("w") as out, (cwd / "stderr").open("w") as err:
        process = subprocess.Popen(pinned, cwd=cwd, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    texts = (cwd / "stdout").read_text(), (cwd / "stderr").read_text()
    return (*texts, process.returncode), usage.ru_utime + usage.ru_stime


@contextmanager
def serving(pair: Pair, core: int | None) -> Iterator[str]:
    """The URL of the server of a pair."""
    with tempfile.TemporaryDirectory(prefix="generators-server-") as name:
        if pair.answer:
            with nginx(pair.answer, Path(name), core) as url:
                yield url
        else:
            null = Server("null", 1, 1, 4096, 0, null=NullServer(core=core))
            with null_server(null, Path(name)) as server:
                yield server.url


Results = Sequence[tuple[LoadResult, LoadResult]]


def compare(pair: Pair, repeats: int, seconds: float) -> Results:
    """(tool, reference) of each repetition."""
    cores = sorted(os.sched_getaffinity(0))
    with serving(pair, cores[-1] if len(cores) > 1 else None) as url:
        tools = {True: pair.tool, False: pair.reference}
        return alternating(repeats, lambda side: drive(tools[side], pair, url, seconds, cores[0]))


def missing(pair: Pair) -> str | None:
    tool = tool_named(pair.reference)
    if pair.answer and not shutil.which("nginx"):
        return "nginx is not installed"
    if tool.PROGRAM and not shutil.which(tool.PROGRAM):
        return f"{tool.PROGRAM} is not installed"
    packages = [name for name in tool.NEEDS if importlib.util.find_spec(name) is None]
    return f"needs {' and '.join(packages)}" if packages else None


def show(pair: Pair, results: Results) -> None:
    for figure, sign, limit in pair.limits:
        ratios = [
            getattr(result, figure) / getattr(reference, figure) for result, reference in results
        ]
        low, middle, high = statistics.quantiles(ratios, n=4)
        kept = middle >= limit if sign == ">=" else middle <= limit
        print(f"{pair.name}: {pair.tool} / {pair.reference}, {pair.connections} connections"
              f"{'' if pair.keepalive else ', one per request'}: {figure}"
              f" {middle:.2f} ({low:.2f} to {high:.2f}), limit {sign} {limit:g}:"
              f" {'kept' if kept else 'BROKEN'}", flush=True)  # fmt: skip
    for name, side in zip((pair.tool, pair.reference), zip(*results, strict=True), strict=True):
        rps = statistics.median(result.rps for result in side)
        cpu_s = statistics.median(result.cpu_per_request_s for result in side)
        others_cores = statistics.median(result.others_cores for result in side)
        print(f"    {name}: {rps:.0f} requests/s, {cpu_s * 1e6:.1f} us of CPU per request;"
              f" others used {others_cores:.2f} cores", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="?", default=",".join(pair.name for pair in PAIRS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path, help="keep the figures")
    options = parser.parse_args()
    table = {}
    for pair in PAIRS:
        if pair.name not in options.pairs.split(","):
            continue
        if why := missing(pair):
            print(f"{pair.tool} / {pair.reference}: left out, {why}", file=sys.stderr)
            continue
        results = compare(pair, options.repeats, options.seconds)
        show(pair, results)
        table[pair.name] = [[asdict(result) for result in sides] for sides in results]
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
