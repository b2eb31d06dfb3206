"""The load tools, one pure file each: how the tool is run, and what its output means.

To add one, write such a file and add it to TOOLS. It starts no process and opens no file: the
harness runs the command in a directory of its own, and hands back what it left there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.load import ab, locust, wrk
from harness.load.fast import FAST
from harness.load.mistakes.tool import MISTAKES
from harness.load.programs import Program
from harness.model import Command, Load, Measurement, Output


class Tool(Protocol):
    """What a file in this room offers."""

    @property
    def NAME(self) -> str:
        """What the user calls it; the key in TOOLS."""

    @property
    def PROGRAM(self) -> str | None:
        """The program to look for on PATH; None: it comes with the lab."""

    @property
    def VERSION_ARGV(self) -> tuple[str, ...] | None:
        """Prints its version on the first line, whatever the exit code; None: it has none."""

    @property
    def COUNTED(self) -> bool:
        """True: it sends `load.requests`. False: it runs for `load.duration_s`."""

    @property
    def LONE_FIRST(self) -> bool:
        """True: its first request is sent alone, the others when that one was answered."""

    @property
    def NAMES_REQUESTS(self) -> bool:
        """True: each request bears a name of its own in the header X-Workerlab-Request."""

    @property
    def NO_KEEPALIVE(self) -> Mapping[str, str]:
        """Worker classes with which it cannot keep connections alive, and what happens."""

    @property
    def NEEDS(self) -> tuple[str, ...]:
        """Python packages that it imports, from the lab's own environment."""

    @property
    def TIMED(self) -> bool:
        """True: it can run for `load.duration_s`."""

    @property
    def OPEN_MODEL(self) -> bool:
        """True: it can send at `load.rate_rps`."""

    @property
    def PROCESSES(self) -> bool:
        """True: it can send from `load.processes`."""

    @property
    def RAMPS(self) -> bool:
        """True: it can begin its connections one after the other, over `load.ramp_s`."""

    @property
    def DISTRIBUTES(self) -> bool:
        """True: it can send from `load.hosts`."""

    @property
    def OUTPUT_FILES(self) -> tuple[str, ...]:
        """Names of the files in its directory that `parse` wants to read."""

    @property
    def INSTALL_HINT(self) -> str:
        """What to do where it is missing: a sentence."""

    def cores_used(self, concurrency: int, processes: int) -> int:
        """How many it can keep busy at once: what its CPU is judged against. `processes`: as asked
        for."""

    def check(self, load: Load) -> None:
        """Raises UsageError, in one sentence, for a load the tool cannot produce."""

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """The words to run in `workdir` (absolute), and files to write there first."""

    def parse(self, output: Output) -> Measurement:
        """What the output says. Raises ParseError, and only that, for text it cannot read with
        certainty: aborted, partial, truncated, zero bytes, garbage."""


TOOLS: dict[str, Tool] = {
    "ab": ab,
    "wrk": wrk,
    "fast": FAST,
    "processes": Program("processes", NEEDS=("requests",), RAMPS=True, PROCESS_PER="connection"),
    "threads": Program("threads", NEEDS=("requests",), RAMPS=True),
    "coroutines": Program("coroutines", NEEDS=("aiohttp",), RAMPS=True),
    "processes-coroutines": Program(
        "processes-coroutines", NEEDS=("aiohttp",), PROCESSES=True, RAMPS=True, PROCESS_PER="core"
    ),
    "locust": locust.HTTP,
    "locust-fast": locust.FAST,
}

# Other names that are understood
ALSO = {"python": "fast", "processes\u00d7coroutines": "processes-coroutines"}


def tool_named(name: str) -> Tool:
    """The tool of that name, or of one it is also known by, or one that makes a mistake, which
    nobody is offered. KeyError for others."""
    known = ALSO.get(name, name)
    return TOOLS[known] if known in TOOLS else MISTAKES[known]
