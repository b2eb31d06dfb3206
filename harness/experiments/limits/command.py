"""`workerlab limits`: how far one client goes, and what stops it.

From a hundred requests to a million, against a server that answers after a seeded random delay; the
limits of the machine are run into on purpose (errno 24, errno 99), recognised, and avoided; and two
classic mistakes are made, to be recognised again.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import run_store as store
from harness.experiments.limits.steps import LEAST_FILES, Machine, predicted_s, steps
from harness.experiments.points import point_from_json, point_to_json
from harness.experiments.reading import find
from harness.experiments.runner import tell
from harness.experiments.shooting import lacks, shoot, versions
from harness.experiments.shot import shot
from harness.experiments.studies import document_of
from harness.model import Command, EnvironmentProblem, Load, Point, Record, Target, UsageError
from harness.options import program
from harness.server import preflight
from harness.terminal.interrupt import Stopped
from harness.terminal.progress import Progress, duration

KIND = "limits"
MISTAKES = str(Path(__file__).with_name("mistakes"))
FORMS = {"missing_await": ("mistake", "abandoned", "cure"),
         "session_per_request": ("mistake", "cure")}  # fmt: skip
WANTED = {"missing_await": 100, "session_per_request": 2000}
MISTAKE_S = 2.0  # what a demonstration takes; only for the prediction


def machine() -> Machine:
    return Machine(
        has=lambda tool: lacks(tool) is None,
        files=preflight.raise_file_limit(),
        ports=preflight.port_range() if preflight.narrows_ports() else None,
        core=preflight.own_core(),
    )


def plan(quick: bool) -> tuple[dict[str, Any], dict[str, object]]:
    """The run's plan and what it is measured on. Looks at the machine, starts nothing."""
    here = machine()
    if here.files is not None and here.files < LEAST_FILES:
        raise UsageError(
            f"limits needs at least {LEAST_FILES} open files, and 10,064 to show everything; the"
            f" limit is {here.files}: raise it (ulimit -n 10064, as root where that is refused)"
        )
    chosen, left_out = steps(here, quick)
    left_out += [why for tool in ("threads", "coroutines") if (why := lacks(tool))]
    shown = []
    if importlib.util.find_spec("aiohttp"):
        shown = [_mistake(name, form, here.core) for name in FORMS for form in FORMS[name]]
    else:
        left_out.append("the classic mistakes: they need aiohttp (pip install aiohttp)")
    said = {
        "kind": KIND,
        "points": [point_to_json(step.point) for step in chosen],
        "steps": {step.point.key: step.to_json() for step in chosen},
        "mistakes": shown,
        "left_out": left_out,
    }
    return said, preflight.machine(versions({step.point.tool for step in chosen}))


def _mistake(name: str, form: str, core: int | None) -> dict[str, Any]:
    wanted = WANTED[name]
    load = Load(concurrency=wanted, requests=wanted, duration_s=1.0, deadline_s=60.0)
    point = Point(f"{name.replace('_', '-')}-{form}", Target(core=core), name, load)
    return {"point": point_to_json(point), "mistake": name, "form": form}


def _make(mistake: Mapping[str, Any]) -> Any:
    """The command of a demonstration, as a tool's `command`."""

    def command(load: Load, url: str, workdir: str) -> Command:
        words = (mistake["mistake"], url, "--only", mistake["form"])
        asked = ("--requests", str(load.requests), "--json")
        return Command((sys.executable, MISTAKES, *words, *asked))

    return command


def limited(open_files: int | None) -> tuple[str, ...]:
    """Words before a program that may have so many files open and no more."""
    if open_files is None:
        return ()
    return ("/bin/sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh")


def execute(directory: Path) -> None:
    """All that has no good record yet. Raises Stopped, EnvironmentProblem, OSError."""
    run = store.load(directory)
    settled = {key for key, record in run.records.items() if record.fault is None}
    files = {key: step["open_files"] for key, step in run.plan["steps"].items()}
    what = {key: step["what"] for key, step in run.plan["steps"].items()}
    points = [point_from_json(one) for one in run.plan["points"]]
    preflight.check_levels([point.load.concurrency for point in points])
    todo = [point for point in points if point.key not in settled]

    def say(point: Point) -> str:
        at_once = f"{point.load.concurrency:,} at once"
        return f"{point.load.requests:,} requests, {at_once}, {point.tool}, {what[point.key]}"

    shoot(directory, todo, predicted_s, say=say, wrap=lambda point: limited(files[point.key]))
    left = [one for one in run.plan["mistakes"] if one["point"]["key"] not in settled]
    if left:
        _demonstrate(directory, left)


def _demonstrate(directory: Path, mistakes: list[dict[str, Any]]) -> None:
    by_key = {one["point"]["key"]: one for one in mistakes}
    todo = [point_from_json(one["point"]) for one in mistakes]

    def say(point: Point) -> str:
        one = by_key[point.key]
        return f"{one['mistake'].replace('_', ' ')}: {one['form']}"

    with (
        store.appending(directory) as writer,
        Progress(todo, lambda _: MISTAKE_S, say, "demonstration") as progress,
    ):
        for point in todo:
            progress.begin(point)
            writer.began(point.key)
            record: Record = shot(point, directory, writer.ended, make=_make(by_key[point.key]))
            progress.end(point, record)


def predicted(said: Mapping[str, Any]) -> float:
    """Seconds that the whole plan will take."""
    points = map(point_from_json, said["points"])
    return sum(map(predicted_s, points)) + MISTAKE_S * len(said["mistakes"])


def limits(options: argparse.Namespace) -> tuple[Path, int]:
    """Make or resume a run. Returns its directory and the exit code it has earned."""
    directory = _resumed(options) if options.resume else _new(options)
    for why in store.load(directory).plan["left_out"]:
        tell(f"left out: {why}")
    again = f"{program()} limits --resume {directory}"
    try:
        execute(directory)
    except Stopped as stopped:
        tell(f"stopped; finish it with: {again}")
        return directory, stopped.exit_code
    except (EnvironmentProblem, OSError) as problem:
        tell(f"stopped: {problem}; then: {again}")
        return directory, 3
    return directory, 0 if document_of(directory).valid else 1


def _new(options: argparse.Namespace) -> Path:
    said, environment = plan(bool(options.quick))
    directory = store.fresh(options.out, KIND)
    store.create(directory, said, environment)
    tell(_announcement(said))
    return directory


def _announcement(said: Mapping[str, Any]) -> str:
    slow = max(map(point_from_json, said["points"]), key=predicted_s)
    about = f"about {duration(predicted(said))} in all"
    if slow.load.concurrency > 1:
        return about
    alone = duration(predicted_s(slow))
    return f"{about}, {alone} of them for the synchronous client (--quick leaves it out)"


def _resumed(options: argparse.Namespace) -> Path:
    """Raises UsageError for a run of another kind, or words that would change its plan."""
    if options.quick or options.out is not None:
        raise UsageError("--resume takes a run and no other arguments: its plan is on file")
    directory = find(options.resume)
    if store.load(directory).plan.get("kind") != KIND:
        raise UsageError(f"{options.resume} is no run of `limits`")
    return directory
