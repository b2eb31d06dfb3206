"""Each form of each mistake as a load tool: the program of that name, and what it prints.

`details` of the Measurement: `mistake`, `form`, `code` (what the form looks like), `returned` (how
many objects of each type the caller was handed), `complaints` (of Python or asyncio, and how often
each), `time_wait` (sockets left behind; None: not known).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.model import Command, Load, Measurement, Output, ParseError, Summary

PROGRAMS = str(Path(__file__).parent)
DETAILS = ("mistake", "form", "code", "returned", "complaints", "time_wait")
FORMS = {
    "missing_await": ("mistake", "abandoned", "cure"),
    "session_per_request": ("mistake", "cure"),
}


@dataclass(frozen=True)
class Mistake:
    """One form of a mistake as a Tool."""

    mistake: str
    form: str
    NEEDS: tuple[str, ...] = ("aiohttp",)
    COUNTED: bool = True
    LONE_FIRST: bool = False
    NAMES_REQUESTS: bool = False
    TIMED: bool = False
    OPEN_MODEL: bool = False
    PROCESSES: bool = False
    RAMPS: bool = False
    DISTRIBUTES: bool = False
    PROGRAM: str | None = None
    VERSION_ARGV: tuple[str, ...] | None = None
    OUTPUT_FILES: tuple[str, ...] = ()
    INSTALL_HINT: str = "It needs aiohttp: pip install 'workerlab[generators]'."
    NO_KEEPALIVE: Mapping[str, str] = field(default_factory=dict)

    @property
    def NAME(self) -> str:
        return f"{self.mistake}-{self.form}"

    def cores_used(self, concurrency: int, processes: int) -> int:
        return 1

    def check(self, load: Load) -> None:
        """It asks for as many requests as it is told, in its own way."""

    def command(self, load: Load, url: str, workdir: str) -> Command:
        argv = (sys.executable, PROGRAMS, self.mistake, url, "--only", self.form)
        return Command((*argv, "--requests", str(load.requests), "--json"))

    def parse(self, output: Output) -> Measurement:
        """ParseError where the document is missing, cut short, or of another form."""
        if output.exit_code != 0:
            last = output.stderr.strip().rpartition("\n")[2]
            raise ParseError(f"{self.NAME} ended with exit code {output.exit_code}", last)
        try:
            document = json.loads(output.stdout)
            details = {name: document[name] for name in DETAILS}
            answers, seconds = int(document["answers"]), float(document["seconds"])
            connections = int(document["connections"])
        except (ValueError, KeyError, TypeError):
            raise ParseError(f"{self.NAME} did not print its document", output.stdout) from None
        if (details["mistake"], details["form"]) != (self.mistake, self.form):
            raise ParseError(f"not a document of {self.NAME}", output.stdout)
        return Measurement(
            requests=answers,
            failed=0,
            errors={},
            duration_s=seconds,
            rps=answers / seconds if seconds else None,
            response=Summary(),
            connections=connections,
            details=details,
        )


MISTAKES = {
    one.NAME: one for one in (Mistake(name, form) for name in FORMS for form in FORMS[name])
}
