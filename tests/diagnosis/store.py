"""The runs of the corpus: one archive per run, and a line in runs.jsonl.

An archive contains only the files that a report reads: analysis measures nothing, so a run can be
judged again whenever a rule changes. A line is written when a run has ended; an interrupted corpus
resumes with the runs that have no line.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from tests.builders.runs import unpack
from tests.diagnosis.judge import judged
from tests.diagnosis.statement import FALSE, Statement
from tests.diagnosis.truth import Scenario
from workerlab import codec, run_store
from workerlab.experiments.reading import report_of, trial_data
from workerlab.paths import bundled_root

# Parts of a run that no report reads
SKIPPED_DIRECTORIES = ("code", "calibration")
SKIPPED_FILES = ("launch.json", "listening.json", "server.log")
SUFFIX = ".tar.xz"  # a third smaller than a zip


class RunRecord(Struct, frozen=True):
    """A line of runs.jsonl."""

    scenario: str
    noise: bool
    number: int
    exit_code: int
    took_s: float
    stderr: str = ""  # its end
    code: str = ""  # the commit

    @property
    def name(self) -> str:
        return f"{self.scenario}-{'noise' if self.noise else 'quiet'}-{self.number}"


def pack(directory: Path, archive: Path) -> None:
    """Pack atomically, with paths as if the lab and its runs were in /srv."""
    part = archive.with_name(f"{archive.name}.part")
    replacements = {str(directory.parent): "/srv/runs", sys.prefix: "/srv/workerlab/.venv",
                    str(bundled_root()): "/srv/workerlab"}  # fmt: skip
    with tarfile.open(part, "w:xz", preset=9) as file:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory)
            skipped = name.parts[0] in SKIPPED_DIRECTORIES or path.name in SKIPPED_FILES
            if skipped or not path.is_file():
                continue
            data = path.read_bytes()
            if path.suffix != ".map":
                for actual, canonical in replacements.items():
                    data = data.replace(actual.encode(), canonical.encode())
            entry = tarfile.TarInfo(f"{directory.name}/{name}")
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    part.replace(archive)


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """The run directory in an archive, until the context ends."""
    with tempfile.TemporaryDirectory(prefix="workerlab-corpus-") as temporary:
        unpack(archive, Path(temporary))
        (directory,) = Path(temporary).iterdir()
        yield directory


def append(corpus: Path, record: RunRecord) -> None:
    with (corpus / "runs.jsonl").open("ab") as file:
        file.write(codec.encode(record) + b"\n")


def records_in(corpus: Path) -> list[RunRecord]:
    try:
        lines = (corpus / "runs.jsonl").read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [codec.decode(line, RunRecord) for line in lines[:-1]]


def statements_of(directory: Path, scenario: Scenario, *, noise: bool) -> list[Statement]:
    run = run_store.load(directory)
    return list(judged(scenario, report_of(run), trial_data(run), noise=noise))


def statements(corpus: Path, record: RunRecord, scenario: Scenario) -> list[Statement]:
    """The statements of one run; a wrong exit code is a false one."""
    result: list[Statement] = []
    if record.exit_code not in scenario.exit_codes:
        why = f"exit {record.exit_code}: {record.stderr[-300:]}"
        result.append(Statement(scenario.name, "", record.noise, "exit", "exit", FALSE, why))
    archive = corpus / f"{record.name}{SUFFIX}"
    if archive.exists():
        with unpacked(archive) as directory:
            result += statements_of(directory, scenario, noise=record.noise)
    return result
