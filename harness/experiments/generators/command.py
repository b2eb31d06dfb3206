"""`workerlab generators`: every load generator against the same server, which does nothing.

The server is not under test: it answers 12 bytes from a loop that is pinned to a core of its own
(the last one, where there are two), so that what differs between two points is the generator. Two
questions, two servers:

    as fast as it can     answers at once: requests/s at each number of connections
    at a low rate         answers after 50 ms: 25 connections make 500 requests/s of anybody

A slow server makes the low rate because most generators know no other way to keep to one, and so
all are asked for the very same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import run_store as store
from harness.experiments.points import point_from_json, point_to_json
from harness.experiments.reading import find
from harness.experiments.runner import tell
from harness.experiments.shooting import lacks, shoot, unfinished, versions
from harness.experiments.studies import document_of
from harness.load.registry import TOOLS, tool_named
from harness.model import EnvironmentProblem, Load, Point, Target, UsageError
from harness.options import program
from harness.server import preflight
from harness.terminal.interrupt import Stopped

KIND = "generators"
LEVELS = (1, 10, 100)
DURATION_S = 3.0
LOW_CONNECTIONS, LOW_DELAY_S, LOW_LEAST_S = 25, 0.05, 4.0
# What a tool that only counts requests (ab) is supposed to do: on one connection, on several, and
# where each request connects anew
COUNTED_RPS = {"one": 30_000, "several": 50_000, "anew": 8_000}
SLACK_S = 60.0  # beside the load, until a tool is given up
# Until a tool sends, and after its last answer; only for the prediction
BESIDE_S = {"locust": 3.5, "locust-fast": 3.5, "ab": 0.5, "wrk": 0.5}
BESIDE_OTHERS_S, FORK_S = 1.2, 0.02


@dataclass(frozen=True)
class Way:
    """A generator in so many processes."""

    tool: str
    processes: int = 1


def ways(names: Iterable[str], cores: int) -> list[Way]:
    """Each tool in one process; the lab's own fast one also in one per core."""
    found = []
    for name in names:
        if name == "processes-coroutines":
            found.append(Way(name, max(2, cores)))
            continue
        found.append(Way(name))
        if name == "fast" and cores > 1:
            found.append(Way(name, cores))
    return found


def points(
    chosen: Sequence[Way],
    levels: Iterable[int],
    duration_s: float,
    keepalive: bool,
    core: int | None,
) -> list[Point]:
    """Level by level, the low rate first: neighbours in time are what is compared."""
    quick = Target(core=core)
    slow = replace(quick, delay_s=(LOW_DELAY_S, LOW_DELAY_S))
    low_s = max(LOW_LEAST_S, duration_s)
    found = []
    for way in chosen:
        load = _load(way, LOW_CONNECTIONS, low_s, LOW_CONNECTIONS / LOW_DELAY_S, keepalive)
        found.append(Point(f"low-{_name(way)}-c{LOW_CONNECTIONS}", slow, way.tool, load))
    for level in sorted(set(levels)):
        for way in chosen:
            if way.processes > level > 0:
                continue
            kind = "anew" if not keepalive else "one" if level == 1 else "several"
            load = _load(way, level, duration_s, COUNTED_RPS[kind], keepalive)
            found.append(Point(f"full-{_name(way)}-c{level}", quick, way.tool, load))
    return found


def _name(way: Way) -> str:
    return f"{way.tool}-p{way.processes}" if way.processes > 1 else way.tool


def _load(way: Way, level: int, duration_s: float, rps: float, keepalive: bool) -> Load:
    """`rps`: what tools that only count are supposed to reach."""
    return Load(
        concurrency=level,
        requests=max(1 + level, round(rps * duration_s)),
        duration_s=duration_s,
        deadline_s=duration_s + SLACK_S,
        keepalive=keepalive,
        processes=way.processes,
        timed=True,
        same_body=True,
        summed=True,
    )


def predicted_s(point: Point) -> float:
    forks = point.load.concurrency if point.tool == "processes" else point.load.processes
    return point.load.duration_s + BESIDE_S.get(point.tool, BESIDE_OTHERS_S) + FORK_S * forks


def describe(point: Point) -> str:
    many = f" x{point.load.processes}" if point.load.processes > 1 else ""
    count = point.load.concurrency
    how = f"{count} connection{'' if count == 1 else 's'}"
    if point.target.delay_s[0]:
        how = "low rate"
    return f"{point.tool}{many}, {how}"


def plan(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, object]]:
    """The run's plan and what it was measured on. Raises UsageError for words that cannot be."""
    asked = options.tools or tuple(TOOLS)
    levels = options.levels or LEVELS
    preflight.check_levels([*levels, LOW_CONNECTIONS])
    missing = {name: why for name in asked if (why := lacks(name))}
    there = [name for name in asked if name not in missing]
    if not there:
        raise EnvironmentProblem(" ".join(missing.values()))
    duration_s = options.duration or DURATION_S
    if duration_s < 1:
        raise UsageError(f"--duration {duration_s:g} is too short to see CPU in it: 1 is the least")
    keepalive = options.keepalive is not False
    core = preflight.own_core()
    planned = points(ways(there, preflight.cores() or 1), levels, duration_s, keepalive, core)
    for point in planned:
        tool_named(point.tool).check(point.load)
    said = {
        "kind": KIND,
        "points": [point_to_json(point) for point in planned],
        "unavailable": missing,
        "server_core": core,
        "keepalive": keepalive,
    }
    return said, preflight.machine(versions(there))


def generators(options: argparse.Namespace) -> tuple[Path, int]:
    """Make or resume a run. Returns its directory and the exit code it has earned."""
    directory = _resumed(options) if options.resume else _new(options)
    said = store.load(directory).plan
    for why in said["unavailable"].values():
        tell(f"left out: {why}")
    try:
        shoot(
            directory,
            unfinished(directory, map(point_from_json, said["points"])),
            predicted_s,
            say=describe,
        )
    except Stopped as stopped:
        tell(f"stopped; finish it with: {program()} generators --resume {directory}")
        return directory, stopped.exit_code
    except (EnvironmentProblem, OSError) as problem:
        tell(f"stopped: {problem}; then: {program()} generators --resume {directory}")
        return directory, 3
    return directory, 0 if document_of(directory).valid else 1


def _new(options: argparse.Namespace) -> Path:
    said, environment = plan(options)
    directory = store.fresh(options.out, KIND)
    store.create(directory, said, environment)
    return directory


def _resumed(options: argparse.Namespace) -> Path:
    """Raises UsageError for a run of another kind, or words that would change its plan."""
    for name in ("tools", "levels", "duration", "keepalive", "out"):
        if getattr(options, name) is not None:
            raise UsageError("--resume takes a run and no other arguments: its plan is on file")
    directory = find(options.resume)
    if store.load(directory).plan.get("kind") != KIND:
        raise UsageError(f"{options.resume} is no run of `generators`")
    return directory
