"""What the load generators cost against each other: ratios of one run, paired and repeated.

    python -m tests.benchmarks.generators [PAIRS] [--repeats 7] [--seconds 3] [--json FILE]

The server has the machine's last core to itself: one that does nothing, or an nginx whose answers
are all the same (but for the Date) or all differ (its $request_id). The generators share the first.
A pair is driven in turn, the first of each repetition alternating, so that both meet the same
machine, and each repetition gives one ratio: printed are the median and the quartiles of these, and
what was asked. Nothing fails: on a machine that others use, the spread says so, and the last column
says how much of the cores others took.

The CPU of a generator is that of the whole program, exact from wait4: its start, 0.1 s of fast and
nothing of wrk, counts against it.
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

import psutil

from tests.benchmarks.nginx import nginx
from workerlab.load.registry import tool_named
from workerlab.model import Command, Load, NullServer, Output, Route, Server
from workerlab.server.null_server import null_server

SLACK_S = 60.0


@dataclass(frozen=True)
class Pair:
    """`one` against `other` with so many connections. `asked`: (what, at least or at most, limit).
    `wrk` runs in one thread; `requests` for `other` where it only counts. `answer`: what nginx
    answers, "" for the server that does nothing. `rows`: `one` writes a row per request; `mix`:
    it sends so many different requests by turns."""

    name: str
    one: str
    other: str
    connections: int
    keepalive: bool
    asked: tuple[tuple[str, str, float], ...]
    answer: str = ""
    rows: bool = False
    mix: int = 0


SAME, DIFFERENT = "0123456789abcdef" * 2, "$request_id"
PAIRS = (
    Pair("wrk", "fast", "wrk", 100, True,
         (("rps", ">=", 0.9), ("cpu_per_request", "<=", 1.5))),
    Pair("same", "fast", "wrk", 100, True,
         (("rps", ">=", 0.9), ("cpu_per_request", "<=", 1.5)), SAME),
    Pair("different", "fast", "wrk", 100, True,
         (("rps", ">=", 0.8), ("cpu_per_request", "<=", 1.8)), DIFFERENT),
    Pair("rows", "fast", "wrk", 100, True, (("rps", ">=", 0.9),), SAME, rows=True),
    Pair("different-rows", "fast", "wrk", 100, True, (("rps", ">=", 0.8),), DIFFERENT, rows=True),
    Pair("mix", "fast", "wrk", 100, True,
         (("rps", ">=", 0.8), ("cpu_per_request", "<=", 1.8)), DIFFERENT, mix=5),
    Pair("aiohttp", "fast", "coroutines", 100, True, (("rps", ">=", 8.0),)),
    Pair("locust", "fast", "locust-fast", 100, True, (("rps", ">=", 10.0),)),
    Pair("ab", "fast", "ab", 100, False, (("rps", ">=", 0.6),)),
)  # fmt: skip
AB_RPS = 8_000  # so many requests per second ab is asked for


@dataclass(frozen=True)
class Seen:
    """One load: successes per second, CPU of the generator, cores that others used meanwhile."""

    rps: float
    cpu_per_request_s: float
    others: float


def drive(tool: str, pair: Pair, url: str, seconds: float, core: int) -> Seen:
    """Runs a tool on `core` until it ends."""
    load = Load(
        concurrency=pair.connections,
        requests=round(AB_RPS * seconds),
        duration_s=seconds,
        deadline_s=seconds + SLACK_S,
        keepalive=pair.keepalive,
        timed=True,
        same_body=pair.answer != DIFFERENT,
        summed=True,
        mix=tuple(Route(path=f"/{n}") for n in range(pair.mix if tool == pair.one else 0)),
    )
    with tempfile.TemporaryDirectory(prefix="generators-") as place:
        command = _one_thread(tool_named(tool).command(load, url, place))
        if pair.rows and tool == pair.one:
            rows = ("--rows", f"{place}/{tool_named(tool).OUTPUT_FILES[0]}")
            command = Command((*command.argv, *rows), command.files)
        for name, text in command.files.items():
            Path(place, name).write_text(text)
        before, began = _busy_s(), time.monotonic()
        output, cpu_s = _run(command.argv, Path(place), core)
        took_s, busy_s = time.monotonic() - began, _busy_s() - before
        files = {
            name: Path(place, name).read_text()
            for name in tool_named(tool).OUTPUT_FILES
            if Path(place, name).is_file()
        }
        said = tool_named(tool).parse(Output(*output, files))
    assert not said.failed, (tool, said.errors)
    assert said.rps, tool
    # What is busy beside the generator: the server (known by its own pair's ratio) and others
    others = max(0.0, (busy_s - cpu_s) / took_s)
    return Seen(said.rps, cpu_s / said.requests, others)


def _one_thread(command: Command) -> Command:
    """wrk takes two above 64 connections by itself."""
    argv = list(command.argv)
    if argv[0] == "wrk":
        argv[argv.index("-t") + 1] = "1"
    return Command(tuple(argv), command.files)


def _run(argv: Sequence[str], place: Path, core: int) -> tuple[tuple[str, str, int], float]:
    """((stdout, stderr, exit code), CPU seconds) of a program on one core."""
    with (place / "stdout").open("w") as out, (place / "stderr").open("w") as err:
        child = subprocess.Popen(
            ["taskset", "-c", str(core), *argv], cwd=place, stdout=out, stderr=err
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    texts = (place / "stdout").read_text(), (place / "stderr").read_text()
    return (*texts, child.returncode), used.ru_utime + used.ru_stime


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


@contextmanager
def serving(pair: Pair, core: int | None) -> Iterator[str]:
    """The address of the server of a pair."""
    place = Path(tempfile.mkdtemp(prefix="generators-server-"))
    try:
        if pair.answer:
            with nginx(pair.answer, place, core) as url:
                yield url
        else:
            asked = Server("null", 1, 1, 4096, 0, null=NullServer(core=core))
            with null_server(asked, place) as server:
                yield server.url
    finally:
        shutil.rmtree(place, ignore_errors=True)


def compare(pair: Pair, repeats: int, seconds: float) -> list[tuple[Seen, Seen]]:
    """(one, other) of each repetition."""
    cores = sorted(os.sched_getaffinity(0))
    with serving(pair, cores[-1] if len(cores) > 1 else None) as url:
        found = []
        for number in range(repeats + 1):
            order = (pair.one, pair.other) if number % 2 else (pair.other, pair.one)
            seen = {tool: drive(tool, pair, url, seconds, cores[0]) for tool in order}
            found.append((seen[pair.one], seen[pair.other]))
        return found[1:]  # the first repetition warmed the machine up


def ratios(found: Sequence[tuple[Seen, Seen]], what: str) -> list[float]:
    if what == "rps":
        return [one.rps / other.rps for one, other in found]
    return [one.cpu_per_request_s / other.cpu_per_request_s for one, other in found]


def missing(pair: Pair) -> str | None:
    tool = tool_named(pair.other)
    if pair.answer and not shutil.which("nginx"):
        return "nginx is not installed"
    if tool.PROGRAM and not shutil.which(tool.PROGRAM):
        return f"{tool.PROGRAM} is not installed"
    lacking = [name for name in tool.NEEDS if importlib.util.find_spec(name) is None]
    return f"needs {' and '.join(lacking)}" if lacking else None


def show(pair: Pair, found: Sequence[tuple[Seen, Seen]]) -> None:
    for what, sign, limit in pair.asked:
        each = ratios(found, what)
        low, middle, high = statistics.quantiles(each, n=4)
        kept = middle >= limit if sign == ">=" else middle <= limit
        print(
            f"{pair.name}: {pair.one} / {pair.other}, {pair.connections} connections"
            f"{'' if pair.keepalive else ', one per request'}: {what.replace('_', ' ')}"
            f" {middle:.2f} ({low:.2f} to {high:.2f}), asked {sign} {limit:g}:"
            f" {'yes' if kept else 'NO'}",
            flush=True,
        )
    for place, name in enumerate((pair.one, pair.other)):
        rps = statistics.median(both[place].rps for both in found)
        cpu = statistics.median(both[place].cpu_per_request_s for both in found)
        beside = statistics.median(both[place].others for both in found)
        print(f"    {name}: {rps:.0f} requests/s, {cpu * 1e6:.1f} us of CPU per request;"
              f" beside it {beside:.2f} cores busy", flush=True)  # fmt: skip


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("pairs", nargs="?", default=",".join(pair.name for pair in PAIRS))
    words.add_argument("--repeats", type=int, default=7)
    words.add_argument("--seconds", type=float, default=3.0)
    words.add_argument("--json", type=Path, help="keep what was seen")
    options = words.parse_args()
    table = {}
    for pair in PAIRS:
        if pair.name not in options.pairs.split(","):
            continue
        if why := missing(pair):
            print(f"{pair.one} / {pair.other}: left out, {why}", file=sys.stderr)
            continue
        found = compare(pair, options.repeats, options.seconds)
        show(pair, found)
        table[pair.name] = [(asdict(one), asdict(other)) for one, other in found]
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
