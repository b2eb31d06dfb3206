"""The runs of the corpus, packed: one archive each, and a line in runs.jsonl.

Kept is what a report is made of, and nothing else: analysis is pure, so a run made once is judged
again whenever a rule has changed, without running anything. A line tells how its run went; a run
whose line is there is done, so that the corpus can be ended at any moment and goes on from there.
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

# Of a run: what no report reads
SKIPPED = ("code", "calibration")
PACKED = ".tar.xz"  # a third smaller than a zip
SKIPPED_FILES = ("launch.json", "listening.json", "server.log")


class Ran(Struct, frozen=True):
    """How a run went."""

    scenario: str
    noise: bool
    number: int
    exit_code: int
    took_s: float
    stderr: str = ""  # the end of it
    code: str = ""  # the commit that measured

    @property
    def name(self) -> str:
        return f"{self.scenario}-{'noise' if self.noise else 'quiet'}-{self.number}"


def pack(directory: Path, archive: Path) -> None:
    """Whole or not at all; its paths as if the lab stood in /srv, and runs beside it."""
    part = archive.with_name(f"{archive.name}.part")
    places = {str(directory.parent): "/srv/runs", sys.prefix: "/srv/workerlab/.venv",
              str(bundled_root()): "/srv/workerlab"}  # fmt: skip
    with tarfile.open(part, "w:xz", preset=9) as file:
        for path in sorted(directory.rglob("*")):
            inner = path.relative_to(directory)
            if not path.is_file() or inner.parts[0] in SKIPPED or path.name in SKIPPED_FILES:
                continue
            data = path.read_bytes()
            if path.suffix != ".map":
                for here, there in places.items():
                    data = data.replace(here.encode(), there.encode())
            entry = tarfile.TarInfo(f"{directory.name}/{inner}")
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    part.replace(archive)


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """The run directory in an archive, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="workerlab-corpus-") as place:
        unpack(archive, Path(place))
        (directory,) = Path(place).iterdir()
        yield directory


def append(place: Path, ran: Ran) -> None:
    with (place / "runs.jsonl").open("ab") as file:
        file.write(codec.encode(ran) + b"\n")


def ran_in(place: Path) -> list[Ran]:
    try:
        lines = (place / "runs.jsonl").read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [codec.decode(line, Ran) for line in lines[:-1]]


def statements_of(directory: Path, scenario: Scenario, *, noise: bool) -> list[Statement]:
    """What is to be said of what is found out about a run."""
    run = run_store.load(directory)
    return list(judged(scenario, report_of(run), trial_data(run), noise=noise))


def statements(place: Path, ran: Ran, scenario: Scenario) -> list[Statement]:
    """Of one run. That it did not end as it should is a false statement by itself."""
    judged: list[Statement] = []
    if ran.exit_code not in scenario.exit_codes:
        why = f"exit {ran.exit_code}: {ran.stderr[-300:]}"
        judged.append(Statement(scenario.name, "", ran.noise, "exit", "exit", FALSE, why))
    archive = place / f"{ran.name}{PACKED}"
    if archive.exists():
        with unpacked(archive) as directory:
            judged += statements_of(directory, scenario, noise=ran.noise)
    return judged
