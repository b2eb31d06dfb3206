"""One load tool against a target: a trial like those of the sweep, on another server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from harness.experiments import trial
from harness.load.registry import tool_named
from harness.model import Command, Load, Point, Record
from harness.observe.observer import Observer
from harness.server.null_server import RunningTarget, target

Making = Callable[[Load, str, str], Command]


@dataclass(frozen=True)
class Shooting:
    """A Job on a target. `wrap`: words before the program's own, such as a program that sets limits
    and then becomes it. `make`: what is run; None: the point's load tool."""

    point: Point
    directory: Path
    wrap: tuple[str, ...] = ()
    make: Making | None = None
    watch: Callable[[RunningTarget, Observer], None] | None = None

    @property
    def key(self) -> str:
        return self.point.key

    @property
    def load(self) -> Callable[[float], Load]:
        return lambda _: self.point.load

    @property
    def command(self) -> Making:
        return self._command

    def _command(self, load: Load, url: str, workdir: str) -> Command:
        make = self.make or tool_named(self.point.tool).command
        command = make(load, url, workdir)
        return Command((*self.wrap, *command.argv), command.files)

    @property
    def parts(self) -> Mapping[str, int]:
        return {}

    def up(self) -> AbstractContextManager[RunningTarget]:
        return target(self.directory, self.point.target)


def shot(
    point: Point,
    run_directory: Path,
    keep: Callable[[Record], None],
    wrap: tuple[str, ...] = (),
    make: Making | None = None,
) -> Record:
    """Execute `point` in `run_directory`/raw/KEY and `keep` its Record. What an unfinished attempt
    at it left is removed first."""
    directory = run_directory / "raw" / point.key
    trial.forget(directory)
    return trial.run(Shooting(point, directory, wrap, make), keep)
