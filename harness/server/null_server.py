"""The server that is not under test, started and stopped like the one that is."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.experiments.points import REPORT
from harness.model import Fault, Target
from harness.server.process import Guarded
from harness.server.running import Faulty, last_error

PROGRAM = str(Path(__file__).parent / "null")
READY, LOG = "ready.json", "target.log"
BOOT_S = 30.0
POLL_S = 0.01
GRACE_S = 5.0  # it answers nothing more, but writes its report


@dataclass
class RunningTarget:
    """A target that listens. It has no workers, so nothing proves itself in it."""

    target: Target
    directory: Path
    process: Guarded
    host: str
    port: int
    start_s: float
    proofs: dict[int, dict[str, object]] = field(default_factory=dict)
    warmup_s: float = 0.0
    lone_s: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    drops: bool = False

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    @property
    def others(self) -> tuple[RunningTarget, ...]:
        return ()

    @property
    def backlog(self) -> int:
        return self.target.backlog

    def lost(self) -> Fault | None:
        if self.process.running:
            return None
        said = last_error(self.directory / LOG)
        return Fault("server", f"the target ended under the load: {said}")


def words(target: Target, directory: Path) -> list[str]:
    """The command that starts it."""
    least_s, most_s = target.delay_s
    found = [sys.executable, "-I", "-S", PROGRAM]
    found += ["--ready", str(directory / READY), "--report", str(directory / REPORT)]
    found += ["--body-bytes", str(target.body_bytes), "--delay", f"{least_s!r},{most_s!r}"]
    found += ["--seed", str(target.seed), "--backlog", str(target.backlog)]
    found += ["--core", str(target.core)] if target.core is not None else []
    return [*found, "--fault", target.fault]


@contextmanager
def target(directory: Path, target: Target) -> Iterator[RunningTarget]:
    """A target that listens; gone afterwards, its report in `directory`, which is there already.

    Raises Faulty where it does not come up.
    """
    began = time.monotonic()
    with Guarded(
        words(target, directory),
        cwd=directory,
        env=os.environ,
        stdout=directory / LOG,
        stderr=directory / LOG,
        grace_s=GRACE_S,
    ) as process:
        until = began + BOOT_S
        while not (directory / READY).exists():
            if process.wait(POLL_S) or time.monotonic() > until:
                why = last_error(directory / LOG)
                raise Faulty("unavailable", f"the target did not start: {why}")
        where = json.loads((directory / READY).read_text())
        took_s = time.monotonic() - began
        yield RunningTarget(target, directory, process, where["host"], where["port"], took_s)
