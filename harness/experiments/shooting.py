"""Runs Points one after the other, each kept before the next begins: what the experiments that
load a server of the lab's own have in common."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from harness import run_store as store
from harness.experiments.shot import shot
from harness.load.registry import tool_named
from harness.model import EnvironmentProblem, Fault, Point, Record
from harness.server import preflight
from harness.terminal.progress import Progress, describe

Words = Callable[[Point], tuple[str, ...]]


def lacks(name: str) -> str | None:
    """Why a load tool cannot run here, with what to do about it; None when it can."""
    tool = tool_named(name)
    if not preflight.find_tool(tool.PROGRAM):
        return f"{name} is not installed. {tool.INSTALL_HINT}"
    missing = [package for package in tool.NEEDS if importlib.util.find_spec(package) is None]
    if missing:
        return f"{name} needs {' and '.join(missing)}. {tool.INSTALL_HINT}"
    return None


def versions(names: Iterable[str]) -> dict[str, str | None]:
    """What each load tool says of itself."""
    return {
        name: preflight.tool_version(argv)
        for name in names
        if (argv := tool_named(name).VERSION_ARGV) is not None
    }


def unfinished(directory: Path, points: Iterable[Point]) -> list[Point]:
    """Those with no record yet, or one that tells of a fault."""
    records = store.load(directory).records
    return [one for one in points if one.key not in records or records[one.key].fault]


def shoot(
    directory: Path,
    todo: Sequence[Point],
    predict: Callable[[Point], float],
    *,
    say: Callable[[Point], str] = describe,
    wrap: Words = lambda point: (),
) -> None:
    """Run `todo`; `predict(point)` in seconds, `wrap(point)`: words before its tool's own.

    Raises Stopped on a signal, EnvironmentProblem when nothing can be written any more.
    """
    with store.appending(directory) as writer, Progress(todo, predict, say, "point") as progress:
        for point in todo:
            progress.begin(point)
            why = lacks(point.tool)
            if why is None:
                writer.began(point.key)
                record = shot(point, directory, writer.ended, wrap(point))
            else:
                record = Record(point.key, Fault("unavailable", why))
                writer.ended(record)
            progress.end(point, record)
            if record.fault and record.fault.kind == "storage":
                raise EnvironmentProblem(record.fault.reason)
