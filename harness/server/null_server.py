"""The server that does nothing, started and stopped like the one under test."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.model import Fault, Server
from harness.server.process import Guarded
from harness.server.running import Faulty, last_error

PROGRAM = str(Path(__file__).parent / "null")
READY, COUNTS, LOG = "ready.json", "null-server.json", "null-server.log"
BOOT_S = 30.0
POLL_S = 0.01
GRACE_S = 5.0  # it answers nothing more, but writes what it counted


@dataclass
class RunningNull:
    """A null server that listens. It has no workers, so nothing proves itself in it."""

    directory: Path
    process: Guarded
    host: str
    port: int
    backlog: int
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
    def others(self) -> tuple[RunningNull, ...]:
        return ()

    def lost(self) -> Fault | None:
        if self.process.running:
            return None
        why = last_error(self.directory / LOG)
        return Fault("server", f"the null server ended under the load: {why}")


def command(server: Server, directory: Path) -> list[str]:
    """What starts it."""
    assert server.null is not None
    null, argv = server.null, [sys.executable, "-I", "-S", PROGRAM]
    argv += ["--ready", str(directory / READY), "--report", str(directory / COUNTS)]
    argv += ["--body-bytes", str(null.body_bytes), "--delay", "{!r},{!r}".format(*null.delay_s)]
    argv += ["--seed", str(null.seed), "--backlog", str(server.backlog)]
    argv += ["--core", str(null.core)] if null.core is not None else []
    return [*argv, "--fault", null.fault]


@contextmanager
def null_server(server: Server, directory: Path) -> Iterator[RunningNull]:
    """A null server that listens; gone afterwards, what it counted in `directory`, which is there
    already.

    Raises Faulty where it does not come up.
    """
    began = time.monotonic()
    log = directory / LOG
    with Guarded(
        command(server, directory),
        cwd=directory,
        env=os.environ,
        stdout=log,
        stderr=log,
        grace_s=GRACE_S,
    ) as process:
        while not (directory / READY).exists():
            if process.wait(POLL_S) or time.monotonic() > began + BOOT_S:
                raise Faulty("unavailable", f"the null server did not start: {last_error(log)}")
        place = json.loads((directory / READY).read_text())
        took_s = time.monotonic() - began
        host, port = place["host"], place["port"]
        yield RunningNull(directory, process, host, port, server.backlog, took_s)
